//! DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose attention sees only the
//! positions that an indexer chooses. As in transformers'
//! `modeling_deepseek_v32` and `modeling_glm_moe_dsa`.

use moeflux_backend::{KvType, RopePairs, RopeSpec};
use moeflux_core::checkpoint::Config;

use super::Family;
use super::deepseek_v3::{MlpBlocks, MlpShape, MlpTerms};
use crate::layers::builder::{Builder, Outline};
use crate::layers::indexer::{IndexerBlocks, IndexerShape};
use crate::layers::mla::{MlaBlocks, MlaShape, Positions};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const DEEPSEEK_V32: Family = Family {
    name: "deepseek_v32",
    model_types: &["deepseek_v32"],
    build: |config, builder| build(config, builder, &DEEPSEEK),
};

pub(crate) const GLM_MOE_DSA: Family = Family {
    name: "glm_moe_dsa",
    model_types: &["glm_moe_dsa"],
    build: |config, builder| build(config, builder, &GLM),
};

/// In what the two families differ.
struct Differences {
    name: &'static str,
    /// Whether indexers rotate adjacent columns, not halves.
    interleaves_index: bool,
    /// Whether layers may see what an earlier layer chose.
    shares_choices: bool,
}

const DEEPSEEK: Differences =
    Differences { name: "deepseek_v32", interleaves_index: false, shares_choices: false };

const GLM: Differences =
    Differences { name: "glm_moe_dsa", interleaves_index: true, shares_choices: true };

fn build(
    config: &Config,
    build: &mut Build<'_>,
    differences: &Differences,
) -> Result<Box<dyn Model>, LoadError> {
    if build.variant.kv_type == KvType::Q8 {
        return Err(LoadError::IndexedInEights { family: differences.name });
    }
    let outline = Outline::read(config)?;
    let attention = MlaShape::read(config)?;
    let MlaShape { rope_dim, pairs, .. } = attention;
    let Some(q_rank) = attention.q_rank else {
        return Err(config.refuse("q_lora_rank", "be a whole number: indexers read it").into());
    };
    let indexer = IndexerShape::read(config, q_rank, rope_dim)?;
    let is_full = indexed_layers(config, outline.n_layers, differences)?;
    let mlps = MlpShape::read(config, outline.n_layers, MlpTerms::DEEPSEEK)?;
    let index_pairs =
        if differences.interleaves_index { RopePairs::Adjacent } else { RopePairs::Halves };
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
        && types.iter().any(|kind| *kind != "indexed_attention")
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
        let every = config.usize_in("index_topk_freq", 0..=1000)?.max(1);
        let offset = config.usize_in("index_skip_topk_offset", 0..=1000)?;
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
    let text = config.get(key).and_then(|value| value.as_str());
    let all: Option<Vec<bool>> = match text {
        Some(text) => text.split("").filter(|letter| !letter.is_empty()).map(is_full).collect(),
        None => config.str_list(key)?.unwrap_or_default().into_iter().map(is_full).collect(),
    };
    let rule = "hold only \"full\" and \"shared\", or be a text of F and S";
    all.ok_or_else(|| config.refuse(key, rule).into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::super::deepseek_v3::tests::{check_refused, latent_config, shape};

    /// The keys `more` in addition to those of the indexer.
    fn indexed(more: Value) -> Value {
        let mut all = Map::new();
        all.insert("index_head_dim".to_owned(), json!(8));
        all.insert("index_n_heads".to_owned(), json!(3));
        all.insert("index_topk".to_owned(), json!(5));
        all.extend(more.as_object().unwrap().clone());
        Value::Object(all)
    }

    /// Latents and rotated keys take 80 bytes a layer, index keys 32.
    #[track_caller]
    fn check_indexers(model_type: &str, more: Value, n: usize) {
        let shape = shape(latent_config(model_type, &indexed(more))).unwrap();
        let bytes: usize = shape.caches.iter().map(|cache| cache.bytes_per_position()).sum();
        assert_eq!(bytes, 4 * 80 + n * 32);
    }

    #[test]
    fn layers_have_indexers_where_the_config_says_so() {
        check_indexers("deepseek_v32", json!({}), 4);
        check_indexers("deepseek_v32", json!({"index_topk_freq": 4}), 4);
        check_indexers("glm_moe_dsa", json!({}), 4);
        check_indexers("glm_moe_dsa", json!({"index_topk_freq": 4}), 2);
        check_indexers(
            "glm_moe_dsa",
            json!({"index_topk_freq": 3, "index_skip_topk_offset": 1}),
            2,
        );
        check_indexers("glm_moe_dsa", json!({"index_topk_pattern": "FSSF"}), 2);
        let types = ["full", "shared", "shared", "shared"];
        check_indexers("glm_moe_dsa", json!({"indexer_types": types}), 1);
    }

    #[test]
    fn refuses_what_it_does_not_compute() {
        let glm = |more, message| check_refused("glm_moe_dsa", indexed(more), message);
        let message = "index_topk_pattern is \"SFFF\"; it must give the first layer an indexer";
        glm(json!({"index_topk_pattern": "SFFF"}), message);
        let message = "index_topk_pattern is \"FF\"; it must have num_hidden_layers entries";
        glm(json!({"index_topk_pattern": "FF"}), message);
        let message = "index_topk_pattern is \"FXFF\"; \
                       it must hold only \"full\" and \"shared\", or be a text of F and S";
        glm(json!({"index_topk_pattern": "FXFF"}), message);
        let message = "index_head_dim is 3; it must be at least qk_rope_head_dim";
        glm(json!({"index_head_dim": 3}), message);
        let message = "q_lora_rank is null; it must have a value, or be absent for 2048";
        glm(json!({"q_lora_rank": null}), message);
        let message =
            "layer_types is [\"full_attention\"]; it must hold only \"indexed_attention\"";
        glm(json!({"layer_types": ["full_attention"]}), message);
    }
}
