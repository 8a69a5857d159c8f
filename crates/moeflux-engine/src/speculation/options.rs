//! How much is drafted, and how much of it was accepted.

use std::ops::AddAssign;

/// Whether tokens are drafted. Changes no token of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// Drafts as many tokens as promise the highest rate, by the acceptance rates so far and by
    /// the measured times of steps of different numbers of rows.
    #[default]
    Auto,
    /// Drafts nothing.
    Off,
    /// Drafts this many tokens at every opportunity; at most [`MAX_DRAFT`](crate::MAX_DRAFT),
    /// and at most four with multi-token prediction.
    Fixed(usize),
}

/// Counts of the drafts in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Tokens drafted.
    pub drafted: u64,
    /// Drafted tokens that were accepted.
    pub accepted: u64,
}

impl AddAssign for SpeculationStats {
    fn add_assign(&mut self, other: SpeculationStats) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }
}
