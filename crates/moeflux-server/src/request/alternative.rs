//! What may stand in place of a string.

use serde::de::DeserializeOwned;

/// A type that may stand where a string may: a list or an object.
pub(crate) trait Alternative: DeserializeOwned {
    /// What the field may be.
    const EXPECTED: &'static str;
    const IS_LIST: bool;
}
