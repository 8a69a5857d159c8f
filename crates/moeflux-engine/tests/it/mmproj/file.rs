//! The tower of a checkpoint as llama.cpp's converter writes it (`convert_hf_to_gguf.py --mmproj`): names and
//! keys by family, and what it does to weights.

use std::fs;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::converted::writer::GgufWriter;

/// A name in a checkpoint, without what stands before the tower's, and the one in the file; `*` is a number.
type Rename = (&'static str, &'static str);

const QWEN: &[Rename] = &[
    ("patch_embed.proj.", "v.patch_embd."),
    ("pos_embed.", "v.position_embd."),
    ("blocks.*.norm1.", "v.blk.*.ln1."),
    ("blocks.*.norm2.", "v.blk.*.ln2."),
    ("blocks.*.attn.qkv.", "v.blk.*.attn_qkv."),
    ("blocks.*.attn.proj.", "v.blk.*.attn_out."),
    ("blocks.*.mlp.linear_fc1.", "v.blk.*.ffn_up."),
    ("blocks.*.mlp.linear_fc2.", "v.blk.*.ffn_down."),
    ("merger.norm.", "v.post_ln."),
    ("merger.linear_fc1.", "mm.0."),
    ("merger.linear_fc2.", "mm.2."),
    ("deepstack_merger_list.*.norm.", "v.deepstack.*.norm."),
    ("deepstack_merger_list.*.linear_fc1.", "v.deepstack.*.fc1."),
    ("deepstack_merger_list.*.linear_fc2.", "v.deepstack.*.fc2."),
];

const GLM: &[Rename] = &[
    ("patch_embed.proj.", "v.patch_embd."),
    ("embeddings.position_embedding.", "v.position_embd."),
    ("post_conv_layernorm.", "v.norm_embd."),
    ("blocks.*.norm1.", "v.blk.*.ln1."),
    ("blocks.*.norm2.", "v.blk.*.ln2."),
    ("blocks.*.attn.qkv.", "v.blk.*.attn_qkv."),
    ("blocks.*.attn.proj.", "v.blk.*.attn_out."),
    ("blocks.*.mlp.gate_proj.", "v.blk.*.ffn_gate."),
    ("blocks.*.mlp.up_proj.", "v.blk.*.ffn_up."),
    ("blocks.*.mlp.down_proj.", "v.blk.*.ffn_down."),
    ("post_layernorm.", "v.post_ln."),
    ("downsample.", "mm.patch_merger."),
    ("merger.proj.", "mm.model.fc."),
    ("merger.post_projection_norm.", "mm.post_norm."),
    ("merger.gate_proj.", "mm.gate."),
    ("merger.up_proj.", "mm.up."),
    ("merger.down_proj.", "mm.down."),
];

const KIMI: &[Rename] = &[
    ("patch_embed.proj.", "v.patch_embd."),
    ("patch_embed.pos_emb.", "v.position_embd."),
    ("blocks.*.norm0.", "v.blk.*.ln1."),
    ("blocks.*.norm1.", "v.blk.*.ln2."),
    ("blocks.*.wqkv.", "v.blk.*.attn_qkv."),
    ("blocks.*.wo.", "v.blk.*.attn_out."),
    ("blocks.*.mlp.fc0.", "v.blk.*.ffn_up."),
    ("blocks.*.mlp.fc1.", "v.blk.*.ffn_down."),
    ("final_layernorm.", "v.post_ln."),
    ("mm_projector.pre_norm.", "mm.input_norm."),
    ("mm_projector.proj.0.", "mm.1."),
    ("mm_projector.proj.2.", "mm.2."),
];

const GEMMA: &[Rename] = &[
    ("patch_embedder.input_proj.", "v.patch_embd."),
    ("patch_embedder.position_embedding_table", "v.position_embd.weight"),
    ("layers.*.input_layernorm.", "v.blk.*.ln1."),
    ("layers.*.post_attention_layernorm.", "v.blk.*.attn_post_norm."),
    ("layers.*.pre_feedforward_layernorm.", "v.blk.*.ln2."),
    ("layers.*.post_feedforward_layernorm.", "v.blk.*.ffn_post_norm."),
    ("layers.*.self_attn.q_proj.linear.", "v.blk.*.attn_q."),
    ("layers.*.self_attn.k_proj.linear.", "v.blk.*.attn_k."),
    ("layers.*.self_attn.v_proj.linear.", "v.blk.*.attn_v."),
    ("layers.*.self_attn.o_proj.linear.", "v.blk.*.attn_out."),
    ("layers.*.self_attn.q_norm.", "v.blk.*.attn_q_norm."),
    ("layers.*.self_attn.k_norm.", "v.blk.*.attn_k_norm."),
    ("layers.*.mlp.gate_proj.linear.", "v.blk.*.ffn_gate."),
    ("layers.*.mlp.up_proj.linear.", "v.blk.*.ffn_up."),
    ("layers.*.mlp.down_proj.linear.", "v.blk.*.ffn_down."),
    ("std_bias", "v.std_bias"),
    ("std_scale", "v.std_scale"),
    ("embed_vision.embedding_projection.", "mm.input_projection."),
];

/// What stands before the names of a tower's tensors.
const PREFIXES: [&str; 6] =
    ["model.visual.", "visual.", "model.vision_tower.", "vision_tower.", "model.", ""];

/// The type of matrices; vectors and tables of places are `F32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matrices {
    F32,
    F16,
    Bf16,
    /// And tables of places; rows that end within a block are `F32`.
    Q8,
}

/// A tensor in the making, of floats.
#[derive(Clone)]
struct Floats {
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// The file of the tower in a folder.
pub(crate) fn mmproj(folder: &Path, matrices: Matrices) -> GgufWriter {
    let json = |name: &str| -> Value {
        let text = fs::read(folder.join(name)).expect("a file of JSON");
        serde_json::from_slice(&text).expect("JSON")
    };
    let (config, processor) = (json("config.json"), json("preprocessor_config.json"));
    let mut file = keys(&config, &processor);
    let bytes = fs::read(folder.join("model.safetensors")).expect("weights");
    let all = SafeTensors::deserialize(&bytes).expect("tensors");
    let mut named: Vec<(String, Floats)> = Vec::new();
    for (name, view) in all.tensors() {
        let Some(stored) = renamed(&name, &config) else { continue };
        assert_eq!(view.dtype(), Dtype::BF16, "{name}");
        let wide = |half: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
        let values = view.data().as_chunks::<2>().0.iter().map(wide).collect();
        let floats = Floats { shape: view.shape().to_vec(), values };
        named.extend(changed(stored, floats, &config));
    }
    named.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, floats) in named {
        add(&mut file, &name, &floats, matrices);
    }
    file
}

fn model_type(config: &Value) -> &str {
    config["model_type"].as_str().expect("a type")
}

fn renamed(name: &str, config: &Value) -> Option<String> {
    let table = match model_type(config) {
        "kimi_k25" => KIMI,
        "gemma4" => GEMMA,
        "glm4v_moe" => GLM,
        _ => QWEN,
    };
    let name = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let name = name.strip_prefix("encoder.").unwrap_or(name);
    let parts: Vec<&str> = name.split('.').collect();
    let number = parts.iter().position(|part| part.parse::<usize>().is_ok());
    let general = |at: usize| {
        let mut parts = parts.clone();
        parts[at] = "*";
        parts.join(".")
    };
    let candidates = [Some(name.to_owned()), number.map(general)];
    for name in candidates.iter().flatten() {
        let found = table.iter().find(|(from, _)| {
            name.strip_prefix(from).is_some_and(|rest| rest.is_empty() || from.ends_with('.'))
        });
        let Some((from, to)) = found else { continue };
        let stored = format!("{to}{}", &name[from.len()..]);
        let Some(number) = number.map(|at| parts[at]) else { return Some(stored) };
        // Mergers of deepstack have the numbers of their blocks.
        let blocks = &config["vision_config"]["deepstack_visual_indexes"];
        let block = if to.contains("deepstack") {
            blocks[number.parse::<usize>().expect("a number")].to_string()
        } else {
            number.to_owned()
        };
        return Some(stored.replace('*', &block));
    }
    None
}

/// What the converter makes of a tensor.
fn changed(name: String, floats: Floats, config: &Value) -> Vec<(String, Floats)> {
    let vision = &config["vision_config"];
    let Floats { shape, values } = &floats;
    if name == "v.patch_embd.weight" {
        if let [rows, channels, 2, height, width] = shape[..] {
            let plane = height * width;
            let frame = |nth: usize| {
                let planes = values.chunks(plane).skip(nth).step_by(2);
                let values = planes.flatten().copied().collect();
                Floats { shape: vec![rows, channels, height, width], values }
            };
            return vec![(format!("{name}.1"), frame(1)), (name, frame(0))];
        }
        if model_type(config) == "gemma4" {
            let side = vision["patch_size"].as_u64().expect("a number") as usize;
            let place = |row: &[f32]| {
                let row = row.to_vec();
                (0..3).flat_map(move |c| row.clone().into_iter().skip(c).step_by(3))
            };
            let values = values.chunks(3 * side * side).flat_map(place).collect();
            return vec![(name, Floats { shape: vec![shape[0], 3, side, side], values })];
        }
    }
    if name.contains("attn_qkv") && model_type(config) == "kimi_k25" {
        let heads = vision["num_attention_heads"].as_u64().expect("a number") as usize;
        return vec![(name, halves_apart(&floats, heads))];
    }
    vec![(name, floats)]
}

/// Queries and keys whose pairs `[heads, d / 4, axis, 2]` are `[heads, axis, d / 4, 2]`.
fn halves_apart(floats: &Floats, heads: usize) -> Floats {
    let rows = floats.shape[0];
    let width = floats.values.len() / rows;
    let dim = rows / 3 / heads;
    let mut values = Vec::with_capacity(floats.values.len());
    for row in 0..rows {
        let (part, within) = (row / dim, row % dim);
        let from = if part < 2 * heads {
            let (axis, pair, which) = (within / (dim / 2), within % (dim / 2) / 2, within % 2);
            part * dim + 4 * pair + 2 * axis + which
        } else {
            row
        };
        values.extend_from_slice(&floats.values[from * width..][..width]);
    }
    Floats { shape: floats.shape.clone(), values }
}

fn add(file: &mut GgufWriter, name: &str, floats: &Floats, matrices: Matrices) {
    const BF16: u32 = 30;
    const Q8_0: u32 = 8;
    let Floats { shape, values } = floats;
    let is_matrix = shape.len() >= 2 && !name.contains("position");
    let in_blocks = shape.len() == 2 && shape[1].is_multiple_of(32);
    match matrices {
        Matrices::Bf16 if is_matrix => {
            let bytes =
                values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes());
            file.tensor(name, shape, BF16, bytes.collect());
        }
        Matrices::F16 if is_matrix => {
            let bytes = values.iter().flat_map(|value| f16_bits(*value).to_le_bytes());
            file.tensor(name, shape, 1, bytes.collect());
        }
        Matrices::Q8 if in_blocks => {
            let bytes = values.chunks(32).flat_map(q8_0).collect();
            file.tensor(name, shape, Q8_0, bytes);
        }
        _ => {
            file.floats(name, shape, values);
        }
    }
}

/// The nearest half-precision float of a number that has one of its range.
fn f16_bits(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    // Multiplying by a power of two makes numbers below 2^-14 denormal as halves have them.
    let size = value.abs();
    if size < 2f32.powi(-14) {
        return sign | (size * 2f32.powi(24)).round_ties_even() as u16;
    }
    let bits = size.to_bits();
    let rounded = bits + 0xfff + (bits >> 13 & 1);
    sign | ((rounded >> 13) - (112 << 10)) as u16
}

fn q8_0(block: &[f32]) -> Vec<u8> {
    let most = block.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
    let step = most / 127.0;
    let codes = block.iter().map(|value| {
        let code = if step > 0.0 { (value / step).round() } else { 0.0 };
        code as i8 as u8
    });
    f16_bits(step).to_le_bytes().into_iter().chain(codes).collect()
}

fn keys(config: &Value, processor: &Value) -> GgufWriter {
    let family = model_type(config);
    let (vision, text) = (&config["vision_config"], &config["text_config"]);
    let processor = processor.get("media_proc_cfg").unwrap_or(processor);
    let number = |value: &Value| value.as_u64().expect("a number") as u32;
    let first = |names: &[&str]| {
        let found = names.iter().find_map(|name| vision[name].as_u64());
        u32::try_from(found.expect("a number")).expect("a number of 32 bits")
    };
    let (projector, eps) = match family {
        "glm4v_moe" => ("glm4v", 1e-5),
        "kimi_k25" => ("kimik25", 1e-5),
        "gemma4" => ("gemma4v", 1e-6),
        _ => ("qwen3vl_merger", 1e-6),
    };
    let patch = first(&["patch_size"]);
    let side = match family {
        "kimi_k25" => first(&["init_pos_emb_height"]) * patch,
        "gemma4" => 224,
        "glm4v_moe" => first(&["image_size"]),
        _ => first(&["num_position_embeddings"]).isqrt() * patch,
    };
    let mut file = GgufWriter::new();
    file.text("general.architecture", "clip").text("general.type", "mmproj");
    file.bool("clip.has_vision_encoder", true);
    let of_vision = if family == "gemma4" { "vision." } else { "" };
    file.text(&format!("clip.{of_vision}projector_type"), projector);
    let inner = if family == "glm4v_moe" { "out_hidden_size" } else { "intermediate_size" };
    let numbers = [
        ("patch_size", patch),
        ("embedding_length", first(&["hidden_size"])),
        ("feed_forward_length", first(&[inner])),
        ("block_count", first(&["depth", "num_hidden_layers"])),
        ("attention.head_count", first(&["num_heads", "num_attention_heads"])),
        ("projection_dim", number(&text["hidden_size"])),
        ("image_size", side),
    ];
    for (key, value) in numbers {
        file.u32(&format!("clip.vision.{key}"), value);
    }
    file.f32("clip.vision.attention.layer_norm_epsilon", eps);
    for (key, default) in [("image_mean", 0.0), ("image_std", 1.0)] {
        let of = |nth: usize| processor[key][nth].as_f64().unwrap_or(default) as f32;
        let bytes = (0..3).flat_map(|nth| of(nth).to_le_bytes()).collect();
        file.array(&format!("clip.vision.{key}"), 6, 3, bytes);
    }
    match family {
        "glm4v_moe" => {
            file.bool("clip.use_silu", true).u32("clip.vision.spatial_merge_size", 2);
        }
        "kimi_k25" => {
            let pixels = number(&processor["in_patch_limit"]) * patch * patch;
            file.bool("clip.use_gelu", true).u32("clip.vision.projector.scale_factor", 2);
            file.u32("clip.vision.image_min_pixels", 8 * patch * patch);
            file.u32("clip.vision.image_max_pixels", pixels);
        }
        "gemma4" => {
            let pool = number(&vision["pooling_kernel_size"]);
            file.u32("clip.vision.projector.scale_factor", pool);
        }
        _ => {
            file.bool("clip.use_gelu", true).u32("clip.vision.spatial_merge_size", 2);
            let blocks = vision["deepstack_visual_indexes"].as_array().cloned().unwrap_or_default();
            let is_merged = |block: u32| blocks.iter().any(|of| *of == block);
            let all: Vec<bool> = (0..first(&["depth"])).map(is_merged).collect();
            file.bools("clip.vision.is_deepstack_layers", &all);
        }
    }
    file
}
