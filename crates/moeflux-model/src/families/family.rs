//! A model family.

use moeflux_core::checkpoint::Config;

use super::keys::FamilyKeys;
use crate::load::LoadError;
use crate::model::{Build, Model};

/// Builds the model of a config.
pub(super) type BuildModel = fn(&Config, &mut Build<'_>) -> Result<Box<dyn Model>, LoadError>;

/// How a family is recognised and built.
pub struct Family {
    /// What it is called.
    pub name: &'static str,
    /// The `model_type`s of its configs.
    pub model_types: &'static [&'static str],
    /// Reads the shape from a resolved config and loads the weights.
    pub(super) build: BuildModel,
}

impl Family {
    /// The config as this family reads it: every key under one name, with the
    /// family's own default where it is absent.
    pub fn resolve(&self, config: &Config) -> Result<Config, LoadError> {
        Ok(FamilyKeys::of(self.name).resolve(config, self.model_types)?)
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
