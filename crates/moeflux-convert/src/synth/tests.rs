//! Random checkpoints hold together.

use std::collections::BTreeSet;

use moeflux_core::checkpoint::{CheckpointKind, Claims};
use moeflux_model::{Declared, Variant, WithMtp, open_checkpoint};

use crate::pack::{open_and_claim, verify};

use super::work_dir::MARKER;
use super::*;

fn manifest_of(config: &Config) -> Result<Manifest, Box<dyn Error + Send + Sync>> {
    Ok(Declared::of_config(config, WithMtp::Never)?.manifest)
}

fn make(out: &Path, options: &SynthOptions) -> Result<u64, SynthError> {
    synth("tiny", out, options, &manifest_of, &mut |_| {})
}

#[track_caller]
fn check_claims(out: &Path) {
    let checkpoint = open_checkpoint(out).unwrap();
    open_and_claim(out, &manifest_of(checkpoint.config()).unwrap()).unwrap();
}

/// A GGUF file says by its tensors in which of several forms weights are stored.
#[track_caller]
fn check_gguf(out: &Path, kind: &str) {
    let checkpoint = open_checkpoint(out).unwrap_or_else(|err| panic!("{kind}: {err}"));
    assert_eq!(checkpoint.kind(), CheckpointKind::Gguf);
    let declared = Declared::of(&checkpoint, Variant::default()).unwrap();
    open_and_claim(out, &declared.manifest).unwrap_or_else(|err| panic!("{kind}: {err}"));
}

#[test]
fn gguf_files_of_every_shape_and_mix_open_and_are_claimed_whole() {
    let dir = tempfile::tempdir().unwrap();
    let hollow = SynthOptions {
        format: SynthFormat::Gguf,
        is_hollow: true,
        n_layers: Some(4),
        ..SynthOptions::default()
    };
    let mut n_checked = 0;
    for shape in shape_names() {
        let out = dir.path().join(shape);
        match synth(shape, &out, &hollow, &manifest_of, &mut |_| {}) {
            Ok(_) => check_gguf(&out, shape),
            // Families that GGUF has no architecture for here.
            Err(SynthError::Format(err)) if err.to_string().ends_with("have GGUF files") => {
                continue;
            }
            Err(err) => panic!("{shape}: {err}"),
        }
        n_checked += 1;
    }
    assert!(n_checked >= 30, "{n_checked} shapes");
    for name in GgufMix::names() {
        let out = dir.path().join(name);
        let mix = GgufMix::by_name(&name.to_lowercase()).unwrap();
        make(&out, &SynthOptions { mix, ..hollow.clone() }).unwrap();
        check_gguf(&out, name);
    }
}

#[test]
fn a_split_gguf_file_has_the_tensors_of_a_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = |name: &str, part_bytes| {
        let out = dir.path().join(name);
        let format = SynthFormat::Gguf;
        make(&out, &SynthOptions { format, part_bytes, ..SynthOptions::default() }).unwrap();
        check_gguf(&out, name);
        let checkpoint = open_checkpoint(&out).unwrap();
        let read = |tensor: &moeflux_core::checkpoint::Tensor| {
            checkpoint.reader().read(tensor.extent).unwrap()
        };
        let tensors: Vec<_> = checkpoint.tensors().values().map(read).collect();
        (checkpoint.files().len(), tensors)
    };
    let ((n_whole, whole), (n_split, split)) =
        (tensors("whole", None), tensors("split", Some(300_000)));
    assert!(n_whole == 1 && n_split > 3, "{n_whole} and {n_split} files");
    assert!(whole == split);
}

#[test]
fn every_width_and_format_opens_and_is_claimed_whole() {
    let dir = tempfile::tempdir().unwrap();
    for bits in [2, 3, 4, 5, 6, 8, 16] {
        for format in [SynthFormat::Mlx, SynthFormat::Packed] {
            let out = dir.path().join(format!("{bits}-{format:?}"));
            let options = SynthOptions { bits, format, ..SynthOptions::default() };
            make(&out, &options).unwrap_or_else(|err| panic!("{bits} {format:?}: {err}"));
            check_claims(&out);
            let out = dir.path().join(format!("{bits}-{format:?}-mxfp4"));
            let options = SynthOptions { has_mxfp4_experts: true, ..options };
            make(&out, &options).unwrap_or_else(|err| panic!("{bits} {format:?}: {err}"));
            check_claims(&out);
        }
    }
}

#[test]
fn packed_checkpoints_pass_verification() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m");
    let options = SynthOptions { format: SynthFormat::Packed, ..SynthOptions::default() };
    make(&out, &options).unwrap();
    assert!(verify(&out, &mut |_| {}).unwrap() > 0);
    assert_eq!(open_checkpoint(&out).unwrap().kind(), CheckpointKind::Packed);
}

const TOOLS: [ToolFormat; 6] = [
    ToolFormat::Nvfp4,
    ToolFormat::Int4,
    ToolFormat::Gptq,
    ToolFormat::Awq,
    ToolFormat::Fp8,
    ToolFormat::Fp4,
];

#[test]
fn formats_of_other_tools_are_claimed_whole() {
    let dir = tempfile::tempdir().unwrap();
    for tool in TOOLS {
        let format = SynthFormat::Tool(tool);
        let out = dir.path().join(format!("{tool:?}"));
        make(&out, &SynthOptions { format, ..SynthOptions::default() }).unwrap();
        check_claims(&out);
        for shape in ["qwen3.6-35b-a3b", "deepseek-v3"] {
            let out = dir.path().join(format!("{tool:?}-{shape}"));
            let hollow = SynthOptions {
                format,
                is_hollow: true,
                n_layers: Some(4),
                ..SynthOptions::default()
            };
            synth(shape, &out, &hollow, &manifest_of, &mut |_| {}).unwrap();
            check_claims(&out);
        }
    }
}

#[test]
fn tables_are_claimed_whole_at_their_real_size_and_reduced() {
    let dir = tempfile::tempdir().unwrap();
    let formats = [
        (SynthFormat::Mlx, 16),
        (SynthFormat::Mlx, 4),
        (SynthFormat::Tool(ToolFormat::Fp8), 4),
        (SynthFormat::Tool(ToolFormat::Nvfp4), 4),
    ];
    for (i, (format, bits)) in formats.into_iter().enumerate() {
        for table_rows in [None, Some(1000)] {
            let out = dir.path().join(format!("{i}-{table_rows:?}"));
            let (n_layers, is_hollow) = (Some(2), true);
            let options = SynthOptions {
                format,
                bits,
                n_layers,
                table_rows,
                is_hollow,
                ..SynthOptions::default()
            };
            synth("qwen3.8-flash-next", &out, &options, &manifest_of, &mut |_| {}).unwrap();
            check_claims(&out);
        }
    }
}

#[test]
fn layers_before_those_with_tables_make_a_model_without_tables() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("made");
    let options = SynthOptions { n_layers: Some(1), is_hollow: true, ..SynthOptions::default() };
    synth("qwen3.8-flash-next", &out, &options, &manifest_of, &mut |_| {}).unwrap();
    check_claims(&out);
    let checkpoint = open_checkpoint(&out).unwrap();
    assert!(manifest_of(checkpoint.config()).unwrap().tables.is_empty());
}

/// The tables of a model and nothing else.
fn tables_of(config: &Config) -> Result<Manifest, Box<dyn Error + Send + Sync>> {
    let tables = manifest_of(config)?.tables;
    Ok(Manifest { tables, ..Manifest::default() })
}

/// The values of the first rows of the only table.
fn first_values(out: &Path) -> Vec<f32> {
    let checkpoint = open_checkpoint(out).unwrap();
    let manifest = tables_of(checkpoint.config()).unwrap();
    let table = Claims::new(&checkpoint).table(&manifest.tables[0]).unwrap();
    let mut values = vec![0.0; 64 * table.cols];
    let mut bytes = vec![0; table.row_bytes()];
    for (row, values) in values.chunks_mut(table.cols).enumerate() {
        let offset = table.parts[0].offset + (row * table.row_bytes()) as u64;
        checkpoint.reader().read_at(table.parts[0].file, offset, &mut bytes).unwrap();
        table.decode(&bytes, values);
    }
    values
}

#[test]
fn rows_of_tables_have_values_around_one_or_are_holes() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bits, has_sparse_tables) in
        [("full-16", 16, false), ("full-4", 4, false), ("sparse-4", 4, true)]
    {
        let out = dir.path().join(name);
        let table_rows = Some(if has_sparse_tables { 1_000_000 } else { 1000 });
        let has_vision = false;
        let options =
            SynthOptions { bits, table_rows, has_sparse_tables, has_vision, ..Default::default() };
        let made = synth("qwen3.8-flash-next", &out, &options, &tables_of, &mut |_| {}).unwrap();
        let values = first_values(&out);
        let mean_square =
            values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
        if has_sparse_tables {
            assert_eq!(mean_square, 0.0);
            assert!(made < 1 << 20, "{made} bytes were written");
        } else {
            assert!((0.8..1.3).contains(&mean_square), "{name}: {mean_square}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = |name: &str, seed| {
        let out = dir.path().join(name);
        make(&out, &SynthOptions { seed, n_layers: Some(1), ..SynthOptions::default() }).unwrap();
        fs::read(out.join("model-00001-of-00001.safetensors")).unwrap()
    };
    let first = bytes("a", 1);
    assert_eq!(first, bytes("b", 1));
    assert_ne!(first, bytes("c", 2));
}

#[test]
fn progress_ends_at_the_total() {
    let dir = tempfile::tempdir().unwrap();
    let tools = TOOLS.map(SynthFormat::Tool);
    for format in
        [SynthFormat::Mlx, SynthFormat::Packed, SynthFormat::Gguf].into_iter().chain(tools)
    {
        let mut last = (0, 0);
        let out = dir.path().join(format!("{format:?}"));
        let options = SynthOptions { format, ..SynthOptions::default() };
        let advance = &mut |progress: SynthProgress<'_>| last = (progress.done, progress.total);
        synth("tiny", &out, &options, &manifest_of, advance).unwrap();
        assert_eq!(last.0, last.1);
    }
}

#[test]
fn refuses_what_does_not_exist_and_what_is_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m");
    let options = SynthOptions::default();
    let got = synth("huge", &out, &options, &manifest_of, &mut |_| {}).unwrap_err();
    assert!(got.to_string().contains("qwen3.6-35b-a3b"), "{got}");
    assert!(make(&out, &SynthOptions { bits: 7, ..options.clone() }).is_err());
    assert!(make(&out, &SynthOptions { group_size: 48, ..options.clone() }).is_err());
    assert!(make(&out, &SynthOptions { n_layers: Some(0), ..options.clone() }).is_err());
    fs::create_dir(&out).unwrap();
    fs::write(out.join("x"), "x").unwrap();
    assert!(make(&out, &options).is_err());
    assert_eq!(dir.path().read_dir().unwrap().count(), 1);
}

#[test]
fn an_empty_directory_and_the_rest_of_a_killed_run_are_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let (out, partial) = (dir.path().join("m"), dir.path().join("m.partial"));
    fs::create_dir(&out).unwrap();
    fs::create_dir(&partial).unwrap();
    let options = SynthOptions { n_layers: Some(1), ..SynthOptions::default() };
    fs::write(partial.join("other"), "").unwrap();
    assert!(matches!(make(&out, &options), Err(SynthError::InTheWay { .. })));
    fs::write(partial.join(MARKER), "").unwrap();
    make(&out, &options).unwrap();
    assert!(!partial.exists() && !out.join(MARKER).exists());
    // Killed between the creation of the directory and that of the marker.
    fs::remove_dir_all(&out).unwrap();
    fs::create_dir(&partial).unwrap();
    make(&out, &options).unwrap();
    assert!(!partial.exists());
    check_claims(&out);
}

#[test]
fn real_shapes_have_the_sizes_of_the_models() {
    // Bytes of all experts at four bits, as the original system lists them.
    for (name, want) in [("qwen3.6-35b-a3b", 18.12e9), ("qwen3.5-397b-a17b", 217.43e9)] {
        let config = shapes::config(name, &SynthOptions::default()).unwrap();
        let config = Config::from_value(Path::new("config.json"), config).unwrap();
        let manifest = manifest_of(&config).unwrap();
        let options = SynthOptions::default();
        let of = |all: &[Made]| all.iter().map(|made| made.entry.n_bytes()).sum::<u64>();
        let experts = manifest.experts.iter().map(|expert| of(&plan::stacked(expert, &options)));
        let total = experts.sum::<u64>() as f64;
        assert!((total / want - 1.0).abs() < 1e-3, "{name}: {total}");
    }
}

#[test]
fn published_shapes_have_the_parameters_that_they_are_named_for() {
    // Billions, as their publishers count.
    let published = [
        ("deepseek-v2", 236.0),
        ("deepseek-v2-lite", 15.7),
        ("deepseek-v3", 671.0),
        ("deepseek-v3.2", 671.0),
        ("deepseek-v4-flash", 284.3),
        ("deepseek-v4-pro", 1600.0),
        ("kimi-k2", 1026.0),
        ("kimi-k2.5", 1026.0),
        ("kimi-linear-48b-a3b", 49.1),
        ("glm-5", 744.0),
        ("glm-5.3", 744.0),
        ("glm-5.3-flash", 313.3),
        ("glm-4.7-flash", 30.0),
        ("glm-4.5-air", 106.0),
        ("glm-4.5v", 106.0),
        ("glm-4.7", 355.0),
        ("gemma-4-26b-a4b", 25.23),
        ("qwen1.5-moe-a2.7b", 14.3),
        ("qwen2-57b-a14b", 57.4),
        ("qwen3-30b-a3b", 30.5),
        ("qwen3-235b-a22b", 235.0),
        ("qwen3-coder-480b-a35b", 480.0),
        ("qwen3-vl-30b-a3b", 30.5),
        ("qwen3-vl-235b-a22b", 235.0),
        ("qwen3-next-80b-a3b", 80.0),
        ("qwen3.8-flash-next", 176.94),
        ("hy3", 295.0),
        ("solar-open-100b", 102.65),
        ("k-exaone-236b-a23b", 236.0),
        ("nemotron-3-nano-30b-a3b", 31.6),
        ("nemotron-3-super-120b-a12b", 120.7),
        ("ernie-4.5-21b-a3b", 21.8),
        ("ling-lite", 16.8),
        ("ling-mini-2.0", 16.26),
        ("mixtral-8x7b", 46.7),
        ("minimax-m2", 229.0),
        ("olmoe-1b-7b", 6.92),
        ("granite-3.1-3b-a800m", 3.3),
        ("gpt-oss-20b", 20.9),
        ("gpt-oss-120b", 116.8),
    ];
    // Of these the names say no more than their own.
    let others =
        ["mid", "qwen3.5-397b-a17b", "qwen3.6-35b-a3b", "qwen3.8-2.4t-a95b", "tiny"].into_iter();
    let listed: BTreeSet<&str> = published.iter().map(|model| model.0).chain(others).collect();
    assert_eq!(listed, shapes::shape_names().collect::<BTreeSet<_>>());
    for (name, billions) in published {
        let config = shapes::config(name, &SynthOptions::default()).unwrap();
        let config = Config::from_value(Path::new("config.json"), config).unwrap();
        let manifest = manifest_of(&config).unwrap_or_else(|err| panic!("{name}: {err}"));
        let resident: usize =
            manifest.matrices.iter().map(|matrix| matrix.rows * matrix.cols).sum();
        let experts = manifest.experts.iter();
        let experts: usize = experts
            .map(|expert| {
                expert.matrices.names().into_iter().count()
                    * expert.n_experts
                    * expert.hidden
                    * expert.intermediate
            })
            .sum();
        let tables: usize = manifest.tables.iter().map(|table| table.rows * table.cols).sum();
        let have = (resident + experts + tables) as f64 / 1e9;
        assert!((have / billions - 1.0).abs() < 0.025, "{name}: {have} of {billions} billion");
    }
}

#[test]
fn published_shapes_open_and_are_claimed_whole() {
    let dir = tempfile::tempdir().unwrap();
    for name in shapes::shape_names() {
        let out = dir.path().join(name);
        let options =
            SynthOptions { is_hollow: true, n_layers: Some(4), ..SynthOptions::default() };
        synth(name, &out, &options, &manifest_of, &mut |_| {})
            .unwrap_or_else(|err| panic!("{name}: {err}"));
        check_claims(&out);
    }
}
