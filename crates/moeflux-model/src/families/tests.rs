//! What a family asks of the device, op by op.

use std::path::Path;

use moeflux_backend::trace::Trace;
use moeflux_backend::{ActivationPrecision, Sequences, Span};
use moeflux_core::{HostBuf, TokenId};
use moeflux_store::{CachePolicy, DEFAULT_READERS, ExpertStore, IoMode, Prefetch, StoreOptions};

use super::{Family, open_checkpoint};
use crate::load::Loader;
use crate::model::{Build, Variant};
use crate::moe_lists::MoeLists;
use crate::rows::NoRows;
use crate::step::Step;

/// The ops of one batch of a golden case.
fn trace(case: &str, tokens: &[u32]) -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-engine/tests/golden");
    let checkpoint = open_checkpoint(&golden.join(case)).unwrap();
    let mut trace = Trace::default();
    let progress = &mut |_| {};
    let mut loader = Loader::new(&checkpoint, &mut trace, ActivationPrecision::F32, progress);
    let mut build = Build {
        weights: &mut loader,
        max_rows: tokens.len(),
        inputs: ActivationPrecision::F32,
        variant: Variant::default(),
    };
    let family = Family::of(checkpoint.config()).unwrap();
    let model = family.build(checkpoint.config(), &mut build).unwrap();
    let options = StoreOptions {
        mode: IoMode::Pread,
        may_fall_back: false,
        cache_bytes: 1 << 30,
        shrinks_to: None,
        headroom: 0,
        max_pinned_bytes: None,
        policy: CachePolicy::Lru,
        n_readers: DEFAULT_READERS,
        prefetch: Prefetch::Off,
        allow_missing: false,
        top_k: model.shape().top_k,
    };
    let bank = loader.finish().unwrap().bank;
    let experts = ExpertStore::open(bank, Box::new(HostBuf::try_zeroed), options).unwrap();
    let sequence = trace.new_sequence(&model.shape().caches);
    let tokens: Vec<TokenId> = tokens.iter().map(|token| TokenId(*token)).collect();
    let spans = [Span::new(sequence, 0..tokens.len(), 0)];
    let mut step = Step {
        backend: &mut trace,
        experts: &experts,
        tokens: &tokens,
        embedded: &[],
        spans: &spans,
        recorder: None,
        observer: None,
        rows: &mut NoRows,
        lists: &mut MoeLists::default(),
    };
    model.forward(&mut step).unwrap();
    // Experts arrive in any order.
    let mut lines: Vec<&str> = Vec::new();
    let text = trace.take_text();
    for line in text.lines() {
        lines.push(line);
        let is_expert = |it: &&str| it.contains("= expert");
        let first = lines.len() - lines.iter().rev().take_while(|line| is_expert(line)).count();
        lines[first..].sort_unstable();
    }
    lines.join("\n")
}

/// From the routing of layer 0, full attention, to that of layer 1, a delta net.
const EXPECTED: &str = "\
b8[0..7] top 3 x2
b11[0..20] = swiglu b10[0..20] b10[20..40] x2
b12[0..40] = project w7 b11[0..20] x2
b9[0, 3] = expert 0 b1[0..40]
b9[1, 4] = expert 1 b1[0..40]
b9[2, 5] = expert 2 b1[0..40]
b0[0..40] += combine b9 shared x2
b1[0+1x40] = rms_norm b0[0+1x40] v7 x2
b6[0..256] = project w10 b1[0..40] x2
b6[256..448] = project w11 b1[0..40] x2
b6[448..454] = project w12 b1[0..40] x2
b6[454..460] = project w13 b1[0..40] x2
b5[0..256] = causal_conv b6[0..256] v5 c1 s0@0+2
b7[0+6x32] = delta_rule b5[0+2x16] b5[32+2x16] b5[64+6x32] b6[448..454] b6[454..460] c2 s0@0+2
b7[0+6x32] = gated_rms_norm b7[0+6x32] v4 b6[256+6x32] x2
b2[0..40] = project w14 b7[0..192] x2
b0[0..40] += b2[0..40] x2
b1[0+1x40] = rms_norm b0[0+1x40] v8 x2
b8[0..7] = project w19 b1[0..40] x2
b10[0..20] = project w15 b1[0..40] x2
b10[20..40] = project w16 b1[0..40] x2
b8[7..8] = project w18 b1[0..40] x2
";

#[test]
fn qwen3_5_moe_asks_for_exactly_this() {
    let text = trace("hf-text-per-expert", &[5, 6]);
    let n_layers = 3;
    assert_eq!(text.matches("route ").count(), n_layers, "one read-back a layer");
    let second_layer = text.split("route ").nth(1).unwrap();
    assert_eq!(second_layer, EXPECTED);
}
