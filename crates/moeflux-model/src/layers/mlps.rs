//! What follows attention where the first layers are dense and the others have experts: the terms
//! in which configs and checkpoints speak of them, their shape, and their loading.

use moeflux_backend::{GatedActivation, Vector};
use moeflux_core::LayerIdx;
use moeflux_core::checkpoint::Config;

use super::builder::Builder;
use super::dense::{Dense, MlpScratch};
use super::expert_shape::{ExpertShape, GatedExpert};
use super::layer::Body;
use super::moe::{MoeBlocks, MoeShape};
use super::routing::{SigmoidRouting, SoftmaxRouting};
use super::shared_expert::SharedShape;
use crate::load::LoadError;

/// What configs and checkpoints call the parts of layers with experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlpTerms {
    /// The key of the number of experts.
    pub(crate) n_experts: &'static str,
    /// The key of the number of experts that every row gets.
    pub(crate) n_shared: &'static str,
    /// The key of the factor of the experts' weights.
    pub(crate) scale: &'static str,
    /// The router, inside a block.
    pub(crate) router: &'static str,
    /// The biases of the choice, inside a block.
    pub(crate) bias: &'static str,
    /// Whether a checkpoint may lack these biases.
    pub(crate) may_lack_bias: bool,
    /// The experts that every row gets, inside a block.
    pub(crate) shared: &'static str,
}

impl MlpTerms {
    /// As most families have them.
    pub(crate) const USUAL: MlpTerms = MlpTerms {
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
pub(crate) struct MlpShape {
    pub(crate) is_dense: Vec<bool>,
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
    Softmax(SoftmaxRouting),
}

impl MlpShape {
    /// Experts that sigmoid scores choose.
    pub(crate) fn read(
        config: &Config,
        n_layers: usize,
        terms: MlpTerms,
    ) -> Result<MlpShape, LoadError> {
        let mut moe = MlpShape::moe(config, terms)?;
        let routing = Routing::Sigmoid(SigmoidRouting::read(config, terms.scale, &mut moe)?);
        MlpShape::with_routing(config, n_layers, terms, moe, routing)
    }

    /// Experts that probabilities choose, of which the terms have no scale and no biases.
    pub(crate) fn by_softmax(
        config: &Config,
        n_layers: usize,
        terms: MlpTerms,
    ) -> Result<MlpShape, LoadError> {
        let moe = MlpShape::moe(config, terms)?;
        let routing = Routing::Softmax(SoftmaxRouting::plain(config.bool("norm_topk_prob")?));
        MlpShape::with_routing(config, n_layers, terms, moe, routing)
    }

    /// Experts that probabilities choose, among the best groups where the config says so.
    pub(crate) fn by_grouped_softmax(
        config: &Config,
        n_layers: usize,
        terms: MlpTerms,
    ) -> Result<MlpShape, LoadError> {
        let mut moe = MlpShape::moe(config, terms)?;
        let routing = Routing::Softmax(SoftmaxRouting::read(config, terms.scale, &mut moe)?);
        MlpShape::with_routing(config, n_layers, terms, moe, routing)
    }

    /// With this between the products of experts.
    pub(crate) fn activated(self, activation: GatedActivation) -> MlpShape {
        let expert = ExpertShape::Three(GatedExpert { activation, ..GatedExpert::USUAL });
        MlpShape { moe: MoeShape { expert, ..self.moe }, ..self }
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
pub(crate) struct MlpBlocks {
    shape: MlpShape,
    moe: MoeBlocks,
    dense: Option<MlpScratch>,
}

impl MlpBlocks {
    pub(crate) fn new(shape: MlpShape, builder: &mut Builder<'_, '_>) -> MlpBlocks {
        let dense = shape.dense_intermediate.map(|cols| MlpScratch::alloc(cols, builder));
        MlpBlocks { moe: MoeBlocks::new(shape.moe, builder), dense, shape }
    }

    /// The MLP of a layer, called `name`.
    pub(crate) fn load(
        &self,
        layer: LayerIdx,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Body, LoadError> {
        if let Some(scratch) =
            self.dense.filter(|_| self.shape.is_dense.get(layer.idx()) == Some(&true))
        {
            return Ok(Body::Dense(Dense::load(scratch, name, builder)?));
        }
        let scoring = match self.shape.routing {
            Routing::Sigmoid(routing) => routing.scoring(self.bias(name, builder)?),
            Routing::Softmax(routing) => routing.scoring(),
        };
        Ok(Body::Moe(self.moe.load(layer, name, scoring, builder)?))
    }

    /// The biases of the choice in the block called `name`.
    fn bias(&self, name: &str, builder: &mut Builder<'_, '_>) -> Result<Option<Vector>, LoadError> {
        let MlpTerms { bias, may_lack_bias, .. } = self.shape.terms;
        let bias = format!("{name}.{bias}");
        let is_there = !may_lack_bias || builder.build.weights.holds(&bias);
        is_there.then(|| builder.vector(&bias, self.shape.moe.n_experts)).transpose()
    }
}
