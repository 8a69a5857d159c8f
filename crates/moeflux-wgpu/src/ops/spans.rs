//! Spans of a few rows that share a dispatch, and recurrent states saved in the middle of a span.

use moeflux_backend::{Cache, Span, SplitSpans, StateSnapshot};

use crate::memory::caches::state_slots::State;
use crate::state::gpu::Wgpu;
use crate::words::word;

/// Rows of a span up to which a kernel goes through them one by one, where it
/// takes the place of several.
pub(crate) const FEW_ROWS: usize = 8;

/// Spans that one of the kernels for few rows goes through at once.
const MOST_SPANS: usize = 8;

/// Parameters of a span in a kernel for few rows: its first row, its number of rows, and the
/// indices of its states in their slabs.
pub(crate) type SpanWords = [u32; 4];

/// Parameters of a span that `delta_net/step.wgsl` takes in the upper halves of these words: after
/// how many rows the states are saved (0 for never), and the indices of the states that get them.
type KeptWords = [u32; 4];

/// Spans whose states are in the same slabs, for one kernel.
pub(crate) struct Together<const N: usize> {
    /// Those of the first span.
    pub(crate) states: [State; N],
    pub(crate) spans: Vec<SpanWords>,
    pub(crate) kept: Vec<KeptWords>,
}

/// Shares spans, of as many sequences, out among kernels for few rows, which need a
/// state of each cache, and keep some on the way.
pub(crate) fn together<'a, const N: usize>(
    b: &Wgpu,
    spans: impl Iterator<Item = &'a Span>,
    caches: [Cache; N],
    keep: &[StateSnapshot],
) -> Vec<Together<N>> {
    let mut all: Vec<Together<N>> = Vec::new();
    for span in spans {
        let states = caches.map(|cache| b.state(span.sequence, cache));
        let mut words = [word(span.rows.start), word(span.rows.len()), 0, 0];
        for (nth, state) in words[2..].iter_mut().zip(&states) {
            *nth = word(state.nth);
        }
        let mut kept = KeptWords::default();
        if let Some(StateSnapshot { rows, to, .. }) = StateSnapshot::of(keep, span) {
            kept[1] = word(rows);
            for (nth, cache) in kept[2..].iter_mut().zip(caches) {
                *nth = word(b.state(to, cache).nth);
            }
        }
        let goes_along = |together: &&mut Together<N>| {
            let mut slabs = together.states.iter().zip(&states);
            together.spans.len() < MOST_SPANS
                && slabs.all(|(one, other)| one.slab.id == other.slab.id)
        };
        match all.iter_mut().find(goes_along) {
            Some(together) => {
                together.spans.push(words);
                together.kept.push(kept);
            }
            None => all.push(Together { states, spans: vec![words], kept: vec![kept] }),
        }
    }
    all
}

/// Parameters with those of spans after them, as uniforms are.
pub(crate) fn with_spans(mut params: Vec<u32>, spans: &[SpanWords]) -> Vec<u32> {
    params.resize(params.len().next_multiple_of(4), 0);
    params.extend(spans.iter().flatten());
    params
}

/// The largest value of half a word.
pub(crate) const MOST_PACKED: usize = 0xffff;

/// Both in one.
pub(crate) fn packed(span: &SpanWords, kept: &KeptWords) -> SpanWords {
    let fits = |word: &u32| *word as usize <= MOST_PACKED;
    assert!(span.iter().chain(kept).all(fits), "few rows, and few states in a slab");
    std::array::from_fn(|i| span[i] | kept[i] << 16)
}

/// Runs an op over spans, and keeps what is to be kept of a cache on the way.
pub(crate) fn keeping(
    b: &mut Wgpu,
    cache: Cache,
    spans: &[Span],
    run: &dyn Fn(&mut Wgpu, &[Span]),
) {
    let Some(SplitSpans { before, after, snapshots }) = StateSnapshot::split(&b.keep, spans) else {
        return run(b, spans);
    };
    run(b, &before);
    for StateSnapshot { sequence, to, .. } in snapshots {
        let (from, to) = (b.state(sequence, cache), b.state(to, cache));
        from.copy_to(&mut b.encoder, &to);
    }
    run(b, &after);
}
