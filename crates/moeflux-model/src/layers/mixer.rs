//! What lets tokens see others.

use std::fmt;

use moeflux_backend::{Cols, Stage};

use crate::step::Step;

/// What lets tokens see others: attention, or a recurrence.
pub(crate) trait Mixer: fmt::Debug + Send {
    /// `out = mixer(x)`.
    fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols);

    /// What measurements count it as.
    fn stage(&self) -> Stage {
        Stage::Attention
    }
}
