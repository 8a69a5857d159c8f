//! What a device does while its answer is awaited: steps are recorded before anybody knows
//! their tokens.

use std::fmt;

use crate::{Backend, Span};

/// The step that is expected to follow, for whoever can record it while the device is
/// still at work.
pub struct Ahead<'a> {
    /// What its rows continue, in order.
    pub spans: &'a [Span],
    /// Records it with any tokens, which [`run_ahead`](Backend::run_ahead) replaces, and
    /// says whether it could. What it records reads nothing back.
    pub record: &'a mut dyn FnMut(&mut dyn Backend) -> bool,
}

/// What is wanted beside the answer of a head.
#[derive(Debug, Default)]
pub struct Beside<'a> {
    /// So many rows, the first of the buffer that the head's input lies in, are read back
    /// with it, and put here.
    pub rows: Option<(usize, &'a mut Vec<f32>)>,
    /// The step that may be recorded meanwhile.
    pub ahead: Option<Ahead<'a>>,
}

impl fmt::Debug for Ahead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").field("spans", &self.spans).finish_non_exhaustive()
    }
}
