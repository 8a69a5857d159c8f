//! Why no token can be chosen.

use moeflux_core::OptionId;

/// Why no token could be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplerError {
    /// An option has a value that means nothing.
    #[error("{} is {value}, it must be {want}", option.name())]
    Option {
        /// The option.
        option: OptionId,
        /// Its value.
        value: f32,
        /// The accepted range.
        want: &'static str,
    },
    /// The model's output is damaged.
    #[error("the logit of token {token} is {value}: the model's output is damaged")]
    Logit {
        /// Where the value stands.
        token: usize,
        /// NaN or positive infinity.
        value: f32,
    },
    /// There is nothing to choose from.
    #[error("none of {n_logits} tokens may be chosen: every logit is -inf")]
    Empty {
        /// Length of the logits.
        n_logits: usize,
    },
}
