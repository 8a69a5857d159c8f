//! A model family: all that other code would otherwise look up by its name.

use moeflux_core::checkpoint::{Config, FormatError};
use moeflux_core::gguf::Architecture;
use moeflux_core::{Spelling, TokenizerDialect};
use serde_json::Value;

use super::keys::FamilyKeys;
use super::published::PublishedShape;
use crate::load::LoadError;
use crate::model::{Build, Model};
use crate::towers::TowerFamily;

/// Builds the model of a config.
pub(super) type BuildModel = fn(&Config, &mut Build<'_>) -> Result<Box<dyn Model>, LoadError>;

/// How a family is recognised, read and built.
#[derive(Clone, Copy)]
pub struct Family {
    /// The name, which is that of its folder.
    pub name: &'static str,
    /// The `model_type`s of its configs.
    pub model_types: &'static [&'static str],
    /// A class by which its configs are known where they have the `model_type` of another family.
    pub(super) class: Option<OwnClass>,
    /// The key that turns experts on, where a config may be one of a dense model.
    pub(super) experts_switch: Option<&'static str>,
    /// The architecture of its GGUF files, where it has some. Two families may share one.
    pub gguf: Option<&'static Architecture>,
    /// Shapes of its published models.
    pub shapes: &'static [PublishedShape],
    /// What stands before the names of all tensors, where exporters write another prefix than `model.`
    /// and those of models that also see.
    pub(super) prefixes: &'static [&'static str],
    /// Other names of parts of tensors: those under which transformers 5 holds and trains the model, where they
    /// are not the published ones.
    pub(super) spellings: &'static [Spelling],
    /// First components of the canonical names of tensors that text generation does not use.
    pub(super) skipped_parts: &'static [&'static str],
    /// First components of the canonical names of tensors that predict several tokens at once.
    pub(super) mtp_parts: &'static [&'static str],
    /// Names, below the block, of the module with the rows of gate and of up of all experts, and of that
    /// with the rows of down.
    pub(super) joined_experts: &'static [[&'static str; 2]],
    /// Its vision tower, where it has one.
    pub(crate) tower: Option<TowerFamily>,
    /// What its files leave to the code of tokenizers.
    pub(super) tokenizer: TokenizerDialect,
    /// Reads the shape from a resolved config and loads the weights.
    pub(super) build: BuildModel,
    /// The config keys it reads, as JSON that [`FamilyKeys`] explains.
    pub(super) keys: &'static str,
}

/// A class of models whose configs have the `model_type` of another family.
#[derive(Clone, Copy)]
pub(super) struct OwnClass {
    pub(super) model_type: &'static str,
    pub(super) class: &'static str,
}

impl Family {
    /// A family with no more than it must have.
    pub(super) const fn new(
        name: &'static str,
        model_types: &'static [&'static str],
        keys: &'static str,
        build: BuildModel,
    ) -> Family {
        Family {
            name,
            model_types,
            class: None,
            experts_switch: None,
            gguf: None,
            shapes: &[],
            prefixes: &[],
            spellings: &[],
            skipped_parts: &[],
            mtp_parts: &[],
            joined_experts: &[],
            tower: None,
            tokenizer: TokenizerDialect::NONE,
            build,
            keys,
        }
    }

    /// Whether its class tells a config with the `model_type` of another family for its own.
    pub(super) fn is_by_class(&self, model_type: &str, class: Option<&str>) -> bool {
        self.class.is_some_and(|own| model_type == own.model_type && class == Some(own.class))
    }

    /// Whether a config says that its model has no experts.
    pub(super) fn is_switched_off(&self, config: &Config) -> bool {
        let is_off = |key| config.get(key).is_none_or(|value| *value == false);
        self.experts_switch.is_some_and(is_off)
    }

    /// The config as this family reads it: every key under one name, with the
    /// family's own default where it is absent.
    pub fn resolve(&self, config: &Config) -> Result<Config, LoadError> {
        refuse_substitutes(config)?;
        Ok(FamilyKeys::parse(self.keys).resolve(config, self.model_types)?)
    }

    /// Reads the shape from a config as stored, and loads the weights.
    pub fn build(
        &self,
        config: &Config,
        build: &mut Build<'_>,
    ) -> Result<Box<dyn Model>, LoadError> {
        (self.build)(&self.resolve(config)?, build)
    }
}

/// Refuses a config by which constants stand for pruned experts: without them the checkpoint is another
/// model. Exporters put it into the config itself, or next to the compression of its weights.
fn refuse_substitutes(config: &Config) -> Result<(), FormatError> {
    let rule =
        "be absent: constants in place of experts are not computed; use the model with all experts";
    let is_none = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    };
    let root = config.value();
    for scope in [Some(root), root.get("text_config")].into_iter().flatten() {
        let key = "approximate_experts";
        if let Some(value) = scope.get(key).filter(|value| !is_none(value)) {
            return Err(config.refuse_value(key, value, rule));
        }
        let key = "expert_substitution";
        for compression in ["compression_config", "quantization_config"] {
            let transforms = scope.get(compression).and_then(|part| part.get("transform_config"));
            let found = transforms.and_then(|transforms| transforms.get(key));
            if let Some(value) = found.filter(|value| !is_none(value)) {
                return Err(config.refuse_value(key, value, rule));
            }
        }
    }
    Ok(())
}
