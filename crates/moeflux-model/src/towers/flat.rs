//! Towers whose patches come row by row, and whose ends are MLPs over squares of them; places from a
//! resampled table. As in transformers' `KimiK25VisionModel`.

use moeflux_backend::PlainActivation;
use moeflux_core::checkpoint::{Config, FormatError, PartTensor, Turned};
use serde_json::json;

use super::block::{AttentionPlan, BlockPlan, MlpPlan};
use super::end::{EndPlan, MergerPlan};
use super::family::{MOST_MERGED, TowerFamily, patch_size};
use super::linear::NormKind;
use super::mmproj::{Clip, Mmproj, TABLE, in_block};
use super::positions::{Order, Resampling, TablePlan};
use super::rope::{RopeKind, RopePlan};
use super::stem::StemPlan;
use super::tower::TowerPlan;
use crate::load::LoadError;

/// The tower.
pub(crate) const TOWER: TowerFamily = TowerFamily {
    name_of,
    plan,
    processor: "KimiK25ImageProcessor",
    has_deepstack: false,
    mmproj: MMPROJ,
};

/// Its GGUF files.
const MMPROJ: Mmproj = Mmproj {
    projector: "kimik25",
    merge_key: "projector.scale_factor",
    outside: &[
        ("v.patch_embd", "patch_embed.proj"),
        ("v.position_embd", "patch_embed.pos_emb"),
        ("v.post_ln", "final_layernorm"),
        ("mm.input_norm", "mm_projector.pre_norm"),
        ("mm.1", "mm_projector.proj.0"),
        ("mm.2", "mm_projector.proj.2"),
    ],
    blocks: "blocks",
    inside: &[
        ("ln1", "norm0"),
        ("ln2", "norm1"),
        ("attn_qkv", "wqkv"),
        ("attn_out", "wo"),
        ("ffn_up", "mlp.fc0"),
        ("ffn_down", "mlp.fc1"),
    ],
    stored_name: |name| MMPROJ.stored(name),
    read: read_mmproj,
};

fn read_mmproj(clip: &mut Clip<'_>) -> Result<(), FormatError> {
    let n_blocks = clip.number("num_hidden_layers", "block_count")?;
    clip.number("hidden_size", "embedding_length")?;
    let n_heads = clip.number("num_attention_heads", "attention.head_count")?;
    clip.number("patch_size", "patch_size")?;
    clip.rows_of("intermediate_size", "v.blk.0.ffn_up.weight")?;
    clip.activation("clip.use_gelu", "clip.use_silu")?;
    clip.eps("projector_ln_eps")?;
    let merge = clip.number("merge_kernel_size", MMPROJ.merge_key)?;
    let stored = "clip.vision.projector.scale_factor".to_owned();
    clip.put("merge_kernel_size", json!([merge, merge]), stored);
    let sides = clip.table_sides()?;
    for (key, side) in ["init_pos_emb_height", "init_pos_emb_width"].into_iter().zip(sides) {
        clip.put(key, json!(side), format!("(sides of {TABLE})"));
    }
    clip.take_table("patch_embed.pos_emb.weight");
    for block in clip.blocks(n_blocks) {
        for ending in ["weight", "bias"] {
            take_qkv(clip, block, n_heads, ending);
        }
    }
    Ok(())
}

/// Takes queries, keys and values of a block. Files have the pairs of a head of queries and of keys that
/// turn by columns before those that turn by rows, for a rotation that has no [`RopeKind::Alternating`]:
/// the two become neighbours again.
fn take_qkv(clip: &mut Clip<'_>, block: usize, n_heads: usize, ending: &str) {
    let stored = in_block(block, &format!("attn_qkv.{ending}"));
    let name = format!("{}.{block}.wqkv.{ending}", MMPROJ.blocks);
    let joined = match clip.tensor(&stored) {
        Some(tensor) => Some(PartTensor::renamed(name, tensor)),
        None => clip.take_apart(block, name, ending),
    };
    let Some(joined) = joined else { return };
    clip.take(&stored);
    let rows = joined.shape.first().copied().unwrap_or(0);
    let n_bytes: usize = joined.from.iter().map(|tensor| tensor.extent.len).sum();
    let n_pairs = rows / n_heads.max(1) / 12;
    clip.push(if n_pairs == 0 || n_heads.checked_mul(12 * n_pairs) != Some(rows) {
        // The shape is refused where the tensor is used.
        joined
    } else {
        let run = n_bytes / rows * 2;
        joined.turned(Turned { n: 2 * n_heads, rows: 2, cols: n_pairs, run })
    });
}

const NORM: NormKind = NormKind { is_layer_norm: true, eps: 1e-5 };

/// Some exporters put the stem into the encoder, MLX puts the blocks outside and their attention into
/// modules of its own, and published checkpoints have a table for frames, which stills do not use.
fn name_of(canonical: &str) -> Option<String> {
    if canonical.starts_with("mm_projector.") {
        return Some(canonical.to_owned());
    }
    let name = canonical.strip_prefix("vision_tower.")?;
    let name = name.strip_prefix("encoder.").unwrap_or(name);
    let is_used = !name.ends_with("time_weight");
    is_used.then(|| name.replace(".attn.w", ".w"))
}

/// A number under one of its names.
fn number(config: &Config, names: [&str; 2], default: Option<usize>) -> Result<usize, LoadError> {
    let name = names.into_iter().find(|name| config.get(name).is_some()).unwrap_or(names[0]);
    Ok(match default {
        Some(default) => config.usize_or(name, default)?,
        None => config.usize(name)?,
    })
}

fn plan(model: &Config, config: &Config) -> Result<TowerPlan, LoadError> {
    let width = number(config, ["hidden_size", "vt_hidden_size"], None)?;
    let n_heads = number(config, ["num_attention_heads", "vt_num_attention_heads"], None)?;
    if !width.is_multiple_of(4 * n_heads) {
        let rule = "divide hidden_size into multiples of 4";
        return Err(config.refuse("num_attention_heads", rule).into());
    }
    let merges = config.usize_list("merge_kernel_size")?.unwrap_or_else(|| vec![2, 2]);
    let [merge, columns] = merges[..] else {
        return Err(config.refuse("merge_kernel_size", "be two numbers").into());
    };
    if merge != columns || !(1..=MOST_MERGED).contains(&merge) {
        return Err(config.refuse("merge_kernel_size", "be twice a number from 1 to 16").into());
    }
    let patch = match config.get("patch_size") {
        Some(_) => patch_size(config)?,
        None => 14,
    };
    let side = |names| number(config, names, Some(64));
    let sides = [
        side(["init_pos_emb_height", "pos_emb_height"])?,
        side(["init_pos_emb_width", "pos_emb_width"])?,
    ];
    let eps = match config.get("projector_ln_eps") {
        Some(_) => config.f32("projector_ln_eps")?,
        None => NORM.eps,
    };
    let head_dim = width / n_heads;
    Ok(TowerPlan {
        order: Order::Rows,
        stem: StemPlan {
            name: "patch_embed.proj",
            inputs: 3 * patch * patch,
            axes: vec![3, patch, patch],
            has_bias: true,
            norm: None,
            centres: false,
        },
        table: Some(TablePlan {
            name: "patch_embed.pos_emb.weight",
            sides,
            resampling: Resampling::Bicubic,
        }),
        rope: RopePlan {
            kind: RopeKind::Alternating,
            theta: config.rope_f32("rope_theta")?.unwrap_or(10_000.0),
        },
        n_blocks: number(config, ["num_hidden_layers", "vt_num_hidden_layers"], None)?,
        blocks: "blocks",
        block: BlockPlan {
            width,
            norms: NORM,
            before: ["norm0", "norm1"],
            after: None,
            attention: AttentionPlan {
                n_heads,
                head_dim,
                joined: Some("wqkv"),
                apart: [""; 3],
                output: "wo",
                has_qkv_bias: true,
                has_output_bias: true,
                head_norms: None,
                normalises_values: false,
                scale: 1.0 / (head_dim as f32).sqrt(),
            },
            mlp: MlpPlan {
                width: number(config, ["intermediate_size", "vt_intermediate_size"], None)?,
                gate: None,
                activation: PlainActivation::GeluTanh,
                up: "mlp.fc0",
                down: "mlp.fc1",
                has_bias: true,
            },
        },
        end: EndPlan::Merged(MergerPlan {
            merge,
            norms: vec![
                ("final_layernorm", NORM),
                ("mm_projector.pre_norm", NormKind { eps, ..NORM }),
            ],
            products: ["mm_projector.proj.0", "mm_projector.proj.2"],
            hidden: model.usize("hidden_size")?,
            deepstack: None,
        }),
    })
}
