//! Latent attention far behind the positions that YaRN stretches, against
//! logits that transformers computed (`tools/golden/long_mla.py`).

use std::path::PathBuf;

use crate::common::{floats, golden_dir, ids};
use moeflux_engine::{Activations, Engine, EngineOptions, TokenId};
use safetensors::SafeTensors;

/// As in `golden.rs`.
const MAX_DIFFERENCE: f32 = 2e-3;

struct Long {
    tokens: Vec<TokenId>,
    positions: Vec<usize>,
    /// Of those positions.
    logits: Vec<f32>,
}

fn case() -> PathBuf {
    golden_dir().join("long-mla")
}

fn read() -> Long {
    let bytes = std::fs::read(case().join("long.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let view = |name| tensors.tensor(name).unwrap();
    Long {
        tokens: ids(&view("tokens")),
        positions: ids(&view("positions")).iter().map(|id| id.0 as usize).collect(),
        logits: floats(&view("logits")),
    }
}

/// Logits of those `long.positions` that `tokens`, its first ones, reach;
/// evaluated in calls of `call` tokens.
fn logits(long: &Long, tokens: &[TokenId], options: &EngineOptions, call: usize) -> Vec<f32> {
    let engine = Engine::open(&case(), options).unwrap();
    let mut session = engine.session();
    let mut all = Vec::new();
    for part in tokens.chunks(call) {
        let mut sink = |position: usize, logits: &[f32]| {
            if long.positions.contains(&position) {
                all.extend_from_slice(logits);
            }
            Ok(())
        };
        session.eval_all(part, &mut sink).unwrap();
    }
    all
}

#[test]
fn latent_attention_is_right_at_ten_thousand_positions() {
    let long = read();
    let exact = EngineOptions::default().activations(Activations::Full);
    let whole = logits(&long, &long.tokens, &exact, long.tokens.len());
    assert_eq!(whole.len(), long.logits.len());
    let differences = whole.iter().zip(&long.logits).map(|(a, b)| (a - b).abs());
    let worst = differences.fold(0.0f32, f32::max);
    assert!(worst <= MAX_DIFFERENCE, "{worst}");
    // A quarter of the work suffices to cross the end of the first context.
    let odd = exact.chunk(Some(97));
    let parts = logits(&long, &long.tokens[..5001], &odd, 1234);
    assert!(parts.len() > 5 * whole.len() / long.positions.len(), "positions behind 4096");
    let same = whole.iter().zip(&parts).all(|(a, b)| a.to_bits() == b.to_bits());
    assert!(same, "chunks change bits");
}
