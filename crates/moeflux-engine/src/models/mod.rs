//! Model families: one file each, one line each in [`FAMILIES`].

mod deepseek_v3;
mod deepseek_v32;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt_oss;
mod keys;
mod minimax_m2;
mod mixtral;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod tests;

use moeflux_backend::{Backend, CacheSpec, Cols, Inputs, KvType, Weight};
use moeflux_core::checkpoint::Config;

use crate::error::EngineError;
use crate::layers::Step;
use crate::load::{LoadError, Weights};
use keys::FamilyKeys;

/// Builds the model of a config.
type BuildModel = fn(&Config, &mut Build<'_>) -> Result<Box<dyn Model>, LoadError>;

/// How a family is recognised and built.
pub struct Family {
    /// What it is called.
    pub name: &'static str,
    /// The `model_type`s of its configs.
    pub model_types: &'static [&'static str],
    /// Reads the shape from a resolved config and loads the weights.
    build: BuildModel,
}

/// Every family that this engine runs.
pub const FAMILIES: &[Family] = &[
    deepseek_v3::FAMILY,
    deepseek_v32::DEEPSEEK_V32,
    deepseek_v32::GLM_MOE_DSA,
    glm4_moe::FAMILY,
    glm4_moe_lite::FAMILY,
    gpt_oss::FAMILY,
    minimax_m2::FAMILY,
    mixtral::FAMILY,
    qwen3_5_moe::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_next::FAMILY,
];

impl Family {
    /// The family of a config.
    ///
    /// # Errors
    /// Where `model_type` is missing or names no family.
    pub fn of(config: &Config) -> Result<&'static Family, LoadError> {
        let model_type = config.str("model_type")?;
        FAMILIES.iter().find(|it| it.model_types.contains(&model_type)).ok_or_else(|| {
            let known = FAMILIES.iter().flat_map(|it| it.model_types).copied();
            LoadError::UnknownFamily {
                path: config.path().to_path_buf(),
                model_type: model_type.to_owned(),
                known: known.collect::<Vec<_>>().join(", "),
            }
        })
    }

    /// The config as this family reads it: every key under one name, with the
    /// family's own default where it is absent.
    pub(crate) fn resolve(&self, config: &Config) -> Result<Config, LoadError> {
        Ok(FamilyKeys::of(self.name).resolve(config)?)
    }

    /// Reads the shape from a config as stored, and loads the weights.
    pub(crate) fn build(
        &self,
        config: &Config,
        build: &mut Build<'_>,
    ) -> Result<Box<dyn Model>, LoadError> {
        (self.build)(&self.resolve(config)?, build)
    }
}

/// What a family is built with.
pub(crate) struct Build<'a> {
    /// Where weights come from and go to.
    pub(crate) weights: &'a mut dyn Weights,
    /// Rows of the largest batch.
    pub(crate) max_rows: usize,
    /// How large projections treat their inputs.
    pub(crate) inputs: Inputs,
    /// What the user chose.
    pub(crate) variant: Variant,
}

/// What a user may choose about a model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Variant {
    /// Replaces the config's `num_experts_per_tok`.
    pub(crate) top_k: Option<usize>,
    /// How keys and values are stored.
    pub(crate) kv_type: KvType,
    /// Whether there is multi-token prediction.
    pub(crate) mtp: WithMtp,
}

/// When a model has multi-token prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WithMtp {
    /// Where the checkpoint has it.
    #[default]
    Found,
    /// Wherever the family can.
    Always,
    Never,
}

/// The figures of a model that others than its family need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// `hidden_size`.
    pub hidden: usize,
    /// Decoder layers.
    pub n_layers: usize,
    /// Layers with routed experts.
    pub n_moe_layers: usize,
    /// Experts of such a layer.
    pub n_experts: usize,
    /// Of these, how many a token may choose from.
    pub n_eligible: usize,
    /// Experts that a token gets, as this engine runs it.
    pub top_k: usize,
    /// And as the config has it.
    pub config_top_k: usize,
    /// Positions that the model was made for.
    pub max_positions: usize,
    /// What each sequence keeps.
    pub caches: Vec<CacheSpec>,
    /// How many of these, the last, belong to multi-token prediction; 0 where there is none.
    pub n_mtp_caches: usize,
}

impl ModelShape {
    /// Whether the model predicts the token after the next one, too.
    pub fn has_mtp(&self) -> bool {
        self.n_mtp_caches > 0
    }

    /// What the layers of the model itself keep.
    pub(crate) fn own_caches(&self) -> &[CacheSpec] {
        &self.caches[..self.caches.len() - self.n_mtp_caches]
    }

    /// Whether some layer keeps a state that cannot be cut back.
    pub fn is_recurrent(&self) -> bool {
        self.caches.iter().any(CacheSpec::is_recurrent)
    }
}

/// A model, loaded.
pub(crate) trait Model: Send {
    /// Its figures.
    fn shape(&self) -> &ModelShape;

    /// Runs the layers over a batch; the result lies in [`Model::output`].
    fn forward(&self, step: &mut Step<'_>) -> Result<(), EngineError>;

    /// Runs multi-token prediction over a batch whose tokens follow what the model made of the
    /// positions `before` them, a row of [`ModelShape::hidden`] floats each: the output of
    /// [`forward`](Model::forward), or for tokens that are foreseen themselves, of this. The
    /// caches of its layer grow; the result lies in [`Model::output`] if it is wanted, and no
    /// expert runs otherwise.
    ///
    /// # Panics
    /// Where the model has none.
    fn foresee(
        &self,
        step: &mut Step<'_>,
        before: &[f32],
        wants_output: bool,
    ) -> Result<(), EngineError>;

    /// The normalised hidden states that the head multiplies, and the head.
    fn output(&self) -> (Cols, Weight);
}

impl Build<'_> {
    /// Device memory for the rows of a batch, `width` columns wide.
    pub(crate) fn cols(&mut self, width: usize) -> Cols {
        let buf = self.weights.backend().alloc(self.max_rows, width);
        Cols { buf, start: 0, len: width }
    }

    /// The same for what products with one input give, side by side in one
    /// buffer, so that devices may compute them together.
    pub(crate) fn cols_together<const N: usize>(&mut self, widths: [usize; N]) -> [Cols; N] {
        let all = self.cols(widths.iter().sum());
        let mut start = 0;
        widths.map(|len| {
            start += len;
            all.slice(start - len, len)
        })
    }

    /// The device.
    pub(crate) fn backend(&mut self) -> &mut dyn Backend {
        self.weights.backend()
    }
}

/// A config as the family that it names reads it.
#[cfg(test)]
pub(crate) fn resolved(root: serde_json::Value) -> Result<Config, LoadError> {
    let config = Config::from_value(std::path::Path::new("config.json"), root)?;
    Family::of(&config)?.resolve(&config)
}
