//! Recurrent states that are copied in the middle of a step, so that a sequence can roll back
//! to a position inside it.

use crate::{Sequence, Span};

/// Copies the recurrent states of a sequence, as they are after some rows of its span, into
/// another sequence with equal cache specs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSnapshot {
    /// The sequence to copy from.
    pub sequence: Sequence,
    /// The number of rows of its span before the copy: at least one, and not all.
    pub rows: usize,
    /// The sequence to copy to.
    pub to: Sequence,
}

/// The spans of a step, split where states are copied.
#[derive(Debug)]
pub struct SplitSpans {
    /// Spans up to their snapshot; whole spans where there is none.
    pub before: Vec<Span>,
    /// The rest of the spans with a snapshot.
    pub after: Vec<Span>,
    /// The snapshots between the two.
    pub snapshots: Vec<StateSnapshot>,
}

impl StateSnapshot {
    /// The snapshot inside a span, if there is one.
    pub fn of(snapshots: &[StateSnapshot], span: &Span) -> Option<StateSnapshot> {
        let snapshot = snapshots.iter().find(|snapshot| snapshot.sequence == span.sequence)?;
        Some(*snapshot).filter(|snapshot| (1..span.rows.len()).contains(&snapshot.rows))
    }

    /// Splits spans for ops that run in two parts; `None` where no snapshot is inside one.
    pub fn split(snapshots: &[StateSnapshot], spans: &[Span]) -> Option<SplitSpans> {
        let snapshots: Vec<StateSnapshot> =
            spans.iter().filter_map(|span| StateSnapshot::of(snapshots, span)).collect();
        if snapshots.is_empty() {
            return None;
        }
        let (mut before, mut after) = (Vec::with_capacity(spans.len()), Vec::new());
        for span in spans {
            let Some(StateSnapshot { rows, .. }) = StateSnapshot::of(&snapshots, span) else {
                before.push(span.clone());
                continue;
            };
            let at = span.rows.start + rows;
            before.push(Span { rows: span.rows.start..at, ..span.clone() });
            after.push(span.skip(rows));
        }
        Some(SplitSpans { before, after, snapshots })
    }
}

#[cfg(test)]
mod tests {
    use super::{SplitSpans, StateSnapshot};
    use crate::{Sequence, Span};

    #[test]
    fn spans_are_split_at_snapshots_and_nowhere_else() {
        let span = |sequence, rows, position| Span::new(Sequence(sequence), rows, position);
        let spans = [span(0, 0..1, 7), span(1, 1..6, 20), span(2, 6..9, 0)];
        let snapshot =
            |sequence, rows| StateSnapshot { sequence: Sequence(sequence), rows, to: Sequence(9) };
        let outside = [&[][..], &[snapshot(1, 0), snapshot(2, 3)], &[snapshot(0, 1)]];
        for none in outside.into_iter().chain([&[snapshot(5, 1)][..]]) {
            assert!(StateSnapshot::split(none, &spans).is_none(), "{none:?}");
        }
        let all = [snapshot(2, 1), snapshot(1, 2)];
        let split = StateSnapshot::split(&all, &spans).expect("two snapshots");
        let SplitSpans { before, after, snapshots } = split;
        assert_eq!(before, [spans[0].clone(), span(1, 1..3, 20), span(2, 6..7, 0)]);
        assert_eq!(after, [span(1, 3..6, 22), span(2, 7..9, 1)]);
        assert_eq!(snapshots, [snapshot(1, 2), snapshot(2, 1)]);
    }
}
