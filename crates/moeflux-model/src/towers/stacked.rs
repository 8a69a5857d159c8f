//! Towers whose patches come in the order of squares, and whose ends are MLPs over squares; places from a
//! resampled table. As in transformers' `Qwen3VLMoeVisionModel`.

use std::collections::BTreeSet;

use moeflux_backend::PlainActivation;
use moeflux_core::checkpoint::{Config, FormatError, PartTensor};
use serde_json::json;

use super::block::{AttentionPlan, BlockPlan, MlpPlan};
use super::end::{DeepstackPlan, EndPlan, MergerPlan};
use super::family::{TowerFamily, head_dim, patch_size, small, visual_name};
use super::linear::NormKind;
use super::mmproj::{Clip, Mmproj, TABLE};
use super::positions::{Order, Resampling, TablePlan};
use super::rope::{RopeKind, RopePlan};
use super::stem::StemPlan;
use super::tower::TowerPlan;
use crate::load::LoadError;

/// The tower.
pub(crate) const TOWER: TowerFamily = TowerFamily {
    name_of: visual_name,
    plan,
    processor: "Qwen2VLImageProcessor",
    has_deepstack: false,
    mmproj: MMPROJ,
};

/// The same with mergers of earlier blocks.
pub(crate) const WITH_DEEPSTACK: TowerFamily = TowerFamily { has_deepstack: true, ..TOWER };

/// Its GGUF files.
const MMPROJ: Mmproj = Mmproj {
    projector: "qwen3vl_merger",
    merge_key: "spatial_merge_size",
    outside: &[
        ("v.patch_embd", "patch_embed.proj"),
        ("v.position_embd", "pos_embed"),
        ("v.post_ln", "merger.norm"),
        ("mm.0", "merger.linear_fc1"),
        ("mm.2", "merger.linear_fc2"),
    ],
    blocks: "blocks",
    inside: &[
        ("ln1", "norm1"),
        ("ln2", "norm2"),
        ("attn_qkv", "attn.qkv"),
        ("attn_out", "attn.proj"),
        ("ffn_up", "mlp.linear_fc1"),
        ("ffn_down", "mlp.linear_fc2"),
    ],
    stored_name: |name| MMPROJ.stored(name),
    read: read_mmproj,
};

/// Parts of deepstack mergers, in files and in the plan.
const DEEPSTACK: [[&str; 2]; 3] = [["norm", "norm"], ["fc1", "linear_fc1"], ["fc2", "linear_fc2"]];

fn read_mmproj(clip: &mut Clip<'_>) -> Result<(), FormatError> {
    let n_blocks = clip.number("depth", "block_count")?;
    clip.number("hidden_size", "embedding_length")?;
    clip.number("num_heads", "attention.head_count")?;
    clip.number("patch_size", "patch_size")?;
    clip.rows_of("out_hidden_size", "mm.2.weight")?;
    clip.number_if_any("spatial_merge_size", MMPROJ.merge_key)?;
    clip.rows_of("intermediate_size", "v.blk.0.ffn_up.weight")?;
    clip.activation("clip.use_gelu", "clip.use_silu")?;
    clip.put("hidden_act", json!("gelu_pytorch_tanh"), "clip.use_gelu".to_owned());
    let [rows, columns] = clip.table_sides()?;
    clip.put("num_position_embeddings", json!(rows * columns), format!("(places of {TABLE})"));
    clip.take_table("pos_embed.weight");
    clip.take_frames("patch_embed.proj.weight");
    clip.join_apart(n_blocks, MMPROJ.blocks, "attn.qkv");
    deepstack(clip)
}

/// Mergers are counted by the blocks after which they take rows. Which blocks these are, files say in a
/// list, or by the names of the mergers.
fn deepstack(clip: &mut Clip<'_>) -> Result<(), FormatError> {
    const LIST: &str = "is_deepstack_layers";
    let merged = |name: &str| -> Option<usize> {
        name.strip_prefix("v.deepstack.")?.split_once('.')?.0.parse::<u16>().ok().map(usize::from)
    };
    let blocks = match clip.true_blocks(LIST)? {
        Some(blocks) => blocks,
        None => clip.names().filter_map(merged).collect::<BTreeSet<_>>().into_iter().collect(),
    };
    clip.put("deepstack_visual_indexes", json!(blocks), format!("clip.vision.{LIST}"));
    for (nth, block) in blocks.iter().enumerate() {
        for [stored, part] in DEEPSTACK {
            for ending in ["weight", "bias"] {
                let stored = format!("v.deepstack.{block}.{stored}.{ending}");
                if let Some(tensor) = clip.take(&stored) {
                    let name = format!("deepstack_merger_list.{nth}.{part}.{ending}");
                    clip.push(PartTensor::renamed(name, tensor));
                }
            }
        }
    }
    Ok(())
}

const NORM: NormKind = NormKind { is_layer_norm: true, eps: 1e-6 };

fn plan(_model: &Config, config: &Config) -> Result<TowerPlan, LoadError> {
    let width = config.usize("hidden_size")?;
    let n_heads = config.usize("num_heads")?;
    let head_dim = head_dim(config, width, "num_heads")?;
    if config.str("hidden_act")? != "gelu_pytorch_tanh" {
        return Err(config.refuse("hidden_act", "be \"gelu_pytorch_tanh\"").into());
    }
    let n_places = config.usize("num_position_embeddings")?;
    let side = n_places.isqrt();
    if side * side != n_places {
        return Err(config.refuse("num_position_embeddings", "be a square").into());
    }
    let (channels, frames) =
        (small(config, "in_channels", 3)?, small(config, "temporal_patch_size", 2)?);
    let (patch, merge) = (patch_size(config)?, small(config, "spatial_merge_size", 2)?);
    let n_blocks = config.usize("depth")?;
    let blocks = config.usize_list("deepstack_visual_indexes")?.unwrap_or_default();
    let is_block =
        |(nth, block): (usize, &usize)| *block < n_blocks && !blocks[..nth].contains(block);
    if !blocks.iter().enumerate().all(is_block) {
        let rule = "name different blocks of the tower";
        return Err(config.refuse("deepstack_visual_indexes", rule).into());
    }
    let products = ["linear_fc1", "linear_fc2"];
    let deepstack = DeepstackPlan {
        list: "deepstack_merger_list",
        norm: ("norm", NORM),
        products,
        blocks: blocks.clone(),
    };
    Ok(TowerPlan {
        order: Order::Squares { merge },
        stem: StemPlan {
            name: "patch_embed.proj",
            inputs: channels * frames * patch * patch,
            axes: vec![channels, frames, patch, patch],
            has_bias: true,
            norm: None,
            centres: false,
        },
        table: Some(TablePlan {
            name: "pos_embed.weight",
            sides: [side, side],
            resampling: Resampling::Bilinear,
        }),
        rope: RopePlan {
            kind: RopeKind::RowsThenColumns,
            theta: config.rope_f32("rope_theta")?.unwrap_or(10_000.0),
        },
        n_blocks,
        blocks: "blocks",
        block: BlockPlan {
            width,
            norms: NORM,
            before: ["norm1", "norm2"],
            after: None,
            attention: AttentionPlan {
                n_heads,
                head_dim,
                joined: Some("attn.qkv"),
                apart: [""; 3],
                output: "attn.proj",
                has_qkv_bias: true,
                has_output_bias: true,
                head_norms: None,
                normalises_values: false,
                scale: 1.0 / (head_dim as f32).sqrt(),
            },
            mlp: MlpPlan {
                width: config.usize("intermediate_size")?,
                gate: None,
                activation: PlainActivation::GeluTanh,
                up: "mlp.linear_fc1",
                down: "mlp.linear_fc2",
                has_bias: true,
            },
        },
        end: EndPlan::Merged(MergerPlan {
            merge,
            norms: vec![("merger.norm", NORM)],
            products: ["merger.linear_fc1", "merger.linear_fc2"],
            hidden: config.usize("out_hidden_size")?,
            deepstack: (!blocks.is_empty()).then_some(deepstack),
        }),
    })
}
