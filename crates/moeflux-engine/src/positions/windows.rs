//! Where the caches of a session can be cut once layers with windows have forgotten positions.

use std::ops::Range;

/// Positions before the end at which the caches can be cut in any case: more than drafts of a step.
const FREE_POSITIONS: usize = 512;

/// Positions that are forgotten at once, so that a device is not interrupted at every step.
const FORGOTTEN_AT_ONCE: usize = 256;

/// Positions of a page on any device, which is freed as a whole.
const PAGE_POSITIONS: usize = 256;

/// Marks that are kept: where the last answers began.
const MAX_MARKS: usize = 2;

/// Most positions that a cache with this window holds after a step, without the rows of the next.
pub(crate) fn most_positions(window: usize) -> usize {
    let tail = window + FREE_POSITIONS + FORGOTTEN_AT_ONCE + PAGE_POSITIONS;
    tail + MAX_MARKS * (window + PAGE_POSITIONS)
}

/// The positions at which caches can be cut.
///
/// Invariant: rows at any of `marks`, and at `from` or later, see only positions that the caches
/// hold.
#[derive(Debug)]
pub(crate) struct WindowCuts {
    /// The widest window; nothing is forgotten where absent.
    window: Option<usize>,
    /// Positions that the caller will return to, ascending.
    marks: Vec<usize>,
    /// The first position from which on the caches can be cut anywhere.
    from: usize,
}

impl WindowCuts {
    /// Of an empty session.
    pub(crate) fn new(window: Option<usize>) -> WindowCuts {
        WindowCuts { window, marks: Vec::new(), from: 0 }
    }

    /// Of a session that was filled with what rows at `cuts` see, ascending positions, of which
    /// the last is the end.
    pub(crate) fn filled(window: Option<usize>, cuts: &[usize]) -> WindowCuts {
        let mut filled = WindowCuts::new(window);
        let Some((end, marks)) = cuts.split_last() else { return filled };
        let sees_all = window.is_none_or(|window| *end < window);
        if !sees_all {
            filled.from = *end;
            marks.iter().for_each(|mark| filled.mark(*mark));
        }
        filled
    }

    /// Remembers a position to return to, which is the end or one where the caches can be cut.
    pub(crate) fn mark(&mut self, position: usize) {
        if self.window.is_none() || position == 0 {
            return;
        }
        let at = self.marks.partition_point(|mark| *mark < position);
        if self.marks.get(at) != Some(&position) {
            self.marks.insert(at, position);
        }
        let n_old = self.marks.len().saturating_sub(MAX_MARKS);
        self.marks.drain(..n_old);
    }

    /// The last position at or before `limit` where the caches can be cut.
    pub(crate) fn nearest(&self, limit: usize) -> usize {
        if limit >= self.from {
            return limit;
        }
        self.marks.iter().copied().rfind(|mark| *mark <= limit).unwrap_or(0)
    }

    /// The last mark before `limit`.
    pub(crate) fn last_mark(&self, limit: usize) -> Option<usize> {
        self.marks.iter().copied().rfind(|mark| *mark < limit)
    }

    /// The marks; `None` where the caches can be cut anywhere.
    pub(crate) fn positions(&self) -> Option<Vec<usize>> {
        (self.from > 0).then(|| self.marks.clone())
    }

    /// The first of the positions from which on the caches can be cut anywhere.
    pub(crate) fn from(&self) -> usize {
        self.from
    }

    /// Around which positions the caches of a session that ends at `end` may forget, if enough
    /// can be forgotten.
    pub(crate) fn advance(&mut self, end: usize) -> Option<Vec<usize>> {
        self.window?;
        let from = end.saturating_sub(FREE_POSITIONS);
        if from < self.from + FORGOTTEN_AT_ONCE {
            return None;
        }
        self.from = from;
        let marks = self.marks.iter().copied().filter(|mark| *mark < from);
        Some(marks.chain([from]).collect())
    }

    /// The session ends at `position` now, where the caches were cut.
    pub(crate) fn truncate(&mut self, position: usize) {
        self.marks.retain(|mark| *mark <= position);
        self.from = self.from.min(position);
    }
}

/// The positions that rows at `cuts`, which ascend, see before them, in ascending order and
/// without gaps or overlaps inside a range; `seen_before` gives those of one cut.
pub(crate) fn seen_by(
    cuts: &[usize],
    seen_before: impl Fn(usize) -> Range<usize>,
) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for seen in cuts.iter().map(|cut| seen_before(*cut)) {
        match all.last_mut() {
            Some(last) if seen.start <= last.end => last.end = last.end.max(seen.end),
            _ => all.push(seen),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_return_to_their_ends_and_to_marks() {
        let mut cuts = WindowCuts::new(Some(100));
        cuts.mark(300);
        assert_eq!((cuts.advance(700), cuts.positions()), (None, None));
        assert_eq!(cuts.nearest(5), 5);
        assert_eq!(cuts.advance(2000), Some(vec![300, 1488]));
        assert_eq!(
            [1600, 1488, 1487, 300, 299].map(|at| cuts.nearest(at)),
            [1600, 1488, 300, 300, 0]
        );
        assert_eq!(cuts.advance(2100), None);
        cuts.mark(2100);
        cuts.mark(2200);
        assert_eq!(cuts.positions(), Some(vec![2100, 2200]));
        assert_eq!(cuts.nearest(1487), 0);
        assert_eq!(cuts.advance(4000), Some(vec![2100, 2200, 3488]));
        cuts.truncate(2150);
        assert_eq!((cuts.nearest(2149), cuts.nearest(2150), cuts.from()), (2100, 2150, 2150));
    }

    #[test]
    fn sessions_without_windows_are_cut_anywhere() {
        let mut cuts = WindowCuts::new(None);
        cuts.mark(10);
        assert_eq!((cuts.advance(100_000), cuts.nearest(77)), (None, 77));
        assert_eq!(cuts.positions(), None);
    }

    #[test]
    fn what_was_loaded_is_cut_where_it_was_stored_for() {
        let cuts = WindowCuts::filled(Some(100), &[40, 500]);
        assert_eq!([499, 500, 41, 39].map(|at| cuts.nearest(at)), [40, 500, 40, 0]);
        let short = WindowCuts::filled(Some(100), &[40, 99]);
        assert_eq!(short.nearest(70), 70);
    }

    #[test]
    fn ranges_that_meet_are_one() {
        let before = |end: usize| end.saturating_sub(9)..end;
        assert_eq!(seen_by(&[5, 40, 45, 54], before), [0..5, 31..54]);
    }
}
