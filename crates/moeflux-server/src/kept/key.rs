//! How a kept response is found.

use super::owner::Owner;

/// Digits of an id behind its prefix.
const ID_DIGITS: usize = 24;

/// What a kept response is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) owner: Owner,
    /// The digits of the response's id.
    pub(super) digits: String,
}

impl Key {
    /// Of a response of an owner, by its id or by that of one of its items.
    pub(super) fn of(owner: &Owner, id: &str) -> Option<Key> {
        Some(Key { owner: owner.clone(), digits: digits_of(id)?.to_owned() })
    }
}

/// The digits of a response's id in its own id or in that of one of its items.
pub(super) fn digits_of(id: &str) -> Option<&str> {
    let digits = id.split_once('_')?.1.get(..ID_DIGITS)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(digits)
}

/// The id of item `i` of a response.
pub(crate) fn item_id(prefix: &str, response: &str, i: usize) -> String {
    format!("{prefix}{}{i:03x}", digits_of(response).unwrap_or_default())
}
