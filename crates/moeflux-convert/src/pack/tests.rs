//! Packing, interrupted and not.

mod small_floats;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use moeflux_core::checkpoint::{CheckpointKind, Extent, Precision};
use moeflux_core::quant::{Affine, MatrixFormat};
use moeflux_core::{ExpertId, ExpertParts, ShapedPart};
use moeflux_model::{Declared, Variant, WithMtp};

use crate::synth::options::SynthOptions;
use crate::synth::{GgufMix, SynthFormat, synth};

use super::*;

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-engine/tests/golden").join(case)
}

fn manifest(checkpoint: &Checkpoint) -> Manifest {
    Declared::of(checkpoint, Variant::default()).expect("a known family").manifest
}

fn pack_to(src: &Path, dst: &Path, options: &PackOptions) -> Result<PackReport, PackError> {
    let checkpoint = open_checkpoint(src)?;
    pack(&checkpoint, &manifest(&checkpoint), None, dst, options, &mut |_| {})
}

/// A small BF16 checkpoint whose columns make whole groups.
fn unquantised(dir: &Path) -> PathBuf {
    let out = dir.join("source");
    let options = SynthOptions { bits: 16, n_layers: Some(4), ..SynthOptions::default() };
    let manifest_of = |config: &_| Ok(Declared::of_config(config, WithMtp::Never)?.manifest);
    synth("tiny", &out, &options, &manifest_of, &mut |_| {}).unwrap();
    out
}

/// Every record of every layer, extents joined, and every resident tensor.
fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = open_checkpoint(path).unwrap();
    let manifest = manifest(&checkpoint);
    let mut claims = Claims::new(&checkpoint);
    let mut all = BTreeMap::new();
    for decl in &manifest.matrices {
        let bytes = claims.matrix(decl).unwrap().read(checkpoint.reader()).unwrap();
        all.insert(decl.name.clone(), [bytes.weight, bytes.scales, bytes.biases].concat());
    }
    for decl in &manifest.vectors {
        let source = claims.vector(decl).unwrap();
        all.insert(decl.name.clone(), checkpoint.reader().read(source.extent).unwrap());
    }
    for decl in &manifest.experts {
        claims.experts(decl).unwrap();
    }
    let bank = claims.into_bank();
    let reader = moeflux_core::checkpoint::FileReader::new(&bank.files);
    for (i, layer) in bank.layers.iter().enumerate() {
        let Some(layer) = layer else { continue };
        for e in 0..layer.n_experts {
            let mut record = Vec::new();
            for (source, len) in layer.sources.iter().zip(&layer.layout.extents) {
                let (file, offset) = source.locate(ExpertId(e as u16));
                record.extend(reader.read(Extent { file, offset, len: *len }).unwrap());
            }
            all.insert(format!("expert {e} of {i}"), record);
        }
    }
    all
}

#[track_caller]
fn check_copied(case: &str) {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("packed");
    let report = pack_to(&golden(case), &dst, &PackOptions::unquantised()).unwrap();
    assert!(report.kinds.values().all(|kind| kind.noise == 0.0), "{case}");
    assert_eq!(open_checkpoint(&dst).unwrap().kind(), CheckpointKind::Packed);
    verify(&dst, &mut |_| {}).unwrap();
    let (want, got) = (contents(&golden(case)), contents(&dst));
    assert_eq!(want.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>(), "{case}");
    for (name, bytes) in &want {
        // Parts of a record may be stored in another order, not with others.
        assert_eq!(got[name], *bytes, "{case}: {name}");
    }
}

#[test]
fn quantised_sources_are_copied_byte_for_byte() {
    for bits in [2, 3, 4, 5, 6, 8] {
        check_copied(&format!("mlx-q{bits}"));
    }
    check_copied("mlx-q4-g32");
    check_copied("mlx-q4-g128");
}

#[test]
fn unquantised_sources_may_stay_so() {
    check_copied("hf-bf16");
    check_copied("hf-f16");
    check_copied("hf-text-per-expert");
}

#[test]
fn matrices_without_whole_groups_stay_unquantised() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("packed");
    let report = pack_to(&golden("hf-bf16"), &dst, &PackOptions::with_bits(4)).unwrap();
    assert_eq!(report.kinds["experts"].noise, 0.0);
    verify(&dst, &mut |_| {}).unwrap();
}

#[test]
fn packing_a_container_again_gives_the_same_files() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    pack_to(&golden("mlx-q4"), &one, &PackOptions::with_bits(4)).unwrap();
    pack_to(&one, &two, &PackOptions::with_bits(4)).unwrap();
    for file in [Container::RESIDENT, "packed_experts/layer_00.bin"] {
        assert_eq!(fs::read(one.join(file)).unwrap(), fs::read(two.join(file)).unwrap(), "{file}");
    }
}

#[test]
fn more_bits_mean_less_error() {
    let dir = tempfile::tempdir().unwrap();
    let src = unquantised(dir.path());
    let mut last = 1.0;
    // Of normal weights in groups of 64, about step / sqrt(12).
    for (bits, most) in [(2, 0.50), (3, 0.22), (4, 0.10), (5, 0.05), (6, 0.025), (8, 0.007)] {
        let dst = dir.path().join(bits.to_string());
        let report = pack_to(&src, &dst, &PackOptions::with_bits(bits)).unwrap();
        let error = report.kinds["experts"].relative_rms();
        assert!(error < most && error < last, "{bits} bits: {error}");
        assert!(report.kinds["attention"].relative_rms() < most, "{bits} bits");
        assert!(report.kinds["gates"].relative_rms() < 0.007, "{bits} bits");
        last = error;
    }
}

#[test]
fn kinds_have_bits_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let src = unquantised(dir.path());
    let dst = dir.path().join("packed");
    let options = PackOptions {
        expert_bits: Some(3),
        head_bits: Some(6),
        embedding_bits: None,
        group_size: 32,
        ..PackOptions::with_bits(4)
    };
    pack_to(&src, &dst, &options).unwrap();
    let checkpoint = open_checkpoint(&dst).unwrap();
    let container = checkpoint.container().unwrap();
    let bits = |format: MatrixFormat| match format {
        MatrixFormat::Affine(Affine { bits, group_size, .. }) => Some((bits, group_size)),
        _ => None,
    };
    let resident = |name: &str| bits(container.tensors[name].to_format());
    assert_eq!(resident("lm_head"), Some((6, 32)));
    assert_eq!(resident("embed_tokens"), None);
    assert_eq!(resident("layers.0.mlp.gate"), Some((8, 32)));
    assert_eq!(resident("layers.3.self_attn.o_proj"), Some((4, 32)));
    let layer = container.layers[0].as_ref().unwrap();
    assert_eq!(layer.formats().map(bits), ExpertParts::three([Some((3, 32)); 3]));
}

/// The formats of router, head and an expert's last projection in a GGUF file of blocks of four bits,
/// packed with these options.
fn packed_formats_of_gguf(options: &PackOptions) -> [Option<u8>; 3] {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("g"), dir.path().join("packed"));
    let mix = GgufMix::by_name("q4_k_m").unwrap();
    let synthetic = SynthOptions {
        format: SynthFormat::Gguf,
        mix,
        n_layers: Some(4),
        ..SynthOptions::default()
    };
    let manifest_of = |config: &_| Ok(Declared::of_config(config, WithMtp::Never)?.manifest);
    synth("tiny", &src, &synthetic, &manifest_of, &mut |_| {}).unwrap();
    assert_eq!(open_checkpoint(&src).unwrap().precision(), Precision::Floats, "no config says it");
    let report = pack_to(&src, &dst, options).unwrap();
    let checkpoint = open_checkpoint(&dst).unwrap();
    let container = checkpoint.container().unwrap();
    let bits = |format: MatrixFormat| match format {
        MatrixFormat::Affine(affine) => Some(affine.bits),
        _ => None,
    };
    let resident = |name: &str| bits(container.tensors[name].to_format());
    let ExpertParts { down, .. } = container.layers[0].as_ref().unwrap().formats();
    let formats = [resident("layers.0.mlp.gate"), resident("lm_head"), bits(down)];
    let is_copied = report.kinds.values().all(|kind| kind.signal == 0.0);
    assert_eq!(is_copied, formats == [None; 3], "{:?}", report.kinds);
    formats
}

#[test]
fn a_gguf_file_keeps_its_bits_but_for_those_that_are_asked_for() {
    let of = |asked: AskedBits, options: PackOptions| {
        packed_formats_of_gguf(&PackOptions { asked, ..options })
    };
    let (none, default) = (AskedBits::default(), PackOptions::default());
    assert_eq!(of(none, default.clone()), [None; 3]);
    let gates = AskedBits { gates: true, ..none };
    assert_eq!(of(gates, default.clone()), [Some(8), None, None]);
    let head = PackOptions { head_bits: Some(6), ..default.clone() };
    assert_eq!(of(AskedBits { head: true, ..none }, head), [None, Some(6), None]);
    let down = PackOptions { down_bits: Some(3), ..default.clone() };
    assert_eq!(of(AskedBits { down: true, ..none }, down), [None, None, Some(3)]);
    // All of it, except for routers, whose bits were not asked for.
    let all = PackOptions { requantise: true, ..PackOptions::with_bits(4) };
    assert_eq!(of(none, all.clone()), [None, Some(4), Some(4)]);
    assert_eq!(of(gates, all), [Some(8), Some(4), Some(4)]);
}

#[test]
fn bytes_do_not_depend_on_threads() {
    let dir = tempfile::tempdir().unwrap();
    let src = unquantised(dir.path());
    let pack = |n_threads| {
        let dst = dir.path().join(format!("packed-{n_threads}"));
        pack_to(&src, &dst, &PackOptions { n_threads, ..PackOptions::default() }).unwrap();
        contents(&dst)
    };
    assert_eq!(pack(1), pack(3));
}

/// Packs until that much is done, then stops as a crash would.
fn pack_until(src: &Path, dst: &Path, options: &PackOptions, share: f64) {
    let checkpoint = open_checkpoint(src).unwrap();
    let stop = &mut |progress: PackProgress<'_>| {
        if progress.done as f64 > share * progress.total as f64 {
            std::panic::resume_unwind(Box::new("stopped"));
        }
    };
    let manifest = manifest(&checkpoint);
    let run = AssertUnwindSafe(|| pack(&checkpoint, &manifest, None, dst, options, stop));
    catch_unwind(run).map(|done| done.map(|_| ())).expect_err("stopped on the way");
}

#[test]
fn an_interrupted_packing_does_not_open_and_continues() {
    let dir = tempfile::tempdir().unwrap();
    let src = unquantised(dir.path());
    let options = PackOptions::default();
    let whole = dir.path().join("whole");
    let whole_report = pack_to(&src, &whole, &options).unwrap();
    for share in [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99] {
        let dst = dir.path().join(format!("stopped-{share}"));
        pack_until(&src, &dst, &options, share);
        let got = open_checkpoint(&dst).unwrap_err();
        assert!(matches!(got, FormatError::Unfinished { .. }), "{share}: {got}");
        let report = pack_to(&src, &dst, &options).unwrap();
        assert_eq!(report.n_resumed > 0, share >= 0.3, "{share}: {}", report.n_resumed);
        assert_eq!(report.kinds, whole_report.kinds, "{share}");
        assert_eq!(contents(&dst), contents(&whole), "{share}");
        assert!(!dst.join(Container::JOURNAL).exists());
    }
}

#[test]
fn what_was_damaged_meanwhile_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let src = unquantised(dir.path());
    let (options, dst) = (PackOptions::default(), dir.path().join("packed"));
    pack_until(&src, &dst, &options, 0.9);
    let layer = dst.join("packed_experts/layer_01.bin");
    let mut bytes = fs::read(&layer).unwrap();
    bytes[777] ^= 1;
    fs::write(&layer, &bytes).unwrap();
    fs::remove_file(dst.join("packed_experts/layer_02.bin")).unwrap();
    let report = pack_to(&src, &dst, &options).unwrap();
    assert_eq!(report.n_resumed, 2);
    verify(&dst, &mut |_| {}).unwrap();
}

#[test]
fn refuses_to_mix_options_or_sources() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (unquantised(dir.path()), dir.path().join("packed"));
    pack_until(&src, &dst, &PackOptions::default(), 0.5);
    let got = pack_to(&src, &dst, &PackOptions::with_bits(3)).unwrap_err().to_string();
    assert!(got.contains("expert_bits was 4, now it is 3; force starts over"), "{got}");
    let file = src.join("model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let got = pack_to(&src, &dst, &PackOptions::default()).unwrap_err().to_string();
    assert!(got.contains("weights have changed"), "{got}");
    let force = PackOptions { force: true, ..PackOptions::with_bits(3) };
    assert_eq!(pack_to(&src, &dst, &force).unwrap().n_resumed, 0);
}

#[test]
fn refuses_directories_that_hold_something() {
    let dir = tempfile::tempdir().unwrap();
    let src = golden("mlx-q4");
    let options = PackOptions::default();
    fs::write(dir.path().join("mine"), "").unwrap();
    let force = PackOptions { force: true, ..options.clone() };
    for options in [&options, &force] {
        let got = pack_to(&src, dir.path(), options).unwrap_err();
        assert!(matches!(got, PackError::NotEmpty { .. }), "{got}");
    }
    let got = pack_to(&src, &src, &force).unwrap_err();
    assert!(matches!(got, PackError::SameDirectory { .. }), "{got}");
    let dst = dir.path().join("packed");
    pack_to(&src, &dst, &options).unwrap();
    let got = pack_to(&src, &dst, &options).unwrap_err();
    assert!(matches!(got, PackError::AlreadyPacked { .. }), "{got}");
    pack_to(&src, &dst, &force).unwrap();
}

#[test]
fn one_process_packs_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = open_checkpoint(&golden("mlx-q4")).unwrap();
    let dst = dir.path().join("packed");
    let lock = destination::claim(&checkpoint, &dst).unwrap();
    let got = pack_to(&golden("mlx-q4"), &dst, &PackOptions::default()).unwrap_err();
    assert!(matches!(got, PackError::Busy { .. }), "{got}");
    drop(lock);
    pack_to(&golden("mlx-q4"), &dst, &PackOptions::default()).unwrap();
    assert_eq!(dir.path().read_dir().unwrap().count(), 1, "the lock leaves nothing behind");
}

#[test]
fn verification_names_the_file_that_changed() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("packed");
    pack_to(&golden("mlx-q4"), &dst, &PackOptions::default()).unwrap();
    let path = dst.join("packed_experts/layer_01.bin");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let got = verify(&dst, &mut |_| {}).unwrap_err().to_string();
    assert!(got.contains("layer_01.bin: its checksum is"), "{got}");
    fs::write(&path, &bytes[1..]).unwrap();
    assert!(open_checkpoint(&dst).is_err());
    assert!(verify(&golden("mlx-q4"), &mut |_| {}).is_err());
}

#[test]
fn refuses_options_that_do_not_exist_and_weights_that_are_not_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (unquantised(dir.path()), dir.path().join("packed"));
    for options in [
        PackOptions::with_bits(7),
        PackOptions { group_size: 48, ..PackOptions::default() },
        PackOptions { gate_bits: Some(16), ..PackOptions::default() },
    ] {
        assert!(matches!(pack_to(&src, &dst, &options), Err(PackError::Option { .. })));
    }
    assert!(!dst.exists());
    let checkpoint = open_checkpoint(&src).unwrap();
    let down = &checkpoint.tensors()["layers.2.mlp.switch_mlp.down_proj.weight"];
    let file = src.join("model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    // The upper half of an infinite single.
    bytes[down.extent.offset as usize..][..2].copy_from_slice(&[0x80, 0x7f]);
    fs::write(&file, bytes).unwrap();
    let got = pack_to(&src, &dst, &PackOptions::default()).unwrap_err().to_string();
    let want =
        "element 0 of tensor language_model.model.layers.2.mlp.switch_mlp.down_proj.weight is inf";
    assert!(got.contains(want), "{got}");
}

#[test]
fn progress_ends_at_the_total() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = open_checkpoint(&golden("mlx-q4")).unwrap();
    let mut last = (0, 0);
    let advance = &mut |progress: PackProgress<'_>| last = (progress.done, progress.total);
    let dst = dir.path().join("packed");
    pack(&checkpoint, &manifest(&checkpoint), None, &dst, &PackOptions::default(), advance)
        .unwrap();
    assert_eq!(last.0, last.1);
    assert!(last.0 > 0);
}
