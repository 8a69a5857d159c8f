//! Decoders with latent attention that sees only the positions that an indexer chooses.

use moeflux_backend::{KvType, RopePairs, RopeSpec};
use moeflux_core::checkpoint::Config;

use crate::layers::builder::{Builder, Outline};
use crate::layers::indexer::{IndexerBlocks, IndexerShape};
use crate::layers::layer::Layer;
use crate::layers::mla::{MlaBlocks, MlaShape, Positions};
use crate::layers::mlps::{MlpBlocks, MlpShape, MlpTerms};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

/// In what families differ.
pub(crate) struct Differences {
    /// The name of the family.
    pub(crate) name: &'static str,
    /// Whether indexers rotate adjacent columns, not halves.
    pub(crate) interleaves_index: bool,
    /// Whether layers may see what an earlier layer chose.
    pub(crate) shares_choices: bool,
}

/// Layers of latent attention to the positions that indexers choose.
pub(crate) fn decoder(
    config: &Config,
    build: &mut Build<'_>,
    differences: &Differences,
) -> Result<Box<dyn Model>, LoadError> {
    if build.variant.kv_type == KvType::Q8 {
        return Err(LoadError::EightBitIndexedCache { family: differences.name });
    }
    let outline = Outline::read(config)?;
    let attention = MlaShape::read(config)?;
    let MlaShape { rope_dim, pairs, .. } = attention;
    let Some(q_rank) = attention.q_rank else {
        return Err(config.refuse("q_lora_rank", "be a whole number: indexers read it").into());
    };
    let indexer = IndexerShape::read(config, q_rank, rope_dim)?;
    let is_full = indexed_layers(config, outline.n_layers, differences)?;
    let mlps = MlpShape::read(config, outline.n_layers, MlpTerms::USUAL)?;
    let index_pairs =
        if differences.interleaves_index { RopePairs::Adjacent } else { RopePairs::Halves };
    let rope = rope::with_dim(config, rope_dim)?;
    let index_rope = RopeSpec { pairs: index_pairs, ..rope.clone() };
    let rope = build.backend().load_rope(RopeSpec { pairs, ..rope });
    let index_rope = build.backend().load_rope(index_rope);
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = MlaBlocks::new(attention, Some(rope), &mut builder);
    let indexers = IndexerBlocks::new(indexer, index_rope, &mut builder);
    let mlps = MlpBlocks::new(mlps, &mut builder);
    builder.finish(|builder, idx, name| {
        let mut mixer = attention.load(&format!("{name}.self_attn"), builder)?;
        mixer.positions = if is_full[idx.idx()] {
            Positions::Indexed(indexers.load(&format!("{name}.self_attn.indexer"), builder)?)
        } else {
            Positions::Chosen(indexers.selection)
        };
        let mlp = mlps.load(idx, &format!("{name}.mlp"), builder)?;
        Layer::load(builder, name, Box::new(mixer), mlp)
    })
}

/// Which layers have an indexer.
fn indexed_layers(
    config: &Config,
    n_layers: usize,
    differences: &Differences,
) -> Result<Vec<bool>, LoadError> {
    if let Some(types) = config.str_list("layer_types")?
        && types.iter().any(|kind| *kind != "indexed_attention")
    {
        return Err(config.refuse("layer_types", "hold only \"indexed_attention\"").into());
    }
    if !differences.shares_choices {
        return Ok(vec![true; n_layers]);
    }
    full_indexers(config, &vec![true; n_layers])
}

/// `indexer_types`, else `index_topk_pattern`, else every
/// `index_topk_freq`th layer from `index_skip_topk_offset - 1` on and those
/// before. `attends` says which layers attend: the first of them needs an indexer.
pub(crate) fn full_indexers(config: &Config, attends: &[bool]) -> Result<Vec<bool>, LoadError> {
    let n_layers = attends.len();
    let (key, is_full) = if config.get("indexer_types").is_some() {
        ("indexer_types", listed_indexers(config, "indexer_types")?)
    } else if config.get("index_topk_pattern").is_some() {
        ("index_topk_pattern", listed_indexers(config, "index_topk_pattern")?)
    } else {
        let every = config.usize_in("index_topk_freq", 0..=1000)?.max(1);
        let offset = config.usize_in("index_skip_topk_offset", 0..=1000)?;
        let is_full = |i: usize| (i + 1).saturating_sub(offset).is_multiple_of(every);
        ("index_skip_topk_offset", (0..n_layers).map(is_full).collect())
    };
    if is_full.len() != n_layers {
        return Err(config.refuse(key, "have num_hidden_layers entries").into());
    }
    if attends.iter().position(|attends| *attends).is_some_and(|first| !is_full[first]) {
        return Err(config.refuse(key, "give the first layer that attends an indexer").into());
    }
    Ok(is_full)
}

/// A list of "full" and "shared", or a text of F and S.
fn listed_indexers(config: &Config, key: &str) -> Result<Vec<bool>, LoadError> {
    let is_full = |it: &str| match it {
        "full" | "F" => Some(true),
        "shared" | "S" => Some(false),
        _ => None,
    };
    let text = config.get(key).and_then(|value| value.as_str());
    let all: Option<Vec<bool>> = match text {
        Some(text) => text.split("").filter(|letter| !letter.is_empty()).map(is_full).collect(),
        None => config.str_list(key)?.unwrap_or_default().into_iter().map(is_full).collect(),
    };
    let rule = "hold only \"full\" and \"shared\", or be a text of F and S";
    all.ok_or_else(|| config.refuse(key, rule).into())
}
