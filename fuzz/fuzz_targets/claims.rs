//! Tensors of any type and shape under the names that matrices and experts are
//! claimed by: an accepted tensor is inside its file and decodes.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use moeflux_core::checkpoint::{Checkpoint, Claims};
use moeflux_core::manifest::{ExpertMatrices, ExpertsDecl, FusedOrder, MatrixDecl, Role};
use moeflux_core::{ExpertId, LayerIdx};
use moeflux_engine::dialects;

const NAMES: [&str; 32] = [
    "a.weight",
    "a.scales",
    "a.biases",
    "a.weight_scale_inv",
    "a.weight_scale",
    "a.weight_scale_2",
    "a.weight_global_scale",
    "a.weight_packed",
    "a.weight_zero_point",
    "a.weight_g_idx",
    "a.qweight",
    "a.qzeros",
    "a.g_idx",
    "m.experts.gate_up_proj",
    "m.experts.down_proj",
    "m.experts.gate_up_proj_blocks",
    "m.experts.gate_up_proj_scales",
    "m.experts.down_proj_blocks",
    "m.experts.down_proj_scales",
    "m.switch_mlp.gate_proj.weight",
    "m.switch_mlp.gate_proj.scales",
    "m.switch_mlp.up_proj.weight",
    "m.switch_mlp.up_proj.scales",
    "m.experts.0.w1.weight",
    "m.experts.0.w1.weight_scale_inv",
    "m.experts.0.w1.weight_packed",
    "m.experts.0.w1.weight_scale",
    "m.experts.0.w3.weight_packed",
    "m.experts.0.w3.weight_scale",
    "m.experts.0.w2.qweight",
    "m.experts.0.w2.scales",
    "m.experts.gate_up_proj_weight_scale",
];

const DTYPES: [(&str, usize); 9] = [
    ("F32", 4),
    ("F16", 2),
    ("BF16", 2),
    ("U32", 4),
    ("U8", 1),
    ("F8_E4M3", 1),
    ("F8_E8M0", 1),
    ("I8", 1),
    ("I32", 4),
];

/// Declarations of the config; the last one is taken from the input.
const DECLARATIONS: [&str; 9] = [
    r#"{"bits": 4, "group_size": 32}"#,
    r#"{"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4}}}}"#,
    r#"{"quant_method": "compressed-tensors",
        "config_groups": {"a": {"weights": {"type": "float", "block_structure": [16, 32]}}}}"#,
    r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#,
    r#"{"quant_method": "gptq", "sym": true, "group_size": 32}"#,
    r#"{"quant_method": "gptq", "sym": false, "desc_act": true}"#,
    r#"{"quant_method": "awq"}"#,
    r#"{"quant_method": "fp8", "weight_block_size": [32, 16]}"#,
    "",
];

type Tensor = (u8, u8, Vec<u8>);

/// A safetensors file of those tensors, all bytes alike.
fn safetensors(tensors: &[Tensor], fill: u8) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let name = NAMES[usize::from(*name) % NAMES.len()];
        let (dtype, size) = DTYPES[usize::from(*dtype) % DTYPES.len()];
        let shape: Vec<usize> = shape.iter().take(4).map(|side| usize::from(*side)).collect();
        let bytes = shape.iter().product::<usize>() * size;
        if header.contains_key(name) || end + bytes > 1 << 20 {
            continue;
        }
        let offsets = [end, end + bytes];
        end += bytes;
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.to_owned(), entry);
    }
    let json = serde_json::Value::Object(header).to_string();
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.resize(bytes.len() + end, fill);
    bytes
}

fuzz_target!(|input: (u8, &str, Vec<Tensor>, [u8; 5], bool)| {
    let (declaration, block, tensors, sizes, alternates) = input;
    let [rows, cols, n_experts, hidden, fill] = sizes;
    let declared = DECLARATIONS[usize::from(declaration) % DECLARATIONS.len()];
    let block = if declared.is_empty() { block } else { declared };
    let size = |size: u8| usize::from(size).max(1);
    let dir = tempfile::tempdir().expect("a folder for the checkpoint");
    let file = safetensors(&tensors, fill);
    fs::write(dir.path().join("model.safetensors"), file).expect("room for the tensors");
    let config = format!(r#"{{"quantization": {block}}}"#);
    fs::write(dir.path().join("config.json"), config).expect("room for the config");
    let Ok(checkpoint) = Checkpoint::open(dir.path(), dialects()) else { return };
    let mut claims = Claims::new(&checkpoint);
    let (rows, cols) = (size(rows), size(cols));
    let decl = MatrixDecl { name: String::from("a"), rows, cols, role: Role::Projection };
    if let Ok(source) = claims.matrix(&decl) {
        let last = source.rows(rows - 1, 1);
        // What is computed from tensors may be refused when it is read.
        if let Ok(bytes) = last.read(checkpoint.reader()) {
            bytes.view(&last).assert_sizes();
            bytes.view(&last).decode_row(0, &mut vec![0.0; cols]);
        }
    }
    let decl = ExpertsDecl {
        layer: LayerIdx(0),
        prefix: String::from("m"),
        matrices: ExpertMatrices::Three {
            parts: ["w1", "w3", "w2"],
            fused: if alternates { FusedOrder::Alternating } else { FusedOrder::GateThenUp },
        },
        n_experts: size(n_experts),
        hidden: size(hidden),
        intermediate: rows,
    };
    let Ok(layer) = claims.experts(&decl) else { return };
    let files = &claims.bank().files;
    for (source, len) in layer.sources.iter().zip(&layer.layout.extents) {
        let last = u16::try_from(decl.n_experts - 1).expect("few experts");
        let (file, offset) = source.locate(ExpertId(last));
        assert!((file.0 as usize) < files.len(), "a file of the bank");
        if let Some(file) = checkpoint.files().get(file.0 as usize) {
            assert!(offset + *len as u64 <= file.len);
        }
    }
});
