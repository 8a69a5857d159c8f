//! Towers whose blocks also normalise what attention and MLP give, and whose ends take means of squares;
//! places from a table for each axis. As in transformers' `Gemma4VisionModel`.

use moeflux_backend::{GatedActivation, PlainActivation};
use moeflux_core::checkpoint::Config;

use super::block::{AttentionPlan, BlockPlan, MlpPlan};
use super::end::{EndPlan, PooledPlan};
use super::family::{TowerFamily, patch_size, small};
use super::linear::NormKind;
use super::positions::{Order, Resampling, TablePlan};
use super::rope::{RopeKind, RopePlan};
use super::stem::StemPlan;
use super::tower::TowerPlan;
use crate::load::LoadError;

/// The tower.
pub(crate) const TOWER: TowerFamily = TowerFamily { name_of, plan };

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
