//! Results of the head.

use std::cmp::Ordering;

use moeflux_core::TokenId;

/// One of the tokens that may well come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogit {
    /// The token.
    pub token: TokenId,
    /// Its logit.
    pub logit: f32,
}

impl TokenLogit {
    /// The highest logit first, of equal ones the lowest token; logits as
    /// [`f32::total_cmp`] orders them.
    pub fn order(&self, other: &TokenLogit) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.0.cmp(&other.token.0))
    }
}
