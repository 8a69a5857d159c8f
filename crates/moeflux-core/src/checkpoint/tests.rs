//! Tests on whole checkpoints: golden ones of every format, and damaged ones.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::*;
use crate::dialects::Dialects;
use crate::manifest::{
    ExpertMatrices, ExpertsDecl, FusedOrder, Manifest, MatrixDecl, Role, VectorDecl,
};
use crate::quant::{Affine, Float, MatrixFormat};
use crate::{
    ExpertId, ExpertParts, ExtentSource, FileIdx, GateUp, LayerBank, LayerIdx, SourceFile,
};

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-engine/tests/golden").join(case)
}

/// Opens a checkpoint for families that add nothing to what all have.
fn open_checkpoint(path: &Path) -> Result<Checkpoint, FormatError> {
    Checkpoint::open(path, &Dialects::default())
}

/// The manifest of a Qwen3.5-MoE model, declared independently for these tests.
fn manifest(config: &Config) -> Manifest {
    let get = |key: &str| config.usize(key).expect(key);
    let (hidden, vocab, head_dim) = (get("hidden_size"), get("vocab_size"), get("head_dim"));
    let (q, kv) = (get("num_attention_heads"), get("num_key_value_heads"));
    let (n_v, v_dim) = (get("linear_num_value_heads"), get("linear_value_head_dim"));
    let (k_cols, v_cols) = (get("linear_num_key_heads") * get("linear_key_head_dim"), n_v * v_dim);
    let (channels, kernel) = (2 * k_cols + v_cols, get("linear_conv_kernel_dim"));
    let mut all = Manifest::default();
    let matrix = |name: String, rows, cols| MatrixDecl { name, rows, cols, role: Role::Projection };
    let vector = |name: String, len| VectorDecl { name, shapes: vec![vec![len]] };
    let tied = config.bool_or("tie_word_embeddings", false).unwrap();
    all.matrices.push(matrix("embed_tokens".into(), vocab, hidden));
    let head = if tied { "embed_tokens" } else { "lm_head" };
    all.matrices.push(matrix(head.into(), vocab, hidden));
    all.vectors.push(vector("norm.weight".into(), hidden));
    let n_layers = get("num_hidden_layers");
    let types = config.str_list("layer_types").unwrap();
    let interval = config.usize_or("full_attention_interval", 4).unwrap();
    for i in 0..n_layers {
        let full =
            types.as_ref().map_or((i + 1) % interval == 0, |types| types[i] == "full_attention");
        let at = |name: &str| format!("layers.{i}.{name}");
        all.vectors.push(vector(at("input_layernorm.weight"), hidden));
        all.vectors.push(vector(at("post_attention_layernorm.weight"), hidden));
        if full {
            all.matrices.push(matrix(at("self_attn.q_proj"), 2 * q * head_dim, hidden));
            all.matrices.push(matrix(at("self_attn.k_proj"), kv * head_dim, hidden));
            all.matrices.push(matrix(at("self_attn.v_proj"), kv * head_dim, hidden));
            all.matrices.push(matrix(at("self_attn.o_proj"), hidden, q * head_dim));
            all.vectors.push(vector(at("self_attn.q_norm.weight"), head_dim));
            all.vectors.push(vector(at("self_attn.k_norm.weight"), head_dim));
        } else {
            all.matrices.push(matrix(at("linear_attn.in_proj_qkv"), channels, hidden));
            all.matrices.push(matrix(at("linear_attn.in_proj_z"), v_cols, hidden));
            all.matrices.push(matrix(at("linear_attn.in_proj_a"), n_v, hidden));
            all.matrices.push(matrix(at("linear_attn.in_proj_b"), n_v, hidden));
            all.matrices.push(matrix(at("linear_attn.out_proj"), hidden, v_cols));
            let shapes = vec![vec![channels, 1, kernel], vec![channels, kernel, 1]];
            all.vectors.push(VectorDecl { name: at("linear_attn.conv1d.weight"), shapes });
            all.vectors.push(vector(at("linear_attn.A_log"), n_v));
            all.vectors.push(vector(at("linear_attn.dt_bias"), n_v));
            all.vectors.push(vector(at("linear_attn.norm.weight"), v_dim));
        }
        let shared = get("shared_expert_intermediate_size");
        all.matrices.push(matrix(at("mlp.gate"), get("num_experts"), hidden));
        all.matrices.push(matrix(at("mlp.shared_expert_gate"), 1, hidden));
        all.matrices.push(matrix(at("mlp.shared_expert.gate_proj"), shared, hidden));
        all.matrices.push(matrix(at("mlp.shared_expert.up_proj"), shared, hidden));
        all.matrices.push(matrix(at("mlp.shared_expert.down_proj"), hidden, shared));
        all.experts.push(experts(config, i));
    }
    all
}

fn experts(config: &Config, layer: usize) -> ExpertsDecl {
    ExpertsDecl {
        layer: LayerIdx(layer as u16),
        prefix: format!("layers.{layer}.mlp"),
        matrices: ExpertMatrices::Three {
            parts: ["gate_proj", "up_proj", "down_proj"],
            fused: FusedOrder::GateThenUp,
        },
        n_experts: config.usize("num_experts").unwrap(),
        hidden: config.usize("hidden_size").unwrap(),
        intermediate: config.usize("moe_intermediate_size").unwrap(),
    }
}

/// Claims everything, and checks that every extent is inside its file.
fn claim_all(checkpoint: &Checkpoint) -> Result<crate::ExpertBank, FormatError> {
    let manifest = manifest(checkpoint.config());
    let mut claims = Claims::new(checkpoint);
    for decl in &manifest.matrices {
        let source = claims.matrix(decl)?;
        let bytes = source.rows(0, 1).read(checkpoint.reader())?;
        assert_eq!(bytes.weight.len(), source.format.row_bytes(decl.cols), "{}", decl.name);
    }
    for decl in &manifest.vectors {
        let n: usize = decl.shapes[0].iter().product();
        assert_eq!(claims.vector(decl)?.read_f32(checkpoint.reader())?.len(), n, "{}", decl.name);
    }
    for decl in &manifest.experts {
        claims.experts(decl)?;
    }
    claims.finish()?;
    let bank = claims.into_bank();
    for layer in bank.layers.iter().flatten() {
        check_bounds(layer, &bank.files);
    }
    Ok(bank)
}

#[track_caller]
fn check_bounds(layer: &LayerBank, files: &[SourceFile]) {
    for (source, len) in layer.sources.iter().zip(&layer.layout.extents) {
        for e in 0..layer.n_experts {
            let (file, offset) = source.locate(ExpertId(e as u16));
            assert!(offset + *len as u64 <= files[file.0 as usize].len, "expert {e}");
        }
    }
}

#[track_caller]
fn check_golden(case: &str, want: MatrixFormat, n_extents: usize) {
    let dir = golden(case);
    let checkpoint = open_checkpoint(&dir).unwrap_or_else(|err| panic!("{case}: {err}"));
    let bank = claim_all(&checkpoint).unwrap_or_else(|err| panic!("{case}: {err}"));
    for layer in bank.layers.iter().flatten() {
        assert!(layer.layout.matrices().all(|matrix| matrix.format == want), "{case}");
        assert_eq!(layer.layout.extents.len(), n_extents, "{case}");
    }
}

fn affine(bits: u8, group_size: usize) -> MatrixFormat {
    MatrixFormat::Affine(Affine::new(bits, group_size, Float::BF16))
}

#[test]
fn claims_hugging_face_checkpoints() {
    check_golden("hf-bf16", MatrixFormat::Dense(Float::BF16), 2);
    check_golden("hf-f16", MatrixFormat::Dense(Float::F16), 2);
    check_golden("hf-text-per-expert", MatrixFormat::Dense(Float::F32), 3);
}

#[test]
fn claims_mlx_checkpoints_of_every_width() {
    for bits in [2, 3, 4, 5, 6, 8] {
        check_golden(&format!("mlx-q{bits}"), affine(bits, 64), 9);
    }
    check_golden("mlx-q4-g32", affine(4, 32), 9);
    check_golden("mlx-q4-g128", affine(4, 128), 9);
}

#[test]
fn fused_experts_have_gate_rows_before_up_rows() {
    let checkpoint = open_checkpoint(&golden("hf-bf16")).unwrap();
    let bank = claim_all(&checkpoint).unwrap();
    let layout = &bank.layers[0].as_ref().unwrap().layout;
    let (hidden, intermediate) = (72, 20);
    assert_eq!(layout.extents, [2 * intermediate * hidden * 2, hidden * intermediate * 2]);
    let GateUp::Split { gate, up } = &layout.gate_up else { panic!("{:?}", layout.gate_up) };
    assert_eq!(gate.weight.offset, 0);
    assert_eq!(up.weight.offset, intermediate * hidden * 2);
    assert_eq!((layout.down.rows, layout.down.cols), (hidden, intermediate));
}

#[test]
fn counts_what_is_left_aside() {
    let checkpoint = open_checkpoint(&golden("hf-bf16")).unwrap();
    assert_eq!(checkpoint.n_skipped(), 4);
    assert_eq!(checkpoint.tensors().keys().filter(|name| checkpoint.is_optional(name)).count(), 6);
}

#[test]
fn opens_by_any_file_of_a_checkpoint() {
    for file in ["config.json", "model.safetensors", "model.safetensors.index.json"] {
        assert!(open_checkpoint(&golden("mlx-q4").join(file)).is_ok(), "{file}");
    }
    assert!(open_checkpoint(&golden("mlx-q4").join("expected.json")).is_err());
}

/// A safetensors file of zeros.
pub(super) fn write_safetensors(path: &Path, tensors: &[(&str, &str, &[usize])]) {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let size = match *dtype {
            "U8" | "I8" | "F8_E4M3" | "F8_E8M0" => 1,
            "I64" => 8,
            _ if dtype.ends_with("16") => 2,
            _ => 4,
        };
        let start = end;
        end += shape.iter().product::<usize>() * size;
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert((*name).to_owned(), entry);
    }
    let json = Value::Object(header).to_string();
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.resize(bytes.len() + end, 0);
    fs::write(path, bytes).unwrap();
}

pub(super) fn small(config: Value, tensors: &[(&str, &str, &[usize])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    write_safetensors(&dir.path().join("model.safetensors"), tensors);
    dir
}

pub(super) fn decl(name: &str, rows: usize, cols: usize) -> MatrixDecl {
    MatrixDecl { name: name.into(), rows, cols, role: Role::Projection }
}

#[track_caller]
fn check_matrix_error(config: Value, tensors: &[(&str, &str, &[usize])], want: &str) {
    let dir = small(config, tensors);
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let got = Claims::new(&checkpoint).matrix(&decl("a", 2, 64)).unwrap_err().to_string();
    assert!(got.contains(want), "{got}");
}

#[test]
fn names_missing_tensors_and_wrong_shapes() {
    check_matrix_error(json!({}), &[], "tensor a.weight is missing");
    let weight: (&str, &str, &[usize]) = ("model.a.weight", "BF16", &[3, 64]);
    check_matrix_error(
        json!({}),
        &[weight],
        "tensor model.a.weight has shape [3, 64], the config asks for [2, 64]",
    );
    check_matrix_error(json!({}), &[("a.weight", "I32", &[])], "dtype I32 of a.weight");
    check_matrix_error(json!({}), &[("a.weight", "F32", &[])], "shape []");
}

#[test]
fn checks_quantised_shapes_against_each_other_and_the_config() {
    let weight: (&str, &str, &[usize]) = ("a.weight", "U32", &[2, 8]);
    let scales: (&str, &str, &[usize]) = ("a.scales", "BF16", &[2, 1]);
    let biases: (&str, &str, &[usize]) = ("a.biases", "BF16", &[2, 1]);
    let dir =
        small(json!({"quantization": {"bits": 4, "group_size": 64}}), &[weight, scales, biases]);
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let got = Claims::new(&checkpoint).matrix(&decl("a", 2, 64)).unwrap();
    assert_eq!(got.format, affine(4, 64));

    let block = json!({"quantization": {"bits": 4, "group_size": 64, "a": {"bits": 8}}});
    check_matrix_error(block, &[weight, scales, biases], "the config says 8 bits");
    check_matrix_error(json!({}), &[weight, scales], "a.biases is missing");
    check_matrix_error(
        json!({}),
        &[weight, ("a.scales", "BF16", &[2, 0]), biases],
        "columns × bits",
    );
    check_matrix_error(
        json!({}),
        &[weight, ("a.scales", "BF16", &[2, 4]), ("a.biases", "BF16", &[2, 4])],
        "groups of 16",
    );
    check_matrix_error(
        json!({}),
        &[("a.weight", "U32", &[2, 7]), scales, biases],
        "columns × bits",
    );
    check_matrix_error(json!({}), &[("a.weight", "U32", &[1, 8]), scales, biases], "[2, 8]");
    check_matrix_error(json!({}), &[("a.weight", "U32", &[2, 2]), scales, biases], "1 bits");
    check_matrix_error(json!({}), &[weight, scales, ("a.biases", "F32", &[2, 1])], "F32 biases");
}

#[test]
fn claims_stacks_of_matrices_as_one() {
    let stack: (&str, &str, &[usize]) = ("a.weight", "U32", &[2, 3, 8]);
    let scales: (&str, &str, &[usize]) = ("a.scales", "BF16", &[2, 3, 1]);
    let biases: (&str, &str, &[usize]) = ("a.biases", "BF16", &[2, 3, 1]);
    let dir = small(json!({}), &[stack, scales, biases]);
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let got = Claims::new(&checkpoint).matrix(&decl("a", 6, 64)).unwrap();
    assert_eq!((got.rows, got.weight.len, got.scales.len), (6, 6 * 32, 6 * 2));
    assert!(Claims::new(&checkpoint).matrix(&decl("a", 3, 64)).is_err());
    check_matrix_error(json!({}), &[("a.weight", "F32", &[2, 2, 64])], "asks for [2, 64]");
}

#[test]
fn names_tensors_that_nobody_claimed() {
    let one: &[usize] = &[1];
    let names = ["a.x", "b.x", "c.x", "d.x"].map(|name| (name, "F32", one));
    let dir = small(json!({}), &names);
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let mut claims = Claims::new(&checkpoint);
    claims.vector(&VectorDecl { name: "b.x".into(), shapes: vec![vec![1]] }).unwrap();
    let got = claims.finish().unwrap_err().to_string();
    assert!(got.ends_with("3 tensors are not part of this model family: a.x, c.x, d.x"), "{got}");
}

#[test]
fn refuses_two_tensors_of_one_meaning() {
    let one: &[usize] = &[1];
    let dir = small(json!({}), &[("model.a", "F32", one), ("a", "F32", one)]);
    let got = open_checkpoint(dir.path()).unwrap_err().to_string();
    assert!(got.contains("both mean a"), "{got}");
}

#[test]
fn refuses_indexes_that_leave_the_directory_or_lie() {
    let dir = small(json!({}), &[("a", "F32", &[1])]);
    for file in ["../x.safetensors", "/etc/passwd", "a/b", ""] {
        let index = json!({"weight_map": {"a": file}}).to_string();
        fs::write(dir.path().join(INDEX), index).unwrap();
        assert!(open_checkpoint(dir.path()).is_err(), "{file}");
    }
}

const INDEX: &str = "model.safetensors.index.json";

/// A checkpoint whose files have one tensor each, called `a`, `b` and so on, with an index.
fn with_index(files: &[&str], weight_map: Value) -> TempDir {
    let dir = small(json!({}), &[]);
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    for (nth, file) in (1..).zip(files) {
        let name = char::from(b'a' + nth - 1).to_string();
        write_safetensors(&dir.path().join(file), &[(&name, "F32", &[usize::from(nth)])]);
    }
    fs::write(dir.path().join(INDEX), json!({"weight_map": weight_map}).to_string()).unwrap();
    dir
}

#[test]
fn an_index_of_other_files_is_passed_over_where_a_whole_model_is_there() {
    let of_source = || {
        let names = (1..=3).map(|nth| format!("model-{nth:05}-of-00003.safetensors"));
        let map: Map<String, Value> =
            names.enumerate().map(|(nth, name)| (format!("old.{nth}"), json!(name))).collect();
        Value::Object(map)
    };
    let halves = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let dir = with_index(&halves, of_source());
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["a", "b"]);
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    let read = "weight_map names other files; the 2 files from model-00001-of-00002.safetensors on are read";
    assert!(warning.ends_with(read), "{warning}");
    // A part of either set is a download that is not complete.
    for files in [&halves[..1], &["model-00001-of-00003.safetensors"], &["extra.safetensors"]] {
        let got = open_checkpoint(with_index(files, of_source()).path()).unwrap_err().to_string();
        assert!(got.contains("which is not there; is the download complete?"), "{files:?}: {got}");
    }
    // A file that holds all comes before an index of others, also where these are there.
    let older = ["model.safetensors", halves[0]];
    for map in [of_source(), json!({"b": halves[0]})] {
        let checkpoint = open_checkpoint(with_index(&older, map).path()).unwrap();
        assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["a"]);
        let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
        assert!(
            warning.ends_with("model.safetensors is read alone, as transformers does"),
            "{warning}"
        );
    }
}

#[test]
fn tensors_are_found_where_the_index_does_not_have_them() {
    let files = ["x.safetensors", "y.safetensors"];
    let dir = with_index(
        &files,
        json!({"a": files[1], "b": files[0], "lost": files[0], "gone": files[0]}),
    );
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["a", "b"]);
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(
        warning.contains("puts gone in x.safetensors, which does not have it (nor 1 others)"),
        "{warning}"
    );
}

#[test]
fn the_index_decides_which_file_of_several_counts() {
    let dir = small(json!({}), &[("a", "F32", &[1]), ("b", "F32", &[0, 3])]);
    write_safetensors(&dir.path().join("other.safetensors"), &[("a", "BF16", &[2])]);
    let index_path = dir.path().join("model.safetensors.index.json");
    let open = |file: &str| {
        let index = json!({"weight_map": {"a": file, "b": "model.safetensors"}}).to_string();
        fs::write(&index_path, index).unwrap();
        open_checkpoint(dir.path())
    };
    for (file, shape) in [("model.safetensors", vec![1]), ("other.safetensors", vec![2])] {
        let checkpoint = open(file).unwrap();
        assert_eq!(checkpoint.tensors()["a"].shape, shape);
        let mut claims = Claims::new(&checkpoint);
        claims.vector(&VectorDecl { name: "a".into(), shapes: vec![shape] }).unwrap();
        claims.finish().expect("a tensor without elements is passed over");
    }
    let got = open("gone.safetensors").unwrap_err().to_string();
    let message = "index.json: weight_map names gone.safetensors, which is not there; is the";
    assert!(got.contains(message), "{got}");
}

#[test]
fn refuses_truncated_files_and_empty_directories() {
    let dir = small(json!({}), &[("a", "F32", &[100])]);
    let path = dir.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    for len in [0, 4, 8, 20, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        assert!(open_checkpoint(dir.path()).is_err(), "{len}");
    }
    let empty = tempfile::tempdir().unwrap();
    let got = open_checkpoint(empty.path()).unwrap_err();
    assert!(matches!(got, FormatError::NotACheckpoint { .. }), "{got}");
    fs::write(empty.path().join(Container::JOURNAL), "{}").unwrap();
    let got = open_checkpoint(empty.path()).unwrap_err();
    assert!(matches!(got, FormatError::Unfinished { .. }), "{got}");
}

/// Converts the golden MLX checkpoint as the tools of the original system do.
fn prepare(case: &str, dir: &Path, weights_dir: &str, config_dir: &str, experts_dir: &str) {
    let source = open_checkpoint(&golden(case)).unwrap();
    let bank = claim_all(&source).unwrap();
    let mut bin = Vec::new();
    let mut tensors = serde_json::Map::new();
    for tensor in source.tensors().values() {
        if tensor.stored_name.contains(".switch_mlp.") {
            continue;
        }
        bin.resize(bin.len().next_multiple_of(64), 0);
        let mut entry = json!({"offset": bin.len(), "size": tensor.extent.len,
            "shape": tensor.shape, "dtype": tensor.dtype.name()});
        if tensor.dtype == Dtype::U32 {
            entry["bits"] = json!(if tensor.stored_name.contains("gate.weight") { 8 } else { 4 });
        }
        let name = tensor.stored_name.strip_prefix("language_model.").unwrap();
        tensors.insert(name.to_owned(), entry);
        bin.extend(source.reader().read(tensor.extent).unwrap());
    }
    let at = |folder: &str| {
        fs::create_dir_all(dir.join(folder)).unwrap();
        dir.join(folder)
    };
    fs::write(at(weights_dir).join("model_weights.bin"), bin).unwrap();
    let index = json!({"model": "x", "num_tensors": tensors.len(), "tensors": tensors}).to_string();
    fs::write(at(weights_dir).join("model_weights.json"), index).unwrap();
    fs::copy(golden(case).join("config.json"), at(config_dir).join("config.json")).unwrap();
    for (i, layer) in bank.layers.iter().enumerate() {
        let bytes = records(&source, layer.as_ref().unwrap());
        fs::write(at(experts_dir).join(layer_file_name(i)), bytes).unwrap();
    }
}

/// The concatenated records of a layer.
fn records(source: &Checkpoint, layer: &LayerBank) -> Vec<u8> {
    let mut out = Vec::new();
    for e in 0..layer.n_experts {
        for (extent, len) in layer.sources.iter().zip(&layer.layout.extents) {
            let (file, offset) = extent.locate(ExpertId(e as u16));
            out.extend(source.reader().read(Extent { file, offset, len: *len }).unwrap());
        }
    }
    out
}

#[test]
fn opens_prepared_directories_flat_and_nested() {
    let layouts = [("", "", "packed_experts"), ("artifacts", "mlx", "root/packed_experts")];
    for (weights, config, experts) in layouts {
        let dir = tempfile::tempdir().unwrap();
        prepare("mlx-q4", dir.path(), weights, config, experts);
        let checkpoint = open_checkpoint(dir.path()).unwrap();
        assert_eq!(checkpoint.kind(), CheckpointKind::Prepared);
        let bank = claim_all(&checkpoint).unwrap();
        let layer = bank.layers[1].as_ref().unwrap();
        assert_eq!(layer.layout.extents.len(), 1);
        let record = layer.layout.record_bytes() as u64;
        let file = FileIdx(2);
        assert_eq!(layer.sources, [ExtentSource::Strided { file, base: 0, stride: record }]);
        let index = dir.path().join(weights).join("model_weights.json");
        assert!(open_checkpoint(&index).is_ok(), "{}", index.display());
    }
}

#[test]
fn prepared_layer_files_may_be_missing_but_not_short() {
    let dir = tempfile::tempdir().unwrap();
    prepare("mlx-q4", dir.path(), "", "", "packed_experts");
    let layer = dir.path().join("packed_experts").join(layer_file_name(1));
    let bytes = fs::read(&layer).unwrap();
    fs::remove_file(&layer).unwrap();
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let bank = claim_all(&checkpoint).unwrap();
    assert_eq!(bank.files[2], SourceFile::new(layer.clone(), bytes.len() as u64));
    fs::write(&layer, &bytes[1..]).unwrap();
    let got = claim_all(&checkpoint).unwrap_err().to_string();
    assert!(got.contains("layer_01.bin: "), "{got}");
}

#[test]
fn prepared_experts_may_have_two_bits() {
    let dir = tempfile::tempdir().unwrap();
    prepare("mlx-q2", dir.path(), "", "", "packed_experts_2bit");
    // The index that `prepare` writes declares four bits for resident weights.
    let path = dir.path().join("model_weights.json");
    let index = fs::read_to_string(&path).unwrap().replace("\"bits\":4", "\"bits\":2");
    fs::write(&path, index).unwrap();
    let bank = claim_all(&open_checkpoint(dir.path()).unwrap()).unwrap();
    assert_eq!(bank.layers[0].as_ref().unwrap().layout.down.format, affine(2, 64));
}

#[test]
fn refuses_prepared_tensors_outside_their_file() {
    let parse = |entry: Value| {
        let json = json!({"tensors": {"a": entry}}).to_string();
        parse_model_weights(Path::new("model_weights.json"), json.as_bytes(), 100)
    };
    let entry = |offset: u64, size: u64, shape: Value| json!({"offset": offset, "size": size, "shape": shape, "dtype": "F32"});
    assert!(parse(entry(60, 40, json!([10]))).is_ok());
    assert!(parse(entry(61, 40, json!([10]))).is_err());
    assert!(parse(entry(u64::MAX, 40, json!([10]))).is_err());
    assert!(parse(entry(0, 44, json!([10]))).is_err());
    assert!(parse(entry(0, 0, json!([u64::MAX, u64::MAX]))).is_err());
    assert!(parse(json!({"offset": 0, "size": 1, "shape": [1], "dtype": "I16"})).is_err());
}

mod container;
mod indices;
mod powers_of_two;
mod promised_parts;
mod published;
mod small_floats;
mod tables;
mod two_matrices;

#[test]
fn adapters_and_odd_prefixes_name_the_remedy() {
    let dir = small(json!({}), &[("base_model.model.model.norm.weight", "F32", &[1])]);
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let mut claims = Claims::new(&checkpoint);
    let decl = VectorDecl { name: "norm.weight".into(), shapes: vec![vec![1]] };
    let got = claims.vector(&decl).unwrap_err().to_string();
    let want = "tensor norm.weight is missing, there is base_model.model.model.norm.weight: save the model";
    assert!(got.contains(want), "{got}");
    let [own, of_adapter] =
        ["model.safetensors", "adapter_model.safetensors"].map(|name| dir.path().join(name));
    fs::rename(own, of_adapter).unwrap();
    for (config, base) in [
        (r#"{"base_model_name_or_path": "org/base"}"#, "into org/base ("),
        ("[]", "into its model ("),
    ] {
        fs::write(dir.path().join("adapter_config.json"), config).unwrap();
        let got = open_checkpoint(dir.path()).unwrap_err().to_string();
        assert!(
            got.contains("an adapter (LoRA), no model: merge it ") && got.contains(base),
            "{got}"
        );
    }
    // Some programs call the adapter's tensors as those of a model.
    let rename =
        |from: &str, to: &str| fs::rename(dir.path().join(from), dir.path().join(to)).unwrap();
    rename("adapter_model.safetensors", "model.safetensors");
    rename("config.json", "base_config.json");
    assert!(open_checkpoint(dir.path()).unwrap_err().to_string().contains("an adapter (LoRA)"));
}
