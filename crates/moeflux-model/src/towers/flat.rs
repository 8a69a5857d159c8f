//! Towers whose patches come row by row, and whose ends are MLPs over squares of them; places from a
//! resampled table. As in transformers' `KimiK25VisionModel`.

use moeflux_backend::PlainActivation;
use moeflux_core::checkpoint::Config;

use super::block::{AttentionPlan, BlockPlan, MlpPlan};
use super::end::{EndPlan, MergerPlan};
use super::family::{MOST_MERGED, TowerFamily, patch_size};
use super::linear::NormKind;
use super::positions::{Order, Resampling, TablePlan};
use super::rope::{RopeKind, RopePlan};
use super::stem::StemPlan;
use super::tower::TowerPlan;
use crate::load::LoadError;

/// The tower.
pub(crate) const TOWER: TowerFamily = TowerFamily { name_of, plan };

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
