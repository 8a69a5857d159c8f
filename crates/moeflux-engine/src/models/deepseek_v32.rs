//! DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose attention sees only the
//! positions that an indexer chooses. As in transformers'
//! `modeling_deepseek_v32` and `modeling_glm_moe_dsa`.

use moeflux_backend::{RopePairs, RopeSpec};
use moeflux_core::checkpoint::Config;

use super::deepseek_v3::{Defaults, MlpBlocks, MlpShape, outline};
use super::{Build, Family, Model};
use crate::layers::decoder::Builder;
use crate::layers::indexer::{IndexerBlocks, IndexerShape};
use crate::layers::mla::{MlaBlocks, MlaShape, Positions};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::load::LoadError;

pub(crate) const DEEPSEEK_V32: Family = Family {
    name: "deepseek_v32",
    model_types: &["deepseek_v32"],
    build: |config, it| build(config, it, &DEEPSEEK),
};

pub(crate) const GLM_MOE_DSA: Family = Family {
    name: "glm_moe_dsa",
    model_types: &["glm_moe_dsa"],
    build: |config, it| build(config, it, &GLM),
};

/// In what the two families differ.
struct Differences {
    defaults: Defaults,
    /// Whether indexers rotate adjacent columns, not halves.
    interleaves_index: bool,
    /// Whether layers may see what an earlier layer chose.
    shares_choices: bool,
}

const DEEPSEEK: Differences = Differences {
    defaults: Defaults { n_dense: 3, eps: 1e-6 },
    interleaves_index: false,
    shares_choices: false,
};

const GLM: Differences = Differences {
    defaults: Defaults { n_dense: 3, eps: 1e-5 },
    interleaves_index: true,
    shares_choices: true,
};

fn build(
    config: &Config,
    build: &mut Build<'_>,
    differences: &Differences,
) -> Result<Box<dyn Model>, LoadError> {
    let outline = outline(config, differences.defaults)?;
    let attention = MlaShape::read(config)?;
    let MlaShape { rope_dim, pairs, .. } = attention;
    let Some(q_rank) = attention.q_rank else {
        return Err(config.refuse("q_lora_rank", "be a whole number: indexers read it").into());
    };
    let indexer = IndexerShape::read(config, q_rank, rope_dim)?;
    let is_full = indexed_layers(config, outline.n_layers, differences)?;
    let mlps = MlpShape::read(config, outline.n_layers, differences.defaults)?;
    let interleaves = config.bool_or("indexer_rope_interleave", differences.interleaves_index)?;
    let index_pairs = if interleaves { RopePairs::Adjacent } else { RopePairs::Halves };
    let rope = rope::with_dim(config, rope_dim)?;
    let index_rope = RopeSpec { pairs: index_pairs, ..rope.clone() };
    let rope = build.backend().load_rope(RopeSpec { pairs, ..rope });
    let index_rope = build.backend().load_rope(index_rope);
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = MlaBlocks::new(attention, rope, &mut builder);
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
        builder.layer(name, Box::new(mixer), mlp)
    })
}

/// Which layers have an indexer.
fn indexed_layers(
    config: &Config,
    n_layers: usize,
    differences: &Differences,
) -> Result<Vec<bool>, LoadError> {
    if let Some(types) = config.str_list("layer_types")?
        && types.iter().any(|it| *it != "indexed_attention")
    {
        return Err(config.refuse("layer_types", "hold only \"indexed_attention\"").into());
    }
    if differences.shares_choices {
        full_indexers(config, n_layers)
    } else {
        Ok(vec![true; n_layers])
    }
}

/// `indexer_types`, else `index_topk_pattern`, else every
/// `index_topk_freq`th layer from `index_skip_topk_offset - 1` on and those
/// before.
fn full_indexers(config: &Config, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    let (key, is_full) = if config.get("indexer_types").is_some() {
        ("indexer_types", listed_indexers(config, "indexer_types")?)
    } else if config.get("index_topk_pattern").is_some() {
        ("index_topk_pattern", listed_indexers(config, "index_topk_pattern")?)
    } else {
        let every = config.usize_or("index_topk_freq", 0)?.max(1);
        let offset = match config.get("index_skip_topk_offset") {
            Some(_) => config.usize_in("index_skip_topk_offset", 0..=1000)?,
            None => 2,
        };
        let is_full = |i: usize| (i + 1).saturating_sub(offset).is_multiple_of(every);
        ("index_skip_topk_offset", (0..n_layers).map(is_full).collect())
    };
    if is_full.len() != n_layers {
        return Err(config.refuse(key, "have num_hidden_layers entries").into());
    }
    if !is_full[0] {
        return Err(config.refuse(key, "give the first layer an indexer").into());
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
    let text = config.get(key).and_then(|it| it.as_str());
    let all: Option<Vec<bool>> = match text {
        Some(text) => text.split("").filter(|it| !it.is_empty()).map(is_full).collect(),
        None => config.str_list(key)?.unwrap_or_default().into_iter().map(is_full).collect(),
    };
    let rule = "hold only \"full\" and \"shared\", or be a text of F and S";
    all.ok_or_else(|| config.refuse(key, rule).into())
}
