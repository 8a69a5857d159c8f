//! DeepSeek-V4: a residual of several streams that layers mix, attention to a window of positions and to
//! compressed entries, and first layers whose experts follow from the token. As in transformers'
//! `modeling_deepseek_v4`.

mod gguf;
mod names;
mod shapes;
mod tokenizer;

use moeflux_backend::{GatedActivation, KvType, RopePairs, RopeSpec, Scoring};
use moeflux_core::LayerIdx;
use moeflux_core::checkpoint::Config;
use serde_json::Value;

use super::Family;
use crate::layers::builder::{Builder, Outline};
use crate::layers::compressed_attention::{
    CompressedBlocks, CompressedShape, Compression, MAX_POOL, TurnAndBack,
};
use crate::layers::expert_shape::{Activation, ExpertShape, GatedExpert, bounded_swiglu};
use crate::layers::hyper::HyperShape;
use crate::layers::layer::{Body, Layer};
use crate::layers::moe::{MoeBlocks, MoeShape};
use crate::layers::mtp::MtpNames;
use crate::layers::rope;
use crate::layers::shared_expert::SharedShape;
use crate::layers::token_experts::TokenExperts;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    spellings: names::SPELLINGS,
    skipped_parts: &["aligner", "image_end", "image_newline", "image_pad", "image_start", "vision"],
    tokenizer: tokenizer::TOKENIZER,
    ..Family::new(NAME, &[NAME], include_str!("keys.json"), build)
};

const NAME: &str = "deepseek_v4";

/// What `layer_types` calls layers with entries that an indexer chooses, and the positions of theirs.
const CHOSEN: (&str, usize) = ("compressed_sparse_attention", 4);

/// The same of layers that see all entries.
const ALL: (&str, usize) = ("heavily_compressed_attention", 128);

/// What it calls layers that see positions alone.
const WINDOW: &str = "sliding_attention";

/// What each layer sees: by `layer_types`, else by `compress_ratios`, else alternately, but for the first
/// two layers.
fn compressions(config: &Config, n_layers: usize) -> Result<Vec<Compression>, LoadError> {
    let chosen = Compression::Chosen(rate(config, CHOSEN)?);
    let all = Compression::All(rate(config, ALL)?);
    if let Some(types) = config.str_list("layer_types")? {
        let of_type = |kind: &&str| match *kind {
            WINDOW => Some(Compression::None),
            kind if kind == ALL.0 => Some(all),
            kind if kind == CHOSEN.0 => Some(chosen),
            _ => None,
        };
        let layers: Option<Vec<Compression>> = types.iter().map(of_type).collect();
        let rule = format!("hold {WINDOW:?}, {:?} or {:?} for each layer", CHOSEN.0, ALL.0);
        let layers = layers.filter(|layers| layers.len() == n_layers);
        return layers.ok_or_else(|| config.refuse("layer_types", &rule).into());
    }
    let Some(ratios) = config.usize_list("compress_ratios")? else {
        let alternate = |layer: usize| if layer > 2 && layer % 2 == 1 { chosen } else { all };
        return Ok((0..n_layers).map(alternate).collect());
    };
    // There may be one for the layer of multi-token prediction.
    if ratios.len() < n_layers || ratios.iter().any(|ratio| *ratio > MAX_POOL) {
        let rule = format!("hold a whole number up to {MAX_POOL} for each layer");
        return Err(config.refuse("compress_ratios", &rule).into());
    }
    let of_ratio = |ratio: &usize| match *ratio {
        0 => Compression::None,
        ratio if ratio == CHOSEN.1 => Compression::Chosen(ratio),
        ratio => Compression::All(ratio),
    };
    Ok(ratios[..n_layers].iter().map(of_ratio).collect())
}

/// The positions of an entry in layers of a type.
fn rate(config: &Config, (layer_type, usual): (&str, usize)) -> Result<usize, LoadError> {
    let Some(rates) = config.get("compress_rates") else { return Ok(usual) };
    let rate = rates.get(layer_type).map_or(Some(usual as u64), Value::as_u64);
    let rate = rate.and_then(|rate| usize::try_from(rate).ok());
    let rule = format!("have a whole number from 1 to {MAX_POOL} as {layer_type}");
    let rate = rate.filter(|rate| (1..=MAX_POOL).contains(rate));
    rate.ok_or_else(|| config.refuse("compress_rates", &rule).into())
}

/// Which layers have experts that follow from the token.
fn hash_layers(config: &Config, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    let Some(types) = config.str_list("mlp_layer_types")? else {
        let n = config.usize_in("num_hash_layers", 0..=n_layers)?;
        return Ok((0..n_layers).map(|layer| layer < n).collect());
    };
    let are_known = types.iter().all(|kind| ["hash_moe", "moe"].contains(kind));
    if types.len() != n_layers || !are_known {
        let rule = "hold \"hash_moe\" or \"moe\" for each layer";
        return Err(config.refuse("mlp_layer_types", rule).into());
    }
    Ok(types.iter().map(|kind| *kind == "hash_moe").collect())
}

/// The rotations of layers that see positions alone, and of those that see entries.
fn ropes(config: &Config, head_dim: usize) -> Result<[RopeSpec; 2], LoadError> {
    let read = |name| rope::of_layer_type(config, name, head_dim);
    let both = [read("main")?, read("compress")?];
    if both[0].inv_freq.len() != both[1].inv_freq.len() {
        let rule = "rotate as many columns as \"compress\"";
        return Err(config.refuse("main", rule).into());
    }
    Ok(both.map(|spec| RopeSpec { pairs: RopePairs::Adjacent, ..spec }))
}

fn turn_and_back(spec: RopeSpec, build: &mut Build<'_>) -> TurnAndBack {
    let inv_freq = spec.inv_freq.iter().map(|frequency| -frequency).collect();
    let back = RopeSpec { inv_freq, ..spec.clone() };
    let [turn, back] = [spec, back].map(|spec| build.backend().load_rope(spec));
    TurnAndBack { turn, back }
}

/// How experts are chosen and weighed.
struct Routers {
    scale: f32,
    are_hashed: Vec<bool>,
    moe: MoeShape,
    vocab: usize,
}

impl Routers {
    fn read(
        config: &Config,
        outline: &Outline,
        activation: GatedActivation,
    ) -> Result<Routers, LoadError> {
        let moe = MoeShape::read(config, "n_routed_experts", "moe_intermediate_size")?;
        let shared =
            SharedShape::read(config, "n_shared_experts", "shared_experts", moe.intermediate)?;
        let expert = ExpertShape::Three(GatedExpert { activation, ..GatedExpert::USUAL });
        Ok(Routers {
            scale: config.f32("routed_scaling_factor")?,
            are_hashed: hash_layers(config, outline.n_layers)?,
            moe: MoeShape { shared, expert, ..moe },
            vocab: outline.vocab,
        })
    }

    /// Refuses more experts a token than the tables of layers have.
    fn check(&self, config: &Config, top_k: Option<usize>) -> Result<(), LoadError> {
        let most = self.moe.config_top_k;
        if top_k.is_some_and(|top_k| top_k > most) && self.are_hashed.contains(&true) {
            let rule = "be as many as are asked for: some layers have no more for a token";
            return Err(config.refuse("num_experts_per_tok", rule).into());
        }
        Ok(())
    }

    /// The experts of a layer, called `name`.
    fn load(
        &self,
        blocks: &MoeBlocks,
        layer: LayerIdx,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Body, LoadError> {
        let Routers { scale, moe: MoeShape { n_experts, config_top_k, .. }, .. } = *self;
        let is_hashed = *self.are_hashed.get(layer.idx()).unwrap_or(&false);
        let bias = format!("{name}.gate.e_score_correction_bias");
        leave_aside(&format!("{name}.gate.bias_vl"), n_experts, builder)?;
        let bias = if is_hashed {
            leave_aside(&bias, n_experts, builder)?;
            None
        } else {
            Some(builder.vector(&bias, n_experts)?)
        };
        let scoring = Scoring::SqrtSoftplus { bias, renormalise: true, scale };
        let mut moe = blocks.load(layer, name, scoring, builder)?;
        if is_hashed {
            let (table, shape) = (format!("{name}.gate.tid2eid"), [self.vocab, config_top_k]);
            let weights = &mut *builder.build.weights;
            moe.token_experts = Some(TokenExperts::load(&table, shape, n_experts, scale, weights)?);
        }
        Ok(Body::Moe(moe))
    }
}

/// Takes the vector called `name`, where a checkpoint has it: text does not need it. Such are the biases of
/// scores by which models that see route pictures, and those of layers whose experts follow from the token.
fn leave_aside(name: &str, len: usize, builder: &mut Builder<'_, '_>) -> Result<(), LoadError> {
    let weights = &mut *builder.build.weights;
    if weights.holds(name) {
        weights.vector(name, &[vec![len]])?;
    }
    Ok(())
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    if build.variant.kv_type == KvType::Q8 {
        return Err(LoadError::EightBitIndexedCache { family: NAME });
    }
    let activation = bounded_swiglu(config)?;
    let outline = Outline { activation: Activation::Gated(activation), ..Outline::read(config)? };
    let compressions = compressions(config, outline.n_layers)?;
    let head_dim = config.usize("head_dim")?;
    let ropes = ropes(config, head_dim)?;
    let attention = CompressedShape::read(config, 2 * ropes[0].inv_freq.len())?;
    let routers = Routers::read(config, &outline, activation)?;
    routers.check(config, build.variant.top_k)?;
    let streams = HyperShape { gates_end: true, ..HyperShape::read(config)? };
    let ropes = ropes.map(|spec| turn_and_back(spec, build));
    let mut builder = Builder::of_mixed_streams(streams, outline, build);
    let attention = CompressedBlocks::new(attention, ropes, &mut builder);
    let moe = MoeBlocks::new(routers.moe, &mut builder);
    builder.finish_with(Some(MtpNames::deepseek_streams()), |builder, idx, name| {
        // The layer of multi-token prediction, past the last, sees positions alone.
        let compression = compressions.get(idx.idx()).unwrap_or(&Compression::None);
        let mixer = attention.load(&format!("{name}.self_attn"), *compression, builder)?;
        let mlp = routers.load(&moe, idx, &format!("{name}.mlp"), builder)?;
        Layer::load(builder, name, Box::new(mixer), mlp)
    })
}

#[cfg(test)]
mod tests;
