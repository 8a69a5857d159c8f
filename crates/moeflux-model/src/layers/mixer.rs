//! What lets tokens see others.

use std::fmt;

use moeflux_backend::{Cols, Stage};

use crate::step::Step;

/// What lets tokens see others: attention, or a recurrence.
pub(crate) trait Mixer: fmt::Debug + Send {
    /// `out = mixer(x)`.
    fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols);

    /// Whether rows may be embeddings, which stand at positions of their own: not where it keeps a
    /// state, or forgets what a window has passed.
    fn takes_embeddings(&self) -> bool;

    /// What measurements count it as.
    fn stage(&self) -> Stage {
        Stage::Attention
    }
}
