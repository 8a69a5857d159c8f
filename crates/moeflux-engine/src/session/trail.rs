//! Rows of what the model made of the last positions.

use moeflux_model::ModelShape;

/// Rows that are kept although their entries are made: guesses that are taken back take
/// entries with them.
pub(super) const KEPT_BEHIND: usize = 64;

/// Entries that wait at most.
pub(super) const MOST_WAITING: usize = 64;

/// Entries that are made along with the next one.
pub(super) const FEW_WAITING: usize = 4;

/// What the model made of the last positions, `width` floats each.
#[derive(Debug)]
pub(super) struct Trail {
    pub(super) width: usize,
    /// Whether anybody foresees.
    pub(super) is_followed: bool,
    /// Entries at the beginning that the caches hold.
    pub(super) n_entries: usize,
    /// The entry that the first row is for: the row is that of the position before.
    pub(super) start: usize,
    pub(super) rows: Vec<f32>,
}

impl Trail {
    pub(super) fn new(shape: &ModelShape, is_followed: bool) -> Trail {
        let width = shape.hidden;
        Trail { width, is_followed, n_entries: 0, start: 0, rows: vec![0.0; width] }
    }

    /// The first entry that cannot be made yet.
    pub(super) fn end(&self) -> usize {
        self.start + self.rows.len() / self.width
    }

    /// The rows of some entries.
    pub(super) fn of(&self, first: usize, n: usize) -> &[f32] {
        &self.rows[(first - self.start) * self.width..][..n * self.width]
    }

    /// Nothing is known of what is before an entry.
    pub(super) fn begin_at(&mut self, entry: usize) {
        self.start = entry;
        self.rows.clear();
        self.rows.resize(self.width, 0.0);
    }

    /// Takes what the model made of positions from `position` on.
    pub(super) fn note(&mut self, position: usize, rows: &[f32]) {
        if self.end() < position + 1 {
            self.begin_at(position);
            self.n_entries = position;
        }
        let n_known = self.end() - (position + 1);
        self.rows.extend_from_slice(rows.get(n_known * self.width..).unwrap_or_default());
    }

    /// The text ends at `position`.
    pub(super) fn cut(&mut self, position: usize) {
        if position < self.start {
            self.begin_at(position);
        }
        self.rows.truncate((position + 1 - self.start) * self.width);
        self.n_entries = self.n_entries.min(position);
    }

    /// The caches hold entries of the first `n` positions at most.
    pub(super) fn cut_caches(&mut self, n: usize) {
        self.n_entries = self.n_entries.min(n);
        if self.n_entries < self.start {
            self.begin_at(self.n_entries);
        }
    }

    /// Entries before this one are in the caches, whatever they say.
    pub(super) fn resume_at(&mut self, entry: usize) {
        self.n_entries = entry;
        self.begin_at(entry);
    }

    /// Entries up to `end` are made; their rows are let go, in time.
    pub(super) fn made(&mut self, end: usize) {
        self.n_entries = end;
        let n_old = end.saturating_sub(self.start + KEPT_BEHIND);
        if n_old >= KEPT_BEHIND {
            self.rows.drain(..n_old * self.width);
            // Long prompts leave more room behind than anybody needs again.
            self.rows.shrink_to(4 * KEPT_BEHIND * self.width);
            self.start += n_old;
        }
    }
}
