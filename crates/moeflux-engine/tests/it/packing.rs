//! Packing models of every family and format: what is kept gives the bits of
//! its source, and what is quantised costs what its bits are known to cost.

mod fp8;

use std::path::Path;

use moeflux_convert::pack::{PackOptions, PackReport};
use moeflux_convert::synth::{SynthFormat, SynthOptions, ToolFormat};
use moeflux_convert::{pack_checkpoint, synthesise};
use moeflux_engine::{Activations, Engine, EngineOptions, TokenId};
use moeflux_store::IoChoice;

use self::fp8::{Eights, fp8_checkpoint};
use crate::common::{Golden, cases, kl, logits_by_chunk};

fn pack(source: &Path, options: &PackOptions) -> (tempfile::TempDir, PackReport) {
    let dir = tempfile::tempdir().unwrap();
    let report = pack_checkpoint(source, dir.path(), options, &mut |_| {}).unwrap();
    (dir, report)
}

fn logits(dir: &Path, activations: Activations, tokens: &[TokenId]) -> Vec<f32> {
    let options = EngineOptions::default().activations(activations);
    logits_by_chunk(&Engine::open(dir, &options).unwrap(), tokens, usize::MAX)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[track_caller]
fn check_same_bits(source: &Path, packed: &Path) {
    let tokens = Golden::read(source).sequences.pop().unwrap().tokens;
    for activations in [Activations::Full, Activations::Int16] {
        let [want, got] = [source, packed].map(|model| logits(model, activations, &tokens));
        assert!(bits(&want) == bits(&got), "{}, {activations:?}", source.display());
    }
}

/// A case that is packed unquantised gives the bits of its source.
pub(crate) fn check(case: &Path) {
    let (dir, report) = pack(case, &PackOptions::unquantised());
    assert!(report.kinds.values().all(|kind| kind.signal == 0.0), "{:?}", report.kinds);
    if case.ends_with("gpt_oss-hf") || case.ends_with("qwen3_vl_moe-hf") {
        check_near(case, dir.path());
    } else {
        check_same_bits(case, dir.path());
    }
}

/// Formats of other tools than MLX, whose experts are in part converted when they are read: through
/// a small cache, mapped and packed they give the bits of the resident model.
#[test]
fn formats_of_other_tools_give_the_same_bits_streamed_and_packed() {
    use ToolFormat::{Awq, Fp4, Fp8, Gptq, Int4, Nvfp4};
    let tokens: Vec<TokenId> = (0..40).map(|i| TokenId(i * 37 % 97)).collect();
    for tool in [Nvfp4, Int4, Gptq, Awq, Fp8, Fp4] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("model");
        let format = SynthFormat::Tool(tool);
        let options = SynthOptions { format, ..SynthOptions::default() };
        synthesise("tiny", &out, &options, &mut |_| {}).unwrap();
        let (packed, report) = pack(&out, &PackOptions::unquantised());
        assert!(report.kinds.values().all(|kind| kind.signal == 0.0), "{tool:?}");
        for activations in [Activations::Full, Activations::Int16] {
            let want = bits(&logits(&out, activations, &tokens));
            assert!(want == bits(&logits(packed.path(), activations, &tokens)), "{tool:?}");
            for io in [IoChoice::Pread, IoChoice::Mmap] {
                let options = EngineOptions::default().activations(activations).expert_io(io);
                let got = logits_by_chunk(&Engine::open(&out, &options).unwrap(), &tokens, 7);
                assert!(want == bits(&got), "{tool:?}, {io:?}");
            }
        }
    }
}

/// For experts that the source stores column by column and the container row
/// by row.
fn check_near(source: &Path, packed: &Path) {
    let tokens = Golden::read(source).sequences.pop().unwrap().tokens;
    let [want, got] = [source, packed].map(|model| logits(model, Activations::Full, &tokens));
    let worst = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{}: {worst}", source.display());
}

#[test]
fn what_is_quantised_already_is_packed_as_it_is() {
    let mut n_kept = 0;
    for case in cases().iter().filter(|case| is_quantised(case)) {
        let (dir, report) = pack(case, &PackOptions::default());
        let is_kept = report.kinds.values().all(|kind| kind.signal == 0.0);
        assert!(is_kept || !is_gguf(case), "{}: {:?}", case.display(), report.kinds);
        if is_kept {
            check_same_bits(case, dir.path());
            n_kept += 1;
        }
    }
    assert!(n_kept >= 30, "{n_kept} cases");
}

fn is_gguf(case: &Path) -> bool {
    case.join("model.gguf").exists()
}

fn is_quantised(case: &Path) -> bool {
    if is_gguf(case) {
        return true;
    }
    // Not parsed: published configs hold `Infinity`, which is no JSON.
    let config = std::fs::read_to_string(case.join("config.json")).unwrap();
    ["\"quantization\"", "\"quantization_config\""].iter().any(|key| config.contains(key))
}

/// Mean divergence from `want` of the logits of `packed`.
fn divergence(packed: &Path, tokens: &[TokenId], want: &[f32]) -> f64 {
    kl(want, &logits(packed, Activations::Full, tokens), want.len() / tokens.len())
}

#[test]
fn eight_bit_floats_packed_to_fewer_bits_lose_what_those_bits_lose() {
    let [floats, control] = [Eights::Stored, Eights::Decoded].map(fp8_checkpoint);
    let tokens: Vec<TokenId> = (0..64).map(|i| TokenId(i * 37 % 97)).collect();
    let want = logits(floats.path(), Activations::Full, &tokens);
    assert!(divergence(control.path(), &tokens, &want) < 1e-9);
    let losses = [8, 4].map(|n_bits| {
        let options = PackOptions { gate_bits: None, ..PackOptions::with_bits(n_bits) };
        let (packed, report) = pack(floats.path(), &options);
        let (control, of_control) = pack(control.path(), &options);
        for kind in ["attention", "experts", "mlp", "shared experts"] {
            let [got, want] = [&report, &of_control].map(|report| &report.kinds[kind]);
            assert!(got.signal > 0.0 && got.signal == want.signal, "{kind}");
            assert!(got.noise == want.noise, "{kind}");
        }
        let [got, same] =
            [packed, control].map(|model| logits(model.path(), Activations::Full, &tokens));
        assert!(bits(&got) == bits(&same), "{n_bits} bits");
        kl(&want, &got, want.len() / tokens.len())
    });
    assert!(losses[0] * 4.0 < losses[1], "{losses:?}");
}
