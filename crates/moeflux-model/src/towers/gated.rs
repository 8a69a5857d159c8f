//! Towers with root-mean-square norms and gated MLPs, whose ends fold squares by a convolution; places
//! from a resampled table. As in transformers' `Glm4vMoeVisionModel`.

use moeflux_backend::{GatedActivation, PlainActivation};
use moeflux_core::checkpoint::{Config, FormatError};
use serde_json::json;

use super::block::{AttentionPlan, BlockPlan, MlpPlan};
use super::end::{EndPlan, GatedPlan};
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
    processor: "Glm4vImageProcessor",
    has_deepstack: false,
    mmproj: MMPROJ,
};

/// Its GGUF files.
const MMPROJ: Mmproj = Mmproj {
    projector: "glm4v",
    merge_key: "spatial_merge_size",
    outside: &[
        ("v.patch_embd", "patch_embed.proj"),
        ("v.position_embd", "embeddings.position_embedding"),
        ("v.norm_embd", "post_conv_layernorm"),
        ("v.post_ln", "post_layernorm"),
        ("mm.patch_merger", "downsample"),
        ("mm.model.fc", "merger.proj"),
        ("mm.post_norm", "merger.post_projection_norm"),
        ("mm.gate", "merger.gate_proj"),
        ("mm.up", "merger.up_proj"),
        ("mm.down", "merger.down_proj"),
    ],
    blocks: "blocks",
    inside: &[
        ("ln1", "norm1"),
        ("ln2", "norm2"),
        ("attn_qkv", "attn.qkv"),
        ("attn_out", "attn.proj"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ],
    stored_name: |name| MMPROJ.stored(name),
    read: read_mmproj,
};

/// `feed_forward_length` is the width of blocks in some files and that of the end in others.
fn read_mmproj(clip: &mut Clip<'_>) -> Result<(), FormatError> {
    let n_blocks = clip.number("depth", "block_count")?;
    clip.number("hidden_size", "embedding_length")?;
    clip.number("num_heads", "attention.head_count")?;
    let patch = clip.number("patch_size", "patch_size")?;
    clip.rows_of("out_hidden_size", "mm.down.weight")?;
    clip.number_if_any("spatial_merge_size", MMPROJ.merge_key)?;
    clip.eps("rms_norm_eps")?;
    clip.rows_of("intermediate_size", "mm.up.weight")?;
    clip.activation("clip.use_silu", "clip.use_gelu")?;
    clip.put("hidden_act", json!("silu"), "clip.use_silu".to_owned());
    let [side, _] = clip.table_sides()?;
    let pixels = side.saturating_mul(patch);
    clip.put("image_size", json!(pixels), format!("(sides of {TABLE})"));
    clip.take_table("embeddings.position_embedding.weight");
    clip.take_frames("patch_embed.proj.weight");
    clip.join_apart(n_blocks, MMPROJ.blocks, "attn.qkv");
    Ok(())
}

fn plan(_model: &Config, config: &Config) -> Result<TowerPlan, LoadError> {
    let width = config.usize("hidden_size")?;
    let n_heads = config.usize("num_heads")?;
    let head_dim = head_dim(config, width, "num_heads")?;
    if config.str("hidden_act")? != "silu" {
        return Err(config.refuse("hidden_act", "be \"silu\"").into());
    }
    if config.bool_or("attention_bias", false)? {
        return Err(config.refuse("attention_bias", "be false").into());
    }
    let eps = match config.get("rms_norm_eps") {
        Some(_) => config.f32("rms_norm_eps")?,
        None => 1e-5,
    };
    let norms = NormKind { is_layer_norm: false, eps };
    let frames = small(config, "temporal_patch_size", 2)?;
    let (patch, merge) = (patch_size(config)?, small(config, "spatial_merge_size", 2)?);
    let side = config.usize("image_size")? / patch;
    if side == 0 {
        return Err(config.refuse("image_size", "be at least patch_size").into());
    }
    let hidden = config.usize("out_hidden_size")?;
    Ok(TowerPlan {
        order: Order::Squares { merge },
        stem: StemPlan {
            name: "patch_embed.proj",
            inputs: 3 * frames * patch * patch,
            axes: vec![3, frames, patch, patch],
            has_bias: true,
            norm: Some(("post_conv_layernorm", norms)),
            centres: false,
        },
        table: Some(TablePlan {
            name: "embeddings.position_embedding.weight",
            sides: [side, side],
            resampling: Resampling::Bicubic,
        }),
        rope: RopePlan {
            kind: RopeKind::RowsThenColumns,
            theta: config.rope_f32("rope_theta")?.unwrap_or(10_000.0),
        },
        n_blocks: config.usize("depth")?,
        blocks: "blocks",
        block: BlockPlan {
            width,
            norms,
            before: ["norm1", "norm2"],
            after: None,
            attention: AttentionPlan {
                n_heads,
                head_dim,
                joined: Some("attn.qkv"),
                apart: [""; 3],
                output: "attn.proj",
                has_qkv_bias: false,
                has_output_bias: false,
                head_norms: None,
                normalises_values: false,
                scale: 1.0 / (head_dim as f32).sqrt(),
            },
            mlp: MlpPlan {
                // The published models have the width of the text here.
                width: hidden,
                gate: Some(("mlp.gate_proj", GatedActivation::Swiglu)),
                activation: PlainActivation::GeluTanh,
                up: "mlp.up_proj",
                down: "mlp.down_proj",
                has_bias: false,
            },
        },
        end: EndPlan::Gated(GatedPlan {
            merge,
            norm: ("post_layernorm", norms),
            fold: "downsample",
            proj: "merger.proj",
            proj_norm: ("merger.post_projection_norm", NormKind { is_layer_norm: true, eps: 1e-5 }),
            products: ["merger.gate_proj", "merger.up_proj", "merger.down_proj"],
            activation: GatedActivation::Swiglu,
            inner: config.usize("intermediate_size")?,
            hidden,
        }),
    })
}
