//! What a policy decides: which resident expert leaves when a slot is needed.

use std::fmt::Debug;

use crate::plan::Ordinal;

/// An order of leaving.
pub(crate) trait Policy: Debug + Send {
    /// The expert was asked for by so many rows, resident or not.
    fn touched(&mut self, expert: Ordinal, n_uses: f32);

    /// All that a layer's rows want has been touched.
    fn asked(&mut self) {}

    /// How much each expert is worth keeping, by ordinal; nothing where the
    /// policy learns nothing that lasts.
    fn weights(&self) -> Option<Vec<f32>> {
        None
    }

    /// Takes up what [`Policy::weights`] gave in an earlier life.
    fn restore(&mut self, _weights: &[f32]) {}

    /// The expert became resident.
    fn inserted(&mut self, expert: Ordinal);

    /// The expert has left.
    fn removed(&mut self, expert: Ordinal);

    /// The first to leave of those resident experts that may.
    fn victim(&self, may_leave: &dyn Fn(Ordinal) -> bool) -> Option<Ordinal>;
}
