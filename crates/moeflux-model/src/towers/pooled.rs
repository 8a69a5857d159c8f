//! Towers whose blocks also normalise what attention and MLP give, and whose ends take means of squares;
//! places from a table for each axis. As in transformers' `Gemma4VisionModel`.

use moeflux_backend::{GatedActivation, PlainActivation};
use moeflux_core::checkpoint::{Config, FormatError, PartTensor, Turned};
use serde_json::json;

use super::block::{AttentionPlan, BlockPlan, MlpPlan};
use super::end::{EndPlan, PooledPlan};
use super::family::{TowerFamily, patch_size, small};
use super::linear::NormKind;
use super::mmproj::{Clip, Mmproj, TABLE, float_bytes};
use super::positions::{Order, Resampling, TablePlan};
use super::rope::{RopeKind, RopePlan};
use super::stem::StemPlan;
use super::tower::TowerPlan;
use crate::load::LoadError;

/// The tower.
pub(crate) const TOWER: TowerFamily = TowerFamily {
    name_of,
    plan,
    processor: "Gemma4ImageProcessor",
    has_deepstack: false,
    mmproj: MMPROJ,
};

/// Its GGUF files.
const MMPROJ: Mmproj = Mmproj {
    projector: "gemma4v",
    merge_key: "projector.scale_factor",
    outside: &[
        ("v.patch_embd", "patch_embedder.input_proj"),
        ("v.position_embd.weight", "patch_embedder.position_embedding_table"),
        ("v.std_bias", "std_bias"),
        ("v.std_scale", "std_scale"),
        ("mm.input_projection", "embed_vision.embedding_projection"),
    ],
    blocks: "encoder.layers",
    inside: &[
        ("ln1", "input_layernorm"),
        ("ln2", "pre_feedforward_layernorm"),
        ("attn_post_norm", "post_attention_layernorm"),
        ("ffn_post_norm", "post_feedforward_layernorm"),
        ("attn_q", "self_attn.q_proj.linear"),
        ("attn_k", "self_attn.k_proj.linear"),
        ("attn_v", "self_attn.v_proj.linear"),
        ("attn_out", "self_attn.o_proj.linear"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("ffn_gate", "mlp.gate_proj.linear"),
        ("ffn_up", "mlp.up_proj.linear"),
        ("ffn_down", "mlp.down_proj.linear"),
    ],
    stored_name: |name| MMPROJ.stored(name),
    read: read_mmproj,
};

fn read_mmproj(clip: &mut Clip<'_>) -> Result<(), FormatError> {
    clip.number("num_hidden_layers", "block_count")?;
    clip.number("hidden_size", "embedding_length")?;
    let n_heads = clip.number("num_attention_heads", "attention.head_count")?;
    clip.number("patch_size", "patch_size")?;
    clip.number_if_any("pooling_kernel_size", MMPROJ.merge_key)?;
    clip.eps("rms_norm_eps")?;
    clip.rows_of("intermediate_size", "v.blk.0.ffn_up.weight")?;
    let queries = "v.blk.0.attn_q.weight";
    let head_dim = clip.n_rows(queries)? / n_heads.max(1);
    clip.put("head_dim", json!(head_dim), format!("(rows of {queries} by heads)"));
    clip.put("standardize", json!(clip.tensor("v.std_bias").is_some()), "v.std_bias".to_owned());
    let [_, places] = clip.table_sides()?;
    clip.put("position_embedding_size", json!(places), format!("(places of {TABLE})"));
    clip.take_table("patch_embedder.position_embedding_table");
    take_patches(clip);
    Ok(())
}

/// Takes the product of patches, whose channels files have first: they come last again.
fn take_patches(clip: &mut Clip<'_>) {
    let stored = "v.patch_embd.weight";
    let Some(tensor) = clip.tensor(stored) else { return };
    let ([rows, channels, height, width], Some(run)) = (&tensor.shape[..], float_bytes(tensor))
    else {
        return;
    };
    clip.take(stored);
    let turned = Turned { n: *rows, rows: *channels, cols: height * width, run };
    let shape = vec![*rows, channels * height * width];
    let name = "patch_embedder.input_proj.weight".to_owned();
    clip.push(PartTensor::joined(name, vec![tensor.clone()], shape).turned(turned));
}

fn name_of(canonical: &str) -> Option<String> {
    if canonical.starts_with("embed_vision.") {
        return Some(canonical.to_owned());
    }
    canonical.strip_prefix("vision_tower.").map(str::to_owned)
}

fn plan(model: &Config, config: &Config) -> Result<TowerPlan, LoadError> {
    let width = config.usize("hidden_size")?;
    let n_heads = config.usize("num_attention_heads")?;
    let head_dim = match config.get("head_dim") {
        Some(_) => config.usize("head_dim")?,
        None => width / n_heads,
    };
    if !head_dim.is_multiple_of(4) || head_dim == 0 {
        return Err(config.refuse("head_dim", "be a multiple of 4").into());
    }
    if config.usize_or("num_key_value_heads", n_heads)? != n_heads {
        return Err(config.refuse("num_key_value_heads", "be num_attention_heads").into());
    }
    if config.bool_or("use_clipped_linears", false)? {
        return Err(config.refuse("use_clipped_linears", "be false").into());
    }
    let eps = match config.get("rms_norm_eps") {
        Some(_) => config.f32("rms_norm_eps")?,
        None => 1e-6,
    };
    let norms = NormKind { is_layer_norm: false, eps };
    let patch = patch_size(config)?;
    let n_places = config.usize_or("position_embedding_size", 10_240)?;
    let standard = config.bool_or("standardize", false)?.then_some(["std_bias", "std_scale"]);
    Ok(TowerPlan {
        order: Order::Rows,
        stem: StemPlan {
            name: "patch_embedder.input_proj",
            inputs: 3 * patch * patch,
            axes: Vec::new(),
            has_bias: false,
            norm: None,
            centres: true,
        },
        table: Some(TablePlan {
            name: "patch_embedder.position_embedding_table",
            sides: [n_places, n_places],
            resampling: Resampling::PerAxis,
        }),
        rope: RopePlan {
            kind: RopeKind::HalfEach,
            theta: config.rope_f32("rope_theta")?.unwrap_or(100.0),
        },
        n_blocks: config.usize("num_hidden_layers")?,
        blocks: "encoder.layers",
        block: BlockPlan {
            width,
            norms,
            before: ["input_layernorm", "pre_feedforward_layernorm"],
            after: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
            attention: AttentionPlan {
                n_heads,
                head_dim,
                joined: None,
                apart: [
                    "self_attn.q_proj.linear",
                    "self_attn.k_proj.linear",
                    "self_attn.v_proj.linear",
                ],
                output: "self_attn.o_proj.linear",
                has_qkv_bias: false,
                has_output_bias: false,
                head_norms: Some(["self_attn.q_norm.weight", "self_attn.k_norm.weight"]),
                normalises_values: true,
                scale: 1.0,
            },
            mlp: MlpPlan {
                width: config.usize("intermediate_size")?,
                gate: Some(("mlp.gate_proj.linear", GatedActivation::GeluTanh)),
                activation: PlainActivation::GeluTanh,
                up: "mlp.up_proj.linear",
                down: "mlp.down_proj.linear",
                has_bias: false,
            },
        },
        end: EndPlan::Pooled(PooledPlan {
            pool: small(config, "pooling_kernel_size", 3)?,
            standard,
            eps,
            proj: "embed_vision.embedding_projection",
            hidden: model.usize("hidden_size")?,
        }),
    })
}
