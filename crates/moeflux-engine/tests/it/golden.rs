//! Logits of small reference models, against those that transformers and
//! mlx-lm computed (`tools/golden`).

use std::path::Path;

use crate::common::{Golden, Sequence, greedy, kl, logits_by_chunk};
use moeflux_engine::{Activations, Engine, EngineOptions};

/// Largest difference of a logit, the logits' standard deviation being about 2.
const MAX_DIFFERENCE: f32 = 2e-3;

/// Logits and greedy continuations agree with the reference, and are the same however a text is cut.
pub(crate) fn check(case: &Path) {
    let golden = Golden::read(case);
    let open = |activations| {
        Engine::open(case, &EngineOptions::default().activations(activations)).unwrap()
    };
    let exact = open(Activations::Full);
    let got = greedy(&exact, &golden.greedy_prompt, golden.greedy_tokens.len());
    assert_eq!(got, golden.greedy_tokens, "greedy continuation");
    let [rounding, coarse] = [Activations::Int16, Activations::Int8].map(open);
    for (i, sequence) in golden.sequences.iter().enumerate() {
        let want = same_by_chunks(&exact, sequence);
        assert_eq!(want.len(), sequence.logits.len(), "sequence {i}");
        let differences = want.iter().zip(&sequence.logits).map(|(a, b)| (a - b).abs());
        let worst = differences.fold(0.0f32, f32::max);
        assert!(worst <= MAX_DIFFERENCE, "sequence {i}: {worst}");
        // Rounded activations cost less than the reference loses in BF16.
        let got = same_by_chunks(&rounding, sequence);
        let (divergence, limit) = (kl(&want, &got, exact.shape().vocab), sequence.bf16_kl);
        assert!(divergence <= limit, "sequence {i}: KL {divergence:e}, in BF16 {limit:e}");
        same_by_chunks(&coarse, sequence);
    }
}

/// The logits of a sequence: one token at a time gives the bits of one prefill.
#[track_caller]
fn same_by_chunks(engine: &Engine, sequence: &Sequence) -> Vec<f32> {
    let whole = logits_by_chunk(engine, &sequence.tokens, usize::MAX);
    for chunk in [1, 3] {
        let parts = logits_by_chunk(engine, &sequence.tokens, chunk);
        let same = whole.iter().map(|logit| logit.to_bits()).eq(parts.iter().map(|l| l.to_bits()));
        assert!(same, "chunks of {chunk}");
    }
    whole
}
