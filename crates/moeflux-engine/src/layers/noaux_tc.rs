//! DeepSeek-V3's blocks: dense layers first, then experts that sigmoid
//! scores with a correction bias choose (`noaux_tc`; as in transformers'
//! `modeling_deepseek_v3`), and shared experts of one width.

use moeflux_backend::{ExpertGroups, Scoring};
use moeflux_core::LayerIdx;
use moeflux_core::checkpoint::Config;

use super::decoder::{Builder, Mlp};
use super::dense::{Dense, GatedScratch};
use super::moe::{MoeBlocks, MoeShape, SharedShape};
use crate::load::LoadError;
use crate::models::Variant;

/// What the blocks of a model have in common.
#[derive(Clone, Debug)]
pub(crate) struct BlocksShape {
    moe: MoeShape,
    /// Columns of dense layers between their products.
    dense_intermediate: usize,
    is_dense: Vec<bool>,
    groups: Option<ExpertGroups>,
    renormalise: bool,
    scale: f32,
}

impl BlocksShape {
    /// Of `n_layers` layers, the first `n_dense` of which are dense where the
    /// config does not say.
    pub(crate) fn read(
        config: &Config,
        n_layers: usize,
        n_dense: usize,
    ) -> Result<BlocksShape, LoadError> {
        config.require_default("topk_method", "noaux_tc")?;
        config.require_default("scoring_func", "sigmoid")?;
        let moe = MoeShape::read(config, "n_routed_experts", "moe_intermediate_size")?;
        let n_shared = config.usize_or("n_shared_experts", 0)?;
        let intermediate = moe.intermediate.saturating_mul(n_shared);
        let shared = SharedShape { name: "shared_experts", intermediate, gate: None };
        let groups = groups(config, moe.n_experts)?;
        let shape = BlocksShape {
            moe: MoeShape { shared: (n_shared > 0).then_some(shared), ..moe },
            dense_intermediate: config.usize("intermediate_size")?,
            is_dense: dense_layers(config, n_layers, n_dense)?,
            groups,
            renormalise: config.bool_or("norm_topk_prob", true)?,
            scale: config.f32_or("routed_scaling_factor", 1.0)?,
        };
        if moe.config_top_k > shape.n_eligible() {
            let rule = "be at most the experts of topk_group groups";
            return Err(config.refuse("num_experts_per_tok", rule).into());
        }
        Ok(shape)
    }

    /// Experts that a token may get.
    fn n_eligible(&self) -> usize {
        self.groups.map_or(self.moe.n_experts, |it| self.moe.n_experts / it.n * it.kept)
    }

    /// What the user chose, as far as groups allow.
    pub(crate) fn limit(&self, variant: Variant) -> Variant {
        Variant { top_k: variant.top_k.map(|it| it.min(self.n_eligible())), ..variant }
    }
}

/// `n_group` and `topk_group`; one group is none.
fn groups(config: &Config, n_experts: usize) -> Result<Option<ExpertGroups>, LoadError> {
    let (n, kept) = (config.usize_or("n_group", 1)?, config.usize_or("topk_group", 1)?);
    if !n_experts.is_multiple_of(n) || (n > 1 && n_experts / n < 2) {
        let rule = "divide n_routed_experts into groups of two or more";
        return Err(config.refuse("n_group", rule).into());
    }
    if kept > n {
        return Err(config.refuse("topk_group", "be at most n_group").into());
    }
    Ok((n > 1).then_some(ExpertGroups { n, kept }))
}

/// `mlp_layer_types` where the config has it; else the first
/// `first_k_dense_replace` layers, and those that `moe_layer_freq` passes over.
fn dense_layers(config: &Config, n_layers: usize, n_dense: usize) -> Result<Vec<bool>, LoadError> {
    let Some(types) = config.str_list("mlp_layer_types")? else {
        let n_dense = match config.get("first_k_dense_replace") {
            Some(_) => config.usize_in("first_k_dense_replace", 0..=n_layers - 1)?,
            None => n_dense.min(n_layers - 1),
        };
        let every = config.usize_or("moe_layer_freq", 1)?;
        let is_dense: Vec<bool> =
            (0..n_layers).map(|i| i < n_dense || !i.is_multiple_of(every)).collect();
        if is_dense.iter().all(|it| *it) {
            return Err(config.refuse("moe_layer_freq", "leave a layer with experts").into());
        }
        return Ok(is_dense);
    };
    let refuse = |rule| LoadError::from(config.refuse("mlp_layer_types", rule));
    if types.len() != n_layers {
        return Err(refuse("have num_hidden_layers entries"));
    }
    if types.iter().any(|it| !["dense", "sparse"].contains(it)) {
        return Err(refuse("hold only \"dense\" and \"sparse\""));
    }
    if !types.contains(&"sparse") {
        return Err(refuse("have a \"sparse\" layer"));
    }
    Ok(types.iter().map(|it| *it == "dense").collect())
}

/// Loads blocks that share their activations.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    shape: BlocksShape,
    moe: MoeBlocks,
    dense: Option<GatedScratch>,
}

impl Blocks {
    /// Allocates what the blocks of a model share.
    pub(crate) fn new(shape: BlocksShape, builder: &mut Builder<'_, '_>) -> Blocks {
        let has_dense = shape.is_dense.contains(&true);
        let dense = has_dense.then(|| GatedScratch::alloc(shape.dense_intermediate, builder));
        Blocks { moe: MoeBlocks::new(shape.moe, builder), dense, shape }
    }

    /// The block of a layer, called `name`.
    pub(crate) fn load(
        &self,
        layer: LayerIdx,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Mlp, LoadError> {
        let BlocksShape { groups, renormalise, scale, ref is_dense, .. } = self.shape;
        if let Some(scratch) = self.dense.filter(|_| is_dense[layer.idx()]) {
            return Ok(Mlp::Dense(Dense::load(scratch, name, builder)?));
        }
        let bias = format!("{name}.gate.e_score_correction_bias");
        let bias = Some(builder.vector(&bias, self.shape.moe.n_experts)?);
        let scoring = Scoring::Sigmoid { bias, groups, renormalise, scale };
        Ok(Mlp::Moe(self.moe.load(layer, name, scoring, builder)?))
    }
}
