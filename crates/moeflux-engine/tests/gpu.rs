//! Every family on a GPU, software ones included: against the references, and
//! streamed against resident.
#![cfg(feature = "gpu")]

mod common;

use std::path::Path;

use common::{Golden, cases, greedy, kl, logits_by_chunk};
use moeflux_engine::{Activations, Device, Engine, EngineOptions, TokenId, devices};
use moeflux_store::IoChoice;

/// Largest difference of a logit, the logits' standard deviation being about 2:
/// as on the CPU, whose sums have another order.
const MAX_DIFFERENCE: f32 = 2e-3;

/// Options for the best GPU, or `None` where there is none.
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn options(activations: Activations) -> Option<EngineOptions> {
    if devices().iter().all(|it| it.lacks.is_some()) {
        println!("SKIP: this machine has no GPU that runs models");
        return None;
    }
    let device = Device::Gpu(None);
    Some(EngineOptions { device, activations, ..EngineOptions::default() })
}

#[test]
fn exact_logits_and_greedy_continuations_agree_with_the_reference() {
    let Some(exact) = options(Activations::Full) else { return };
    for case in cases() {
        let golden = Golden::read(&case);
        let engine = Engine::open(&case, &exact).unwrap();
        for (i, sequence) in golden.sequences.iter().enumerate() {
            let got = logits_by_chunk(&engine, &sequence.tokens, usize::MAX);
            assert_eq!(got.len(), sequence.logits.len());
            let differences = got.iter().zip(&sequence.logits).map(|(a, b)| (a - b).abs());
            let worst = differences.fold(0.0f32, f32::max);
            assert!(worst <= MAX_DIFFERENCE, "{}, sequence {i}: {worst}", case.display());
        }
        let got = greedy(&engine, &golden.greedy_prompt, golden.greedy_tokens.len());
        assert_eq!(got, golden.greedy_tokens, "{}", case.display());
    }
}

#[test]
fn rounded_activations_cost_less_than_the_reference_loses_in_bf16() {
    let Some(rounding) = options(Activations::Int16) else { return };
    for case in cases() {
        let golden = Golden::read(&case);
        let engine = Engine::open(&case, &rounding).unwrap();
        for sequence in &golden.sequences {
            let got = logits_by_chunk(&engine, &sequence.tokens, usize::MAX);
            let divergence = kl(&sequence.logits, &got, engine.shape().vocab);
            let (name, limit) = (case.display(), sequence.bf16_kl);
            assert!(divergence <= limit, "{name}: KL {divergence:e}, in BF16 {limit:e}");
        }
    }
}

fn bits(case: &Path, options: &EngineOptions, tokens: &[TokenId]) -> Vec<u32> {
    let engine = Engine::open(case, options).unwrap();
    let prefill = logits_by_chunk(&engine, tokens, usize::MAX);
    let decode = logits_by_chunk(&engine, tokens, 1);
    prefill.into_iter().chain(decode).map(f32::to_bits).collect()
}

#[test]
fn experts_that_are_streamed_give_the_bits_of_resident_ones() {
    let Some(options) = options(Activations::Int16) else { return };
    for case in cases() {
        let tokens = &Golden::read(&case).sequences.pop().unwrap().tokens;
        let resident = EngineOptions {
            expert_io: IoChoice::Mmap,
            device_cache: Some(u64::MAX),
            ..options.clone()
        };
        // One slot on the device, and a cache that holds little.
        let streamed = EngineOptions {
            expert_io: IoChoice::Pread,
            device_cache: Some(0),
            chunk: Some(Engine::open(&case, &resident).unwrap().plan().chunk),
            ..options.clone()
        };
        let same = bits(&case, &resident, tokens) == bits(&case, &streamed, tokens);
        assert!(same, "{}", case.display());
    }
}
