//! DeepSeek-V3 and R1, Cogito-V2-671B, Kimi K2 and the text of K2.5: multi-head latent attention,
//! a few dense layers, then experts that sigmoid scores choose. As in
//! transformers' `modeling_deepseek_v3`.

use moeflux_backend::{RopeSpec, Scoring, Vector};
use moeflux_core::LayerIdx;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::layers::builder::{Builder, Outline};
use crate::layers::dense::{Dense, GatedScratch};
use crate::layers::layer::Mlp;
use crate::layers::mla::{MlaBlocks, MlaShape};
use crate::layers::moe::{MoeBlocks, MoeShape, SharedShape};
use crate::layers::mtp::MtpNames;
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::layers::routing::SigmoidRouting;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family =
    Family { name: "deepseek_v3", model_types: &["deepseek_v3", "kimi_k2", "kimi_k25"], build };

pub(super) fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let attention = MlaShape::read(config)?;
    let mlps = MlpShape::read(config, outline.n_layers, MlpTerms::DEEPSEEK)?;
    let rope = rope::with_dim(config, attention.rope_dim)?;
    let rope = build.backend().load_rope(RopeSpec { pairs: attention.pairs, ..rope });
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = MlaBlocks::new(attention, rope, &mut builder);
    let mlps = MlpBlocks::new(mlps, &mut builder);
    let mtp = MtpNames::past_the_last(outline.n_layers);
    builder.finish_with(Some(mtp), |builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.self_attn"), builder)?);
        let mlp = mlps.load(idx, &format!("{name}.mlp"), builder)?;
        builder.layer(name, mixer, mlp)
    })
}

/// What configs and checkpoints call the parts of layers with experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct MlpTerms {
    /// The key of the number of experts.
    pub(super) n_experts: &'static str,
    /// The key of the number of experts that every row gets.
    pub(super) n_shared: &'static str,
    /// The key of the factor of the experts' weights.
    pub(super) scale: &'static str,
    /// The router, inside a block.
    pub(super) router: &'static str,
    /// The biases of the choice, inside a block.
    pub(super) bias: &'static str,
    /// Whether a checkpoint may lack these biases.
    pub(super) may_lack_bias: bool,
    /// The experts that every row gets, inside a block.
    pub(super) shared: &'static str,
}

impl MlpTerms {
    /// As DeepSeek-V3 has them.
    pub(super) const DEEPSEEK: MlpTerms = MlpTerms {
        n_experts: "n_routed_experts",
        n_shared: "n_shared_experts",
        scale: "routed_scaling_factor",
        router: "gate",
        bias: "gate.e_score_correction_bias",
        may_lack_bias: false,
        shared: "shared_experts",
    };
}

/// What follows attention, in all layers.
#[derive(Clone, Debug)]
pub(super) struct MlpShape {
    pub(super) is_dense: Vec<bool>,
    /// Columns of dense layers between their products; absent where no layer is dense.
    dense_intermediate: Option<usize>,
    moe: MoeShape,
    routing: Routing,
    terms: MlpTerms,
}

/// How experts are chosen.
#[derive(Clone, Copy, Debug)]
enum Routing {
    Sigmoid(SigmoidRouting),
    Softmax { renormalise: bool },
}

impl MlpShape {
    /// Experts that sigmoid scores choose.
    pub(super) fn read(
        config: &Config,
        n_layers: usize,
        terms: MlpTerms,
    ) -> Result<MlpShape, LoadError> {
        let mut moe = MlpShape::moe(config, terms)?;
        let routing = Routing::Sigmoid(SigmoidRouting::read(config, terms.scale, &mut moe)?);
        MlpShape::with_routing(config, n_layers, terms, moe, routing)
    }

    /// Experts that probabilities choose, of which the terms have no scale and no biases.
    pub(super) fn by_softmax(
        config: &Config,
        n_layers: usize,
        terms: MlpTerms,
    ) -> Result<MlpShape, LoadError> {
        let moe = MlpShape::moe(config, terms)?;
        let routing = Routing::Softmax { renormalise: config.bool("norm_topk_prob")? };
        MlpShape::with_routing(config, n_layers, terms, moe, routing)
    }

    fn moe(config: &Config, terms: MlpTerms) -> Result<MoeShape, LoadError> {
        let mut moe = MoeShape::read(config, terms.n_experts, "moe_intermediate_size")?;
        moe.router = terms.router;
        moe.shared = SharedShape::read(config, terms.n_shared, terms.shared, moe.intermediate)?;
        Ok(moe)
    }

    fn with_routing(
        config: &Config,
        n_layers: usize,
        terms: MlpTerms,
        moe: MoeShape,
        routing: Routing,
    ) -> Result<MlpShape, LoadError> {
        let is_dense = dense_layers(config, n_layers)?;
        let has_dense = is_dense.contains(&true);
        Ok(MlpShape {
            dense_intermediate: has_dense.then(|| config.usize("intermediate_size")).transpose()?,
            is_dense,
            routing,
            moe,
            terms,
        })
    }
}

/// `mlp_layer_types` where the config has it; else the first
/// `first_k_dense_replace` layers, or one.
fn dense_layers(config: &Config, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    let refuse = |key, rule: &str| Err(config.refuse(key, rule).into());
    let Some(types) = config.str_list("mlp_layer_types")? else {
        let key = "first_k_dense_replace";
        let n_dense = config.get(key).map(|_| config.usize_in(key, 0..=n_layers - 1));
        let n_dense = n_dense.transpose()?.unwrap_or(1);
        return Ok((0..n_layers).map(|i| i < n_dense).collect());
    };
    let key = "mlp_layer_types";
    if types.len() != n_layers {
        return refuse(key, "have num_hidden_layers entries");
    }
    if types.iter().any(|kind| !["dense", "sparse"].contains(kind)) {
        return refuse(key, "hold only \"dense\" and \"sparse\"");
    }
    if !types.contains(&"sparse") {
        return refuse(key, "leave experts to some layer");
    }
    Ok(types.iter().map(|kind| *kind == "dense").collect())
}

/// Loads what follows attention; layers of a kind share their activations.
#[derive(Clone, Debug)]
pub(super) struct MlpBlocks {
    shape: MlpShape,
    moe: MoeBlocks,
    dense: Option<GatedScratch>,
}

impl MlpBlocks {
    pub(super) fn new(shape: MlpShape, builder: &mut Builder<'_, '_>) -> MlpBlocks {
        let dense = shape.dense_intermediate.map(|cols| GatedScratch::alloc(cols, builder));
        MlpBlocks { moe: MoeBlocks::new(shape.moe, builder), dense, shape }
    }

    /// The MLP of a layer, called `name`.
    pub(super) fn load(
        &self,
        layer: LayerIdx,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Mlp, LoadError> {
        if let Some(scratch) =
            self.dense.filter(|_| self.shape.is_dense.get(layer.idx()) == Some(&true))
        {
            return Ok(Mlp::Dense(Dense::load(scratch, name, builder)?));
        }
        let scoring = match self.shape.routing {
            Routing::Sigmoid(routing) => routing.scoring(self.bias(name, builder)?),
            Routing::Softmax { renormalise } => Scoring::softmax(renormalise),
        };
        Ok(Mlp::Moe(self.moe.load(layer, name, scoring, builder)?))
    }

    /// The biases of the choice in the block called `name`.
    fn bias(&self, name: &str, builder: &mut Builder<'_, '_>) -> Result<Option<Vector>, LoadError> {
        let MlpTerms { bias, may_lack_bias, .. } = self.shape.terms;
        let bias = format!("{name}.{bias}");
        let is_there = !may_lack_bias || builder.build.weights.holds(&bias);
        is_there.then(|| builder.vector(&bias, self.shape.moe.n_experts)).transpose()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::declared::Declared;
    use crate::model::WithMtp;
    use crate::shape::ModelShape;

    /// What every latent-attention config has.
    pub(crate) fn latent_config(model_type: &str, more: &Value) -> Value {
        let mut root = json!({
            "model_type": model_type, "vocab_size": 50, "hidden_size": 32,
            "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
            "q_lora_rank": 12,
            "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
            "intermediate_size": 20, "moe_intermediate_size": 10, "n_routed_experts": 8,
            "num_experts_per_tok": 2, "n_shared_experts": 1, "rope_theta": 10000,
            "n_group": 1, "topk_group": 1
        });
        root.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        root
    }

    pub(crate) fn shape(root: Value) -> Result<ModelShape, LoadError> {
        let config = Config::from_value(Path::new("config.json"), root).expect("an object");
        Ok(Declared::of_config(&config, WithMtp::Never)?.shape)
    }

    #[track_caller]
    pub(crate) fn check_refused(model_type: &str, more: Value, message: &str) {
        let got = shape(latent_config(model_type, &more)).expect_err("refused").to_string();
        assert_eq!(got, format!("config.json: {message}"));
    }

    #[test]
    fn layers_have_experts_where_the_config_says_so() {
        let n_moe =
            |model_type, more: Value| shape(latent_config(model_type, &more)).unwrap().n_moe_layers;
        assert_eq!(n_moe("deepseek_v3", json!({})), 1);
        assert_eq!(n_moe("glm4_moe_lite", json!({})), 3);
        assert_eq!(n_moe("kimi_k2", json!({"first_k_dense_replace": 0})), 4);
        let types = json!({"mlp_layer_types": ["sparse", "dense", "sparse", "dense"]});
        assert_eq!(n_moe("glm4_moe_lite", types), 2);
    }

    #[test]
    fn a_position_takes_one_latent_and_one_key() {
        let shape = shape(latent_config("deepseek_v3", &json!({}))).unwrap();
        let bytes: usize = shape.caches.iter().map(|cache| cache.bytes_per_position()).sum();
        assert_eq!(bytes, 4 * (16 + 4) * 4);
    }

    #[test]
    fn refuses_what_it_does_not_compute() {
        let refused = |more, message| check_refused("deepseek_v3", more, message);
        let message = "topk_method is \"greedy\"; it must be \"noaux_tc\"";
        refused(json!({"topk_method": "greedy"}), message);
        let message = "scoring_func is \"softmax\"; it must be \"sigmoid\"";
        refused(json!({"scoring_func": "softmax"}), message);
        let message = "hidden_act is \"gelu\"; it must be \"silu\" or \"swish\"";
        refused(json!({"hidden_act": "gelu"}), message);
        let message = "num_key_value_heads is 1; it must equal num_attention_heads";
        refused(json!({"num_key_value_heads": 1}), message);
        let message = "partial_rotary_factor is 0.5; it must be 1 with rope_type \"yarn\"";
        let yarn = json!({"type": "yarn", "factor": 2.0});
        refused(json!({"partial_rotary_factor": 0.5, "rope_scaling": yarn}), message);
        let message = "qk_rope_head_dim is 5; it must be even";
        refused(json!({"qk_rope_head_dim": 5}), message);
        let message = "kv_lora_rank is 16385; it must be a whole number from 1 to 16384";
        refused(json!({"kv_lora_rank": 16_385}), message);
        let message = "first_k_dense_replace is 4; it must be a whole number from 0 to 3";
        refused(json!({"first_k_dense_replace": 4}), message);
        let message = "moe_layer_freq is 5; it must be 1";
        refused(json!({"moe_layer_freq": 5}), message);
        let refused = |more, message| check_refused("glm4_moe_lite", more, message);
        let message = "partial_rotary_factor is 0.5; it must be 1";
        refused(json!({"partial_rotary_factor": 0.5}), message);
        let message = "mlp_layer_types is [\"dense\"]; it must have num_hidden_layers entries";
        refused(json!({"mlp_layer_types": ["dense"]}), message);
        let types = ["dense", "moe", "dense", "dense"];
        let message = "mlp_layer_types is [\"dense\",\"moe\",\"dense\",\"dense\"]; \
                       it must hold only \"dense\" and \"sparse\"";
        refused(json!({"mlp_layer_types": types}), message);
    }
}
