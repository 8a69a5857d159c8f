//! Matrices whose scales are powers of two, called `scale`: experts in pairs of small floats, and FP8.

use super::small_floats::{Tensors, claim_experts};
use super::*;
use crate::quant::{MicroScaled, ScaledBlocks};

/// As a config declares them, with the type of experts at its root, or where the rest is.
fn config(is_nested: bool) -> Value {
    let mut config = json!({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
        "scale_fmt": "ue8m0", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}});
    let place = if is_nested { &mut config["quantization_config"] } else { &mut config };
    place["expert_dtype"] = json!("fp4");
    config
}

const MATRICES: ExpertMatrices =
    ExpertMatrices::Three { parts: ["w1", "w3", "w2"], fused: FusedOrder::GateThenUp };

fn experts() -> ExpertsDecl {
    ExpertsDecl {
        layer: LayerIdx(0),
        prefix: "layers.0.mlp".into(),
        matrices: MATRICES,
        n_experts: 2,
        hidden: 64,
        intermediate: 96,
    }
}

/// The tensors of two experts, with scales of this type.
fn claim(is_nested: bool, dtypes: [&str; 2], down_groups: usize) -> Result<LayerBank, FormatError> {
    let mut named = Vec::new();
    for expert in 0..2 {
        for (part, rows, cols, groups) in
            [("w1", 96, 64, 2), ("w3", 96, 64, 2), ("w2", 64, 96, down_groups)]
        {
            let module = format!("layers.0.mlp.experts.{expert}.{part}");
            named.push((format!("{module}.weight"), dtypes[0], [rows, cols / 2]));
            named.push((format!("{module}.scale"), dtypes[1], [rows, groups]));
        }
    }
    let tensors: Vec<_> =
        named.iter().map(|(name, dtype, shape)| (&name[..], *dtype, &shape[..])).collect();
    claim_experts(config(is_nested), &tensors, &experts())
}

#[test]
fn pairs_of_small_floats_are_read_in_place() {
    for is_nested in [false, true] {
        for dtypes in [["I8", "F8_E8M0"], ["U8", "F8_E8M0"], ["I8", "U8"]] {
            let bank = claim(is_nested, dtypes, 3).unwrap();
            let mxfp4 = MatrixFormat::Micro(MicroScaled::MXFP4);
            assert!(bank.layout.matrices().all(|matrix| matrix.format == mxfp4));
            assert_eq!(bank.layout.extents, [96 * 32, 192, 96 * 32, 192, 64 * 48, 192]);
            // All are where the file has them: nothing is computed.
            let mut sources = bank.sources.iter();
            assert!(sources.all(|source| source.locate(ExpertId(1)).0 == FileIdx(0)));
        }
    }
}

#[test]
fn pairs_of_small_floats_with_other_scales_are_refused() {
    let got = claim(false, ["I8", "F8_E8M0"], 6).unwrap_err().to_string();
    assert!(got.contains("w2.scale has shape [64, 6], the config asks for [64, 3]"), "{got}");
    let got = claim(false, ["I8", "F32"], 3).unwrap_err().to_string();
    assert!(got.contains("w1.weight has shape [96, 32]"), "{got}");
}

#[test]
fn fp8_has_a_power_of_two_for_each_block() {
    let tensors: Tensors<'_> = &[
        ("a.weight", "F8_E4M3", &[300, 200]),
        ("a.scale", "F8_E8M0", &[3, 2]),
        ("hc_attn_scale", "F32", &[3]),
        ("hc_attn_fn", "F32", &[4, 8]),
    ];
    let dir = small(config(false), tensors);
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let extent = checkpoint.tensors()["a.scale"].extent;
    let path = dir.path().join("model.safetensors");
    let mut file = fs::read(&path).unwrap();
    file[extent.offset as usize..][..6].copy_from_slice(&[127, 128, 126, 130, 0, 254]);
    fs::write(&path, file).unwrap();
    let mut claims = Claims::new(&checkpoint);
    let source = claims.matrix(&decl("a", 300, 200)).unwrap();
    let blocks = ScaledBlocks::new(128, 128, Float::F32);
    assert_eq!(source.format, MatrixFormat::Blocks(blocks));
    let bytes = source.read(checkpoint.reader()).unwrap();
    let scales: Vec<f32> = (0..6).map(|i| Float::F32.read(&bytes.scales, i)).collect();
    assert_eq!(scales, [1.0, 2.0, 0.5, 8.0, 2f32.powi(-127), 2f32.powi(127)]);
    // Tensors whose names end alike belong to no matrix.
    let vector = VectorDecl { name: "hc_attn_scale".into(), shapes: vec![vec![3]] };
    claims.vector(&vector).unwrap();
    let left = claims.finish().unwrap_err().to_string();
    assert!(left.contains("hc_attn_fn") && !left.contains("hc_attn_scale"), "{left}");
}
