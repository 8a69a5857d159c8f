//! The hidden states of a session's last positions, from which multi-token prediction drafts.

use moeflux_model::ModelShape;

/// Rows that are kept although the MTP cache has their entries: a rejected draft takes entries
/// away again.
const KEPT_ROWS: usize = 64;

/// Entries that may be missing in the MTP cache before they are computed.
pub(crate) const MAX_MISSING: usize = 64;

/// The most missing entries that are computed in the same step as the first drafted token.
pub(crate) const MAX_MISSING_IN_DRAFT: usize = 4;

/// Hidden states of the last positions of a session, and how far the cache of the MTP layer is
/// filled from them.
///
/// The MTP layer has an entry of keys and values for each position. Entry `p` is computed from
/// the token at `p` and the hidden state of position `p - 1`. Zeros stand for a hidden state
/// that is not known: before the first position, and after a state was loaded.
///
/// Invariant: `start <= n_entries`, so that the rows of missing entries are never dropped.
#[derive(Debug)]
pub(crate) struct MtpHistory {
    width: usize,
    /// Whether tokens are drafted from it; without, nothing is recorded.
    pub(crate) drafts: bool,
    /// Entries at the beginning that the MTP cache holds.
    pub(crate) n_entries: usize,
    /// The entry that is computed from the first row.
    start: usize,
    /// Hidden states, `width` floats each.
    rows: Vec<f32>,
}

impl MtpHistory {
    pub(crate) fn new(shape: &ModelShape, drafts: bool) -> MtpHistory {
        let width = shape.mtp_width;
        MtpHistory { width, drafts, n_entries: 0, start: 0, rows: vec![0.0; width] }
    }

    /// The first entry whose hidden state is not recorded yet.
    pub(crate) fn end(&self) -> usize {
        self.start + self.rows.len() / self.width
    }

    /// The hidden states that the `n` entries from `first` on are computed from.
    pub(crate) fn rows(&self, first: usize, n: usize) -> &[f32] {
        &self.rows[(first - self.start) * self.width..][..n * self.width]
    }

    /// Takes the hidden states of the positions from `position` on.
    pub(crate) fn record(&mut self, position: usize, rows: &[f32]) {
        if self.end() < position + 1 {
            self.begin_at(position);
            self.n_entries = position;
        }
        let n_known = self.end() - (position + 1);
        self.rows.extend_from_slice(rows.get(n_known * self.width..).unwrap_or_default());
    }

    /// The session ends at `position` now.
    pub(crate) fn truncate(&mut self, position: usize) {
        if position < self.start {
            self.begin_at(position);
        }
        self.rows.truncate((position + 1 - self.start) * self.width);
        self.n_entries = self.n_entries.min(position);
    }

    /// The MTP cache holds at most the first `n` entries now.
    pub(crate) fn truncate_cached(&mut self, n: usize) {
        self.n_entries = self.n_entries.min(n);
        if self.n_entries < self.start {
            self.begin_at(self.n_entries);
        }
    }

    /// The MTP cache holds all entries before this one; the hidden states are not known.
    pub(crate) fn resume_at(&mut self, entry: usize) {
        self.n_entries = entry;
        self.begin_at(entry);
    }

    /// The MTP cache holds the entries before `end` now. Old rows are dropped from time to time.
    pub(crate) fn set_filled(&mut self, end: usize) {
        self.n_entries = end;
        let n_old = end.saturating_sub(self.start + KEPT_ROWS);
        if n_old >= KEPT_ROWS {
            self.rows.drain(..n_old * self.width);
            // A long prompt has left more capacity than decoding needs.
            self.rows.shrink_to(4 * KEPT_ROWS * self.width);
            self.start += n_old;
        }
    }

    /// Drops all rows; the hidden state before an entry is not known.
    fn begin_at(&mut self, entry: usize) {
        self.start = entry;
        self.rows.clear();
        self.rows.resize(self.width, 0.0);
    }
}
