//! Logits of small reference models, against those that transformers and
//! mlx-lm computed (`tools/golden`).

use crate::common::{Golden, cases, greedy, kl, logits_by_chunk};
use moeflux_engine::{Activations, Engine, EngineOptions};

/// Largest difference of a logit, the logits' standard deviation being about 2.
const MAX_DIFFERENCE: f32 = 2e-3;

fn exact() -> EngineOptions {
    options(Activations::Full)
}

fn options(activations: Activations) -> EngineOptions {
    EngineOptions::default().activations(activations)
}

#[test]
fn exact_logits_agree_with_the_reference_at_every_position() {
    for case in cases() {
        let golden = Golden::read(&case);
        let engine = Engine::open(&case, &exact()).unwrap();
        for (i, sequence) in golden.sequences.iter().enumerate() {
            let got = logits_by_chunk(&engine, &sequence.tokens, usize::MAX);
            assert_eq!(got.len(), sequence.logits.len());
            let differences = got.iter().zip(&sequence.logits).map(|(a, b)| (a - b).abs());
            let worst = differences.fold(0.0f32, f32::max);
            assert!(worst <= MAX_DIFFERENCE, "{}, sequence {i}: {worst}", case.display());
        }
    }
}

#[test]
fn greedy_continuations_agree_with_the_reference() {
    for case in cases() {
        let golden = Golden::read(&case);
        let engine = Engine::open(&case, &exact()).unwrap();
        let got = greedy(&engine, &golden.greedy_prompt, golden.greedy_tokens.len());
        assert_eq!(got, golden.greedy_tokens, "{}", case.display());
    }
}

#[test]
fn one_token_at_a_time_gives_the_bits_of_one_prefill() {
    for case in cases() {
        let golden = Golden::read(&case);
        for activations in [Activations::Full, Activations::Int16, Activations::Int8] {
            let engine = Engine::open(&case, &options(activations)).unwrap();
            for sequence in &golden.sequences {
                let whole = logits_by_chunk(&engine, &sequence.tokens, usize::MAX);
                for chunk in [1, 3] {
                    let parts = logits_by_chunk(&engine, &sequence.tokens, chunk);
                    let same = whole.iter().zip(&parts).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{}, chunks of {chunk}", case.display());
                }
            }
        }
    }
}

#[test]
fn rounded_activations_cost_less_than_the_reference_loses_in_bf16() {
    for case in cases() {
        let golden = Golden::read(&case);
        let engine = Engine::open(&case, &exact()).unwrap();
        let rounding = Engine::open(&case, &EngineOptions::default()).unwrap();
        for sequence in &golden.sequences {
            let want = logits_by_chunk(&engine, &sequence.tokens, usize::MAX);
            let got = logits_by_chunk(&rounding, &sequence.tokens, usize::MAX);
            let divergence = kl(&want, &got, engine.shape().vocab);
            let (name, limit) = (case.display(), sequence.bf16_kl);
            assert!(divergence <= limit, "{name}: KL {divergence:e}, in BF16 {limit:e}");
        }
    }
}
