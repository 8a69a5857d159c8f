//! Sources of FP8, of micro-scaled floats, and of symmetric integers.

use moeflux_core::checkpoint::{Dtype, MatrixBytes, MatrixSource};
use moeflux_core::manifest::MatrixDecl;
use moeflux_core::quant::{Float, MatrixView, MicroScaled};
use serde_json::json;
use std::path::PathBuf;

use super::*;
use crate::files::{TensorEntry, safetensors_header, write_atomically};

/// Bytes that are no NaN of E4M3.
fn codes(n: usize, seed: usize) -> Vec<u8> {
    let code = |i: usize| ((i * 7919 + seed * 104_729) % 251) as u8;
    (0..n).map(code).map(|code| if code & 0x7f == 0x7f { code ^ 1 } else { code }).collect()
}

const SIDE: usize = 48;

/// The tensors of one matrix in FP8.
fn fp8(decl: &MatrixDecl, all: &mut Vec<(TensorEntry, Vec<u8>)>) {
    let MatrixDecl { name, rows, cols, .. } = decl;
    let entry =
        |name: String, dtype, shape: [usize; 2]| TensorEntry { name, dtype, shape: shape.to_vec() };
    let blocks = [rows.div_ceil(SIDE), cols.div_ceil(SIDE)];
    let scale = |i: usize| 1e-3 * (1 + i % 5) as f32;
    let scales = (0..blocks[0] * blocks[1]).flat_map(|i| scale(i).to_le_bytes()).collect();
    let weight = codes(rows * cols, all.len());
    all.push((entry(format!("{name}.weight"), Dtype::F8E4M3, [*rows, *cols]), weight));
    let float = Dtype::Float(Float::F32);
    all.push((entry(format!("{name}.weight_scale_inv"), float, blocks), scales));
}

/// The tensors of one matrix as compressed-tensors packs integers of four bits.
fn symmetric(decl: &MatrixDecl, all: &mut Vec<(TensorEntry, Vec<u8>)>) {
    let MatrixDecl { name, rows, cols, .. } = decl;
    let entry = |part: &str, dtype, inner| TensorEntry {
        name: format!("{name}.{part}"),
        dtype,
        shape: vec![*rows, inner],
    };
    let weight = codes(rows * cols / 2, all.len());
    all.push((entry("weight_packed", Dtype::I32, cols / 8), weight));
    // Numbers near 0.005.
    let scale = |i: usize| (0x1c00 + (i * 7 % 512) as u16).to_le_bytes();
    let scales = (0..rows * cols / 64).flat_map(scale).collect();
    all.push((entry("weight_scale", Dtype::Float(Float::F16), cols / 64), scales));
}

/// As DeepSeek-V3 publishes: FP8 in blocks.
fn fp8_source(dir: &Path) -> PathBuf {
    let declared = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [SIDE, SIDE]});
    published(dir, declared, fp8)
}

/// Appends the tensors of a matrix.
type AddMatrix = fn(&MatrixDecl, &mut Vec<(TensorEntry, Vec<u8>)>);

/// A checkpoint of the small shape with projections in a published format, every expert by itself,
/// vectors and gates in BF16.
fn published(dir: &Path, declared: serde_json::Value, add: AddMatrix) -> PathBuf {
    let plain = open_checkpoint(&unquantised(dir)).unwrap();
    let manifest = manifest(&plain);
    let mut claims = Claims::new(&plain);
    let mut all = Vec::new();
    for decl in &manifest.matrices {
        let source = claims.matrix(decl).unwrap();
        if decl.name.contains("_proj") {
            add(decl, &mut all);
            continue;
        }
        let (name, shape) = (format!("{}.weight", decl.name), vec![decl.rows, decl.cols]);
        let entry = TensorEntry { name, dtype: Dtype::Float(Float::BF16), shape };
        all.push((entry, source.read(plain.reader()).unwrap().weight));
    }
    for decl in &manifest.vectors {
        let source = claims.vector(decl).unwrap();
        let dtype = Dtype::Float(source.float);
        let bytes = plain.reader().read(source.extent).unwrap();
        all.push((TensorEntry { name: decl.name.clone(), dtype, shape: source.shape }, bytes));
    }
    for decl in &manifest.experts {
        for e in 0..decl.n_experts {
            let parts = decl.matrices.names().shaped(decl.hidden, decl.intermediate);
            for ShapedPart { part, rows, cols } in parts {
                let name = format!("{}.experts.{e}.{part}", decl.prefix);
                let role = moeflux_core::manifest::Role::Projection;
                add(&MatrixDecl { name, rows, cols, role }, &mut all);
            }
        }
    }
    let mut config = plain.config().value().clone();
    config["quantization_config"] = declared;
    let out = dir.join("published");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("config.json"), config.to_string()).unwrap();
    let (entries, bytes): (Vec<TensorEntry>, Vec<Vec<u8>>) = all.into_iter().unzip();
    let file = [safetensors_header(&entries), bytes.concat()].concat();
    write_atomically(&out.join("model.safetensors"), &file).unwrap().publish().unwrap();
    out
}

/// Every resident matrix of a checkpoint.
fn matrices(path: &Path) -> Vec<(String, MatrixSource, MatrixBytes)> {
    let checkpoint = open_checkpoint(path).unwrap();
    let manifest = manifest(&checkpoint);
    let mut claims = Claims::new(&checkpoint);
    let read = |decl: &MatrixDecl| {
        let source = claims.matrix(decl).unwrap();
        (decl.name.clone(), source, source.read(checkpoint.reader()).unwrap())
    };
    manifest.matrices.iter().map(read).collect()
}

/// Elements differ by no more than half a step of their group of 64, and what
/// rounding the group's scale and bias to eight bits of mantissa moves.
#[track_caller]
fn check_within_a_step(name: &str, want: &MatrixView<'_>, got: &MatrixView<'_>) {
    let (mut a, mut b) = (vec![0.0; want.cols], vec![0.0; want.cols]);
    for row in 0..want.rows {
        want.decode_row(row, &mut a);
        got.decode_row(row, &mut b);
        for (a, b) in a.chunks(64).zip(b.chunks(64)) {
            let low = a.iter().copied().fold(f32::INFINITY, f32::min);
            let high = a.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let most = (high - low) / 255.0 + (high.abs() + low.abs()) * 2f32.powi(-8);
            let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
            assert!(worst <= most, "{name} row {row}: {worst} of {most}");
        }
    }
}

#[test]
fn fp8_becomes_integers_within_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (fp8_source(dir.path()), dir.path().join("packed"));
    let report = pack_to(&src, &dst, &PackOptions::with_bits(8)).unwrap();
    let error = report.kinds["experts"].relative_rms();
    assert!(error > 0.0 && error < 0.012, "{error}");
    verify(&dst, &mut |_| {}).unwrap();
    for ((name, a, a_bytes), (_, b, b_bytes)) in matrices(&src).iter().zip(&matrices(&dst)) {
        if a.format == b.format {
            assert!(["gate", "in_proj_a", "in_proj_b"].iter().any(|end| name.ends_with(end)));
            continue;
        }
        assert!(matches!(b.format, MatrixFormat::Affine(Affine { bits: 8, .. })), "{name}");
        check_within_a_step(name, &a_bytes.view(a), &b_bytes.view(b));
    }
    let container = open_checkpoint(&dst).unwrap();
    let layer = container.container().unwrap().layers[0].clone().unwrap();
    assert!(layer.formats().into_iter().all(|format| matches!(format, MatrixFormat::Affine(_))));
}

#[test]
fn fp8_may_stay_and_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (fp8_source(dir.path()), dir.path().join("packed"));
    let options = PackOptions::unquantised();
    pack_until(&src, &dst, &options, 0.6);
    assert!(pack_to(&src, &dst, &options).unwrap().n_resumed > 0);
    verify(&dst, &mut |_| {}).unwrap();
    assert_eq!(contents(&src), contents(&dst));
    let packed = open_checkpoint(&dst).unwrap();
    let layer = packed.container().unwrap().layers[0].clone().unwrap();
    assert!(layer.formats().into_iter().all(|format| matches!(format, MatrixFormat::Blocks(_))));
}

#[test]
fn micro_scaled_floats_stay_unless_bits_are_asked_for() {
    for case in ["mxfp4", "nvfp4", "mxfp8"] {
        let dir = tempfile::tempdir().unwrap();
        let src = golden(&format!("qwen3_moe-mlx-{case}"));
        let kept = dir.path().join("kept");
        let report = pack_to(&src, &kept, &PackOptions::default()).unwrap();
        assert_eq!(report.kinds["experts"].noise, 0.0, "{case}");
        verify(&kept, &mut |_| {}).unwrap();
        assert_eq!(contents(&src), contents(&kept), "{case}");
        let layer = open_checkpoint(&kept).unwrap().container().unwrap().layers[0].clone();
        let micro = MatrixFormat::Micro(MicroScaled::by_mode(case).unwrap());
        assert_eq!(layer.unwrap().formats(), ExpertParts::three([micro; 3]), "{case}");

        let changed = dir.path().join("changed");
        let options = PackOptions { requantise: true, group_size: 32, ..PackOptions::with_bits(8) };
        let report = pack_to(&src, &changed, &options).unwrap();
        let error = report.kinds["experts"].relative_rms();
        assert!(error > 0.0 && error < 0.01, "{case}: {error}");
        verify(&changed, &mut |_| {}).unwrap();
    }
}

#[test]
fn symmetric_integers_stay_without_biases() {
    let dir = tempfile::tempdir().unwrap();
    let declared = json!({"quant_method": "compressed-tensors", "format": "pack-quantized"});
    let src = published(dir.path(), declared, symmetric);
    let dst = dir.path().join("packed");
    pack_to(&src, &dst, &PackOptions::unquantised()).unwrap();
    verify(&dst, &mut |_| {}).unwrap();
    assert_eq!(contents(&src), contents(&dst));
    let format = MatrixFormat::Affine(Affine::symmetric(4, 64, Float::F16));
    let packed = open_checkpoint(&dst).unwrap();
    let layer = packed.container().unwrap().layers[0].clone().unwrap();
    assert_eq!(layer.formats(), ExpertParts::three([format; 3]));
    let kept = matrices(&dst);
    let (_, source, bytes) = kept.iter().find(|matrix| matrix.0.ends_with("q_proj")).unwrap();
    assert_eq!(source.format, format);
    assert!(bytes.biases.is_empty());
}
