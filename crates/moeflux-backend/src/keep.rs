//! Recurrent states that are kept in the middle of a step, for whoever goes back there.

use crate::{Sequence, Span};

/// Says that the recurrent states that a sequence has behind some rows of a step are put
/// into those of another, whose caches are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Whose rows they are.
    pub sequence: Sequence,
    /// How many of the first rows of its span: not none, and not all.
    pub rows: usize,
    /// What gets the states.
    pub to: Sequence,
}

/// Spans in two parts.
#[derive(Debug)]
pub struct Cut {
    /// Up to where states are kept, or whole.
    pub before: Vec<Span>,
    /// The rest of those.
    pub behind: Vec<Span>,
    /// What is kept between the two.
    pub kept: Vec<Keep>,
}

impl Keep {
    /// What is kept of a span.
    pub fn of(keep: &[Keep], span: &Span) -> Option<Keep> {
        let it = keep.iter().find(|it| it.sequence == span.sequence)?;
        Some(*it).filter(|it| (1..span.rows.len()).contains(&it.rows))
    }

    /// Cuts spans for ops that run one part behind the other; `None` where nothing is
    /// kept of them.
    pub fn cut(keep: &[Keep], spans: &[Span]) -> Option<Cut> {
        let kept: Vec<Keep> = spans.iter().filter_map(|it| Keep::of(keep, it)).collect();
        if kept.is_empty() {
            return None;
        }
        let (mut before, mut behind) = (Vec::with_capacity(spans.len()), Vec::new());
        for span in spans {
            let Some(Keep { rows, .. }) = Keep::of(&kept, span) else {
                before.push(span.clone());
                continue;
            };
            let at = span.rows.start + rows;
            before.push(Span { rows: span.rows.start..at, ..span.clone() });
            let position = span.position + rows;
            behind.push(Span { rows: at..span.rows.end, position, ..span.clone() });
        }
        Some(Cut { before, behind, kept })
    }
}

#[cfg(test)]
mod tests {
    use super::{Cut, Keep};
    use crate::{Sequence, Span};

    #[test]
    fn spans_are_cut_where_states_are_kept_and_nowhere_else() {
        let span = |sequence, rows, position| Span { sequence: Sequence(sequence), rows, position };
        let spans = [span(0, 0..1, 7), span(1, 1..6, 20), span(2, 6..9, 0)];
        let keep = |sequence, rows| Keep { sequence: Sequence(sequence), rows, to: Sequence(9) };
        for nothing in [&[][..], &[keep(1, 0), keep(2, 3)], &[keep(0, 1)], &[keep(5, 1)]] {
            assert!(Keep::cut(nothing, &spans).is_none(), "{nothing:?}");
        }
        let kept = [keep(2, 1), keep(1, 2)];
        let cut = Keep::cut(&kept, &spans).expect("two are kept");
        let Cut { before, behind, kept } = cut;
        assert_eq!(before, [spans[0].clone(), span(1, 1..3, 20), span(2, 6..7, 0)]);
        assert_eq!(behind, [span(1, 3..6, 22), span(2, 7..9, 1)]);
        assert_eq!(kept, [keep(1, 2), keep(2, 1)]);
    }
}
