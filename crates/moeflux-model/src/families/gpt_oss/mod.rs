//! gpt-oss: attention with sinks, over a window in every other layer, biases
//! everywhere, clamped SwiGLU, softmax over the chosen experts. As in
//! transformers' `modeling_gpt_oss`.

mod gguf;
mod shapes;

use moeflux_backend::{ExpertBiases, ExpertFunction, GatedActivation, Scoring};
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::FusedOrder;

use super::Family;
use crate::layers::attention::{AttentionBlocks, AttentionShape};
use crate::layers::builder::{Builder, Outline};
use crate::layers::expert_shape::{ExpertShape, GatedExpert};
use crate::layers::layer::{Body, Layer};
use crate::layers::moe::{MoeBlocks, MoeShape};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::layers::windows::windows_of_types;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    ..Family::new("gpt_oss", &["gpt_oss"], include_str!("keys.json"), build)
};

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    let has_bias = config.bool("attention_bias")?;
    Ok(AttentionShape {
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        ..AttentionShape::read(config)?
    })
}

fn activation(config: &Config) -> Result<GatedActivation, LoadError> {
    let alpha = config.f32("swiglu_alpha")?;
    Ok(GatedActivation::ClampedSwiglu { alpha, limit: config.f32("swiglu_limit")? })
}

fn moe_shape(config: &Config, activation: GatedActivation) -> Result<MoeShape, LoadError> {
    let fused = FusedOrder::Alternating;
    Ok(MoeShape {
        expert: ExpertShape::Three(GatedExpert { activation, fused, ..GatedExpert::USUAL }),
        router: "router",
        ..MoeShape::read(config, "num_local_experts", "intermediate_size")?
    })
}

/// How far each layer sees: `layer_types` where the config has it, else every
/// other layer through a window, the first one included.
fn windows(config: &Config, n_layers: usize) -> Result<Vec<Option<usize>>, LoadError> {
    let window = config.usize("sliding_window")?;
    let Some(types) = config.str_list("layer_types")? else {
        return Ok((0..n_layers).map(|i| i.is_multiple_of(2).then_some(window)).collect());
    };
    windows_of_types(config, &types, n_layers, window)
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let (attention_shape, activation) = (attention_shape(config)?, activation(config)?);
    let moe_shape = moe_shape(config, activation)?;
    let windows = windows(config, outline.n_layers)?;
    let rope = rope::read(config, attention_shape.head_dim)?;
    let rope = build.backend().load_rope(rope);
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = AttentionBlocks::new(attention_shape, rope, &mut builder);
    let moe = MoeBlocks::new(moe_shape, &mut builder);
    builder.finish(|builder, idx, name| {
        let attn = format!("{name}.self_attn");
        let mut mixer = attention.load_with_window(&attn, windows[idx.idx()], builder)?;
        mixer.sinks = Some(builder.vector(&format!("{attn}.sinks"), attention_shape.n_heads)?);
        let mlp = format!("{name}.mlp");
        let mut moe = moe.load(idx, &mlp, Scoring::SoftmaxOfChosen, builder)?;
        let router_bias = format!("{mlp}.router.bias");
        moe.router_bias = Some(builder.vector(&router_bias, moe_shape.n_experts)?);
        let biases = expert_biases(&moe_shape, &format!("{mlp}.experts"), builder)?;
        moe.function = ExpertFunction::Gated { activation, biases: Some(biases) };
        Layer::load(builder, name, Box::new(mixer), Body::Moe(moe))
    })
}

/// As published, those of gate and up alternate; MLX has parted them.
fn expert_biases(
    shape: &MoeShape,
    name: &str,
    builder: &mut Builder<'_, '_>,
) -> Result<ExpertBiases, LoadError> {
    let (n_experts, cols) = (shape.n_experts, shape.intermediate);
    let hidden = builder.outline.hidden;
    let is_parted = builder.build.weights.holds(&format!("{name}.gate_proj.bias"));
    let mut read = |part: &str, cols| -> Result<Vec<f32>, LoadError> {
        let name = format!("{name}.{part}");
        Ok(builder.build.weights.vector(&name, &[vec![n_experts, cols]])?.values)
    };
    let [gate, up, down] = if is_parted {
        [
            read("gate_proj.bias", cols)?,
            read("up_proj.bias", cols)?,
            read("down_proj.bias", hidden)?,
        ]
    } else {
        let both = read("gate_up_proj_bias", 2 * cols)?;
        let [gate, up] = [0, 1].map(|first| both.iter().skip(first).step_by(2).copied().collect());
        [gate, up, read("down_proj_bias", hidden)?]
    };
    let mut load = |values: Vec<f32>| builder.build.backend().load_vector(&values);
    Ok(ExpertBiases { gate: load(gate), up: load(up), down: load(down) })
}

#[cfg(test)]
mod refusals;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::resolved;
    use super::*;

    #[track_caller]
    fn check_windows(mut root: Value, want: Result<&[Option<usize>], &str>) {
        root["model_type"] = json!("gpt_oss");
        let config = resolved(root).unwrap();
        let got = windows(&config, 3).map_err(|err| err.to_string());
        assert_eq!(got.as_deref().map_err(String::as_str), want);
    }

    #[test]
    fn windows_follow_the_types_of_layers() {
        check_windows(json!({}), Ok(&[Some(128), None, Some(128)]));
        let (full, sliding) = ("full_attention", "sliding_attention");
        let types = json!({"layer_types": [full, full, sliding], "sliding_window": 7});
        check_windows(types, Ok(&[None, None, Some(7)]));
        let few = json!({"layer_types": [full, sliding]});
        let message = format!(
            "config.json: layer_types is {}; it must have num_hidden_layers entries",
            few["layer_types"]
        );
        check_windows(few, Err(&message));
        let odd = json!({"layer_types": [full, full, "chunked_attention"]});
        let message = format!(
            "config.json: layer_types is {}; it must hold only \"full_attention\" and \
             \"sliding_attention\"",
            odd["layer_types"]
        );
        check_windows(odd, Err(&message));
    }
}
