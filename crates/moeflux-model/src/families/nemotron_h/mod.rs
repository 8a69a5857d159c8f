//! Nemotron 3: layers that are one of Mamba-2, attention without rotation, experts without a gate,
//! or an MLP, by a pattern. As in transformers' `modeling_nemotron_h`.

mod gguf;
mod shapes;

use moeflux_backend::PlainActivation;
use moeflux_core::Spelling;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::layers::attention::{AttentionBlocks, AttentionShape};
use crate::layers::builder::{Builder, Outline};
use crate::layers::dense::{Dense, MlpScratch};
use crate::layers::expert_shape::{Activation, ExpertShape, PlainExpert};
use crate::layers::latent_moe::{LatentBlocks, LatentNames};
use crate::layers::layer::{Body, Layer};
use crate::layers::mamba::{MambaBlocks, MambaShape};
use crate::layers::moe::{MoeBlocks, MoeShape};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::layers::routing::SigmoidRouting;
use crate::layers::shared_expert::SharedShape;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    prefixes: &["backbone."],
    spellings: &[
        Spelling::end(".experts.up_proj", ".experts.up_proj.weight"),
        Spelling::end(".experts.down_proj", ".experts.down_proj.weight"),
    ],
    ..Family::new("nemotron_h", &["nemotron_h"], include_str!("keys.json"), build)
};

/// What a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Mamba,
    Attention,
    Moe,
    Dense,
}

impl Block {
    fn of_letter(letter: char) -> Option<Block> {
        match letter {
            'M' => Some(Block::Mamba),
            '*' => Some(Block::Attention),
            'E' => Some(Block::Moe),
            '-' => Some(Block::Dense),
            _ => None,
        }
    }

    /// Of the names that transformers writes, and those that it wrote before.
    fn of_name(name: &str) -> Option<Block> {
        match name {
            "linear_attention" | "mamba" => Some(Block::Mamba),
            "full_attention" | "attention" => Some(Block::Attention),
            "moe" => Some(Block::Moe),
            "mlp" => Some(Block::Dense),
            _ => None,
        }
    }
}

/// What each layer is. `num_hidden_layers` may say how many there are, and may be absent.
fn blocks(config: &Config) -> Result<Vec<Block>, LoadError> {
    let refuse = |key, rule: &str| Err(config.refuse(key, rule).into());
    let (types, pattern) = ("layers_block_type", "hybrid_override_pattern");
    let (key, blocks): (_, Option<Vec<Block>>) = match config.str_list(types)? {
        Some(names) => (types, names.into_iter().map(Block::of_name).collect()),
        None => (pattern, config.str(pattern)?.chars().map(Block::of_letter).collect()),
    };
    let Some(blocks) = blocks else {
        let rule = if key == types {
            "hold only \"linear_attention\", \"full_attention\", \"moe\" and \"mlp\", or \
             \"mamba\" and \"attention\""
        } else {
            "hold only the letters M, E, * and -"
        };
        return refuse(key, rule);
    };
    if !blocks.contains(&Block::Moe) {
        return refuse(key, "leave experts to some layer");
    }
    let n_layers = "num_hidden_layers";
    if config.get(n_layers).is_some() && config.usize(n_layers)? != blocks.len() {
        return refuse(n_layers, &format!("be {}, as {key} has it, or absent", blocks.len()));
    }
    Ok(blocks)
}

fn outline(config: &Config, n_layers: usize) -> Result<Outline, LoadError> {
    Ok(Outline {
        hidden: config.usize("hidden_size")?,
        n_layers,
        vocab: config.usize("vocab_size")?,
        eps: config.f32("layer_norm_epsilon")?,
        max_positions: config.usize("max_position_embeddings")?,
        is_tied: config.bool("tie_word_embeddings")?,
        embedding: "embeddings",
        end: "norm_f",
        activation: Activation::Plain(PlainActivation::Relu2),
        embed_scale: None,
        logit_scale: None,
        logit_softcap: None,
    })
}

fn moe_shape(config: &Config) -> Result<MoeShape, LoadError> {
    let expert =
        PlainExpert { parts: ["up_proj", "down_proj"], activation: PlainActivation::Relu2 };
    let shared = SharedShape {
        name: "shared_experts",
        intermediate: config.usize("moe_shared_expert_intermediate_size")?,
        gate: None,
    };
    Ok(MoeShape {
        expert: ExpertShape::Two(expert),
        shared: Some(shared),
        ..MoeShape::read(config, "n_routed_experts", "moe_intermediate_size")?
    })
}

/// Experts that read the stream, or fewer columns.
enum Experts {
    Whole(Box<MoeBlocks>),
    Latent(Box<LatentBlocks>),
}

impl Experts {
    const NAMES: LatentNames = LatentNames { into: "fc1_latent_proj", back: "fc2_latent_proj" };

    fn new(
        config: &Config,
        shape: MoeShape,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Experts, LoadError> {
        let key = "moe_latent_size";
        let latent = config.get(key).map(|_| config.usize(key)).transpose()?;
        Ok(match latent {
            Some(latent) => Experts::Latent(Box::new(LatentBlocks::new(shape, latent, builder))),
            None => Experts::Whole(Box::new(MoeBlocks::new(shape, builder))),
        })
    }
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let blocks = blocks(config)?;
    let outline = outline(config, blocks.len())?;
    let (attention, mamba) = (AttentionShape::read(config)?, MambaShape::read(config)?);
    let mut moe = moe_shape(config)?;
    let routing = SigmoidRouting::read(config, "routed_scaling_factor", &mut moe)?;
    let has_dense = blocks.contains(&Block::Dense);
    let dense = has_dense.then(|| config.usize("intermediate_size")).transpose()?;
    let no_rope = build.backend().load_rope(rope::none());
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = AttentionBlocks::new(attention, no_rope, &mut builder);
    let mamba = MambaBlocks::new(mamba, &mut builder);
    let experts = Experts::new(config, moe, &mut builder)?;
    let dense = dense.map(|mlp| MlpScratch::alloc(mlp, &mut builder));
    builder.finish(|builder, idx, name| {
        let mixer = format!("{name}.mixer");
        let body = match (blocks[idx.idx()], dense) {
            (Block::Mamba, _) => Body::mixer(Box::new(mamba.load(&mixer, builder)?)),
            (Block::Attention, _) => Body::mixer(Box::new(attention.load(&mixer, builder)?)),
            (Block::Dense, Some(dense)) => Body::Dense(Dense::load(dense, &mixer, builder)?),
            (Block::Dense | Block::Moe, _) => {
                let bias = format!("{mixer}.gate.e_score_correction_bias");
                let scoring = routing.scoring(Some(builder.vector(&bias, moe.n_experts)?));
                match &experts {
                    Experts::Whole(experts) => {
                        Body::Moe(experts.load(idx, &mixer, scoring, builder)?)
                    }
                    Experts::Latent(experts) => {
                        let names = Experts::NAMES;
                        let moe = experts.load(idx, &mixer, names, scoring, builder)?;
                        Body::Latent(Box::new(moe))
                    }
                }
            }
        };
        Layer::single(builder, &format!("{name}.norm"), body)
    })
}

#[cfg(test)]
mod tests;
