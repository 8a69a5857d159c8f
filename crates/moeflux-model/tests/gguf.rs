//! GGUF files of every architecture against what its family declares: nothing is missing, nothing
//! left over, and one line for what cannot be.

#[path = "gguf/compressed.rs"]
mod compressed;
#[path = "gguf/delta.rs"]
mod delta;
#[path = "gguf/hostile.rs"]
mod hostile;
#[path = "gguf/kimi.rs"]
mod kimi;
#[path = "gguf/models.rs"]
mod models;
#[path = "gguf/ollama.rs"]
mod ollama;
#[path = "gguf/streams.rs"]
mod streams;
#[path = "gguf/translation.rs"]
mod translation;
#[path = "../../moeflux-core/src/gguf/tests/writer.rs"]
#[expect(dead_code, reason = "tests of damaged files use the rest")]
mod writer;

use moeflux_backend::ActivationPrecision;
use moeflux_backend::trace::Trace;
use moeflux_core::checkpoint::Checkpoint;
use moeflux_core::quant::BlockType;
use moeflux_core::{ExpertBank, ExpertId, GateUp, RowEncoding};
use moeflux_model::{
    Build, Declared, Family, LoadError, Loader, Variant, bank, open_checkpoint, row_bank,
};

use models::{ARCHITECTURES, EXPERTS, HIDDEN, INTERMEDIATE, model, model_with};
use writer::{F32, GgufWriter, StoredTensor};

/// A model whose tensors were all claimed.
struct Claimed {
    declared: Declared,
    bank: ExpertBank,
}

/// Writes a file, opens it, and passes it on.
fn with_file<T>(file: &GgufWriter, work: impl FnOnce(&Checkpoint) -> T) -> Result<T, LoadError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    file.write(&path);
    Ok(work(&open_checkpoint(&path)?))
}

fn claim(file: &GgufWriter) -> Result<Claimed, LoadError> {
    with_file(file, |checkpoint| {
        let declared = Declared::of(checkpoint, Variant::default())?;
        let bank = bank(checkpoint, &declared)?;
        Ok(Claimed { declared, bank })
    })?
}

/// What [`claim`] gives, which must not fail.
#[track_caller]
fn claimed(file: &GgufWriter, case: &str) -> Claimed {
    claim(file).unwrap_or_else(|err| panic!("{case}: {err}"))
}

/// The line of an error, without the folder of its file.
fn line(err: &LoadError) -> String {
    let text = err.to_string();
    assert!(!text.contains('\n'), "{text}");
    let (_, rest) = text.split_once("m.gguf").expect("the name of the file");
    format!("m.gguf{rest}")
}

#[test]
fn families_take_every_tensor_of_their_architectures() {
    for architecture in ARCHITECTURES {
        let got = claimed(&model(architecture), architecture);
        let shape = &got.declared.shape;
        assert!(!shape.has_mtp(), "{architecture}");
        assert_eq!(shape.n_layers, 2);
        assert_eq!(got.bank.layers.iter().flatten().count(), shape.n_moe_layers);
    }
}

#[test]
fn layers_for_multi_token_prediction_are_used_where_the_family_can() {
    for (architecture, is_used) in [
        ("bailingmoe2", false),
        ("deepseek2", true),
        ("deepseek32", false),
        ("deepseek4", false),
        ("exaone-moe", false),
        ("hy_v3", true),
        ("glm-dsa", false),
        ("glm4moe", true),
        ("qwen35moe", true),
        ("qwen3next", true),
    ] {
        let mut file = model_with(architecture, 1);
        assert_eq!(claimed(&file, architecture).declared.shape.has_mtp(), is_used);
        // A file may declare the layer and not have it.
        file.tensors.retain(|tensor| !tensor.name.starts_with("blk.2."));
        assert!(!claimed(&file, architecture).declared.shape.has_mtp(), "{architecture}");
    }
}

#[test]
fn a_head_may_be_the_embedding() {
    for architecture in ARCHITECTURES {
        let mut file = model(architecture);
        file.tensors.retain(|tensor| tensor.name != "output.weight");
        let got = claimed(&file, architecture);
        assert!(!got.declared.manifest.matrices.iter().any(|decl| decl.name == "lm_head"));
    }
}

fn tensors_called(file: &GgufWriter, end: &str) -> Vec<StoredTensor> {
    file.tensors.iter().filter(|tensor| tensor.name.ends_with(end)).cloned().collect()
}

/// The file with the gate and up rows of experts in one tensor.
fn with_fused_experts(file: &GgufWriter) -> GgufWriter {
    let mut file = file.clone();
    for gate in tensors_called(&file, "ffn_gate_exps.weight") {
        let up_name = gate.name.replace("gate", "up");
        let up = file.tensor_mut(&up_name).bytes.clone();
        let n = INTERMEDIATE * HIDDEN * 4;
        let pairs = gate.bytes.chunks(n).zip(up.chunks(n));
        let bytes = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
        file.tensors.retain(|tensor| tensor.name != gate.name && tensor.name != up_name);
        let name = gate.name.replace("gate", "gate_up");
        file.tensor(&name, &[EXPERTS, 2 * INTERMEDIATE, HIDDEN], F32, bytes);
    }
    file
}

/// The matrices of an expert of the second layer, and in how many reads it comes.
fn expert(file: &GgufWriter, case: &str) -> (usize, [Vec<u8>; 3]) {
    let bytes = file.to_bytes();
    let layer = claimed(file, case).bank.layers[1].clone().expect("experts");
    let GateUp::Split { gate, up } = layer.layout.gate_up else { panic!("two matrices") };
    let parts = [gate, up, layer.layout.down].map(|matrix| {
        let (_, at) = layer.sources[matrix.weight.extent].locate(ExpertId(3));
        let start = at as usize + matrix.weight.offset;
        bytes[start..start + matrix.weight.len].to_vec()
    });
    (layer.layout.extents.len(), parts)
}

#[test]
fn gate_and_up_of_one_tensor_are_two_matrices_of_one_read() {
    for architecture in ARCHITECTURES {
        // Biases are apart, or there are no gates.
        if ["gpt-oss", "nemotron_h_moe"].contains(&architecture) {
            continue;
        }
        let apart = model(architecture);
        let (n_apart, want) = expert(&apart, architecture);
        let (n_fused, got) = expert(&with_fused_experts(&apart), architecture);
        assert_eq!(got, want, "{architecture}");
        assert_eq!((n_apart, n_fused), (3, 2));
    }
}

#[test]
fn experts_may_have_tensors_of_their_own() {
    for (architecture, n_layers) in [("llama", 2), ("qwen3moe", 2), ("glm4moe", 1)] {
        let mut file = model(architecture);
        let (_, want) = expert(&file, architecture);
        for stack in tensors_called(&file, "_exps.weight") {
            let shape: Vec<usize> = stack.dims[..2].iter().rev().map(|dim| *dim as usize).collect();
            let n_bytes = stack.bytes.len() / EXPERTS;
            for (expert, bytes) in stack.bytes.chunks(n_bytes).enumerate() {
                let name = stack.name.replace("_exps", &format!(".{expert}"));
                file.tensor(&name, &shape, F32, bytes.to_vec());
            }
        }
        file.tensors.retain(|tensor| !tensor.name.ends_with("_exps.weight"));
        assert_eq!(expert(&file, architecture).1, want);
        let bank = claimed(&file, architecture).bank;
        assert_eq!(bank.layers.iter().flatten().count(), n_layers);
    }
}

/// Refused with this text after the file's name.
#[track_caller]
fn check(architecture: &str, edit: impl FnOnce(&mut GgufWriter), want: &str) {
    let mut file = model(architecture);
    edit(&mut file);
    let err = claim(&file).err().expect("refused");
    assert_eq!(line(&err), format!("m.gguf: {want}"));
}

#[test]
fn refuses_counts_that_cannot_be() {
    let set = |key: &'static str, value: u32| {
        move |file: &mut GgufWriter| {
            file.u32(key, value);
        }
    };
    let used = "qwen3moe.expert_used_count";
    let want = format!("{used} is 1000; it must be at most qwen3moe.expert_count");
    check("qwen3moe", set(used, 1000), &want);
    let want = format!("{used} is 0; it must be a whole number from 1 to 1024");
    check("qwen3moe", set(used, 0), &want);
    let count = "qwen3moe.expert_count";
    let want = format!("{count} is 1000000; it must be a whole number from 1 to 65535");
    check("qwen3moe", set(count, 1_000_000), &want);
    let hidden = "qwen3moe.embedding_length";
    let want = format!("{hidden} is 0; it must be a whole number from 1 to 131072");
    check("qwen3moe", set(hidden, 0), &want);
    let heads = "qwen3moe.attention.head_count_kv";
    let want = format!("{heads} is 3; it must divide qwen3moe.attention.head_count");
    check("qwen3moe", set(heads, 3), &want);
    let groups = "glm4moe.expert_group_count";
    let want = format!("{groups} is 3; it must divide the experts into groups of two and more");
    check("glm4moe", set(groups, 3), &want);
    let dense = "deepseek2.leading_dense_block_count";
    let want = format!("{dense} is 2; it must be a whole number from 0 to 1");
    check("deepseek2", set(dense, 2), &want);
}

#[test]
fn refuses_tensors_that_are_missing_left_over_or_of_other_shapes() {
    let without = |part: &'static str| {
        move |file: &mut GgufWriter| file.tensors.retain(|tensor| !tensor.name.contains(part))
    };
    let missing = |name: &str| format!("tensor {name} is missing; is the download complete?");
    check("qwen3moe", without("blk.1.ffn_up_exps"), &missing("blk.1.ffn_up_exps.weight"));
    check("qwen3moe", without("blk.1.ffn_gate_exps"), &missing("blk.1.ffn_gate_exps.weight"));
    check("qwen35moe", without("blk.0.ssm_conv1d"), &missing("blk.0.ssm_conv1d.weight"));
    check("glm4moe", without("blk.0.post_att"), &missing("blk.0.post_attention_norm.weight"));
    check("deepseek2", without("blk.1.exp_probs_b"), &missing("blk.1.exp_probs_b.bias"));
    check("deepseek2", without("token_embd"), &missing("token_embd.weight"));
    let extra = |file: &mut GgufWriter| {
        file.floats("blk.0.unknown.weight", &[32], &[0.0; 32]);
    };
    let want = "1 tensors are not part of this model family: blk.0.unknown.weight";
    check("qwen3moe", extra, want);
    let shorter = |file: &mut GgufWriter| {
        let stack = file.tensor_mut("blk.0.ffn_up_exps.weight");
        stack.dims[1] -= 1;
        let n = stack.dims.iter().product::<u64>() as usize * 4;
        stack.bytes.truncate(n);
    };
    let want = "tensor blk.0.ffn_up_exps.weight has shape [4, 5, 8], the config asks for [4, 6, 8]";
    check("qwen3moe", shorter, want);
}

/// Loads a model onto no device.
fn load(file: &GgufWriter) -> Result<(), LoadError> {
    with_file(file, |checkpoint| {
        let (mut trace, progress) = (Trace::default(), &mut |_| {});
        let mut loader = Loader::new(checkpoint, &mut trace, ActivationPrecision::F32, progress);
        let variant = Variant::default();
        let inputs = ActivationPrecision::F32;
        let mut build = Build { weights: &mut loader, max_rows: 1, inputs, variant };
        Family::of(checkpoint.config())?.build(checkpoint.config(), &mut build)?;
        loader.finish().map(drop)
    })?
}

/// The type `Q8_0`: blocks of 32 columns, each a scale of two bytes and codes of one.
const Q8_0: u32 = 8;

#[test]
fn tables_stay_on_the_drive_in_any_type() {
    let name = "per_layer_token_embd.weight";
    let table = |file: &GgufWriter| {
        with_file(file, |checkpoint| {
            let declared = Declared::of(checkpoint, Variant::default())?;
            let bank = row_bank(checkpoint, &declared)?;
            let part = bank.tables[0].extents().next().expect("one tensor");
            Ok::<_, LoadError>((bank.tables[0].clone(), checkpoint.reader().read(part)?))
        })
    };
    let mut file = model("qwen4exp");
    let (floats, _) = table(&file).unwrap().unwrap();
    assert_eq!((floats.rows(), floats.cols, floats.row_bytes()), (12, 32, 128));
    let rows = 0..floats.rows() as u8;
    // Each row has its number as codes, and a scale of a half.
    let row = |row: u8| [0x00, 0x38].into_iter().chain(std::iter::repeat_n(row, 32));
    file.tensors.retain(|tensor| tensor.name != name);
    file.tensor(name, &[rows.len(), 32], Q8_0, rows.flat_map(row).collect());
    let (blocks, bytes) = table(&file).unwrap().unwrap();
    assert_eq!((blocks.encoding, blocks.row_bytes()), (RowEncoding::Ggml(BlockType::Q8_0), 34));
    let mut out = [0.0; 32];
    blocks.decode(&bytes[3 * 34..4 * 34], &mut out);
    assert_eq!(out, [1.5; 32]);
    let resident = claimed(&file, "blocks").declared.manifest.matrices;
    assert!(resident.iter().all(|decl| !decl.name.contains("ngram_embedding")));
    let odd = file.tensor_mut(name);
    (odd.dims, odd.bytes) = (vec![64, 12], vec![0; 24 * 34]);
    let err = claim(&file).err().expect("refused");
    let want =
        "tensor per_layer_token_embd.weight has shape [12, 64], the config asks for [12, 32]";
    assert_eq!(line(&err), format!("m.gguf: {want}"));
}

#[test]
fn rates_of_decay_are_not_above_zero() {
    for architecture in ["qwen35moe", "qwen3next", "nemotron_h_moe", "kimi-linear", "glm5-next"] {
        let mut file = model(architecture);
        load(&file).unwrap();
        file.tensor_mut("blk.0.ssm_a").bytes[4..8].copy_from_slice(&0f32.to_le_bytes());
        load(&file).unwrap();
        file.tensor_mut("blk.0.ssm_a").bytes[4..8].copy_from_slice(&2f32.to_le_bytes());
        let want = "m.gguf: tensor blk.0.ssm_a: 2 is not a rate of decay, below 0";
        assert_eq!(line(&load(&file).unwrap_err()), want);
    }
}

#[test]
fn experts_of_tokens_are_experts_of_the_model() {
    let file = model("deepseek4");
    load(&file).unwrap();
    let is_refused = |entry: i32, want: &str| {
        let mut file = file.clone();
        let table = &mut file.tensor_mut("blk.0.ffn_gate_tid2eid.weight").bytes;
        table[4..8].copy_from_slice(&entry.to_le_bytes());
        let want = format!("m.gguf: tensor blk.0.ffn_gate_tid2eid.weight: {want}");
        assert_eq!(line(&load(&file).unwrap_err()), want);
    };
    is_refused(9, "entry 1 of row 0 is 9; it must be from 0 to 3");
    is_refused(-1, "entry 1 of row 0 is -1; it must be from 0 to 3");
    is_refused(0, "token 0 has one expert twice");
}

#[test]
fn biases_that_no_token_is_routed_by_are_left_aside() {
    let mut file = model("deepseek4");
    let bias = vec![0.5; EXPERTS];
    for part in ["0.exp_probs_b", "0.exp_probs_b_vl", "1.exp_probs_b_vl"] {
        file.floats(&format!("blk.{part}.bias"), &[EXPERTS], &bias);
    }
    load(&file).unwrap();
    file.floats("blk.0.exp_probs_c.bias", &[EXPERTS], &bias);
    let want = "tensors are not part of this model family: blk.0.exp_probs_c.bias";
    assert!(load(&file).unwrap_err().to_string().ends_with(want));
}
