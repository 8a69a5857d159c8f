//! The sizes of a model's parts as data: enough to plan a model without its files.

use moeflux_store::usable_memory;
use serde::{Deserialize, Serialize};

use super::{MemoryPlanner, ModelFacts};
use crate::device::DeviceLimits;
use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::plan::Plan;

/// The sizes of a model's parts, whatever is planned for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSizes {
    /// Layers.
    pub n_layers: usize,
    #[serde(flatten)]
    pub(crate) model: ModelFacts,
}

impl MemoryPlanner {
    /// The sizes that it plans with, of a model of `n_layers` layers.
    pub(crate) fn sizes_of_model(&self, n_layers: usize) -> ModelSizes {
        ModelSizes { n_layers, model: self.model.clone() }
    }
}

impl ModelSizes {
    /// Bytes of its weights on the drive, tables included.
    pub fn stored_bytes(&self) -> u64 {
        self.model.resident_bytes + self.model.expert_bytes + self.model.table_bytes
    }

    /// The plan for such a model on this machine.
    ///
    /// # Errors
    /// Where an option makes no sense for it.
    pub fn plan(&self, options: &EngineOptions) -> Result<Plan, EngineError> {
        let limits = DeviceLimits::of(options.compute.device)?;
        MemoryPlanner::of_facts(self.model.clone(), limits, usable_memory(), options)
            .map(|planner| planner.plan())
    }
}
