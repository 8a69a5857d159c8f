//! What a family says of its vision tower.

use moeflux_core::checkpoint::Config;

use super::tower::TowerPlan;
use crate::load::LoadError;

/// What a family says of its vision tower.
#[derive(Clone, Copy)]
pub(crate) struct TowerFamily {
    /// The name that the plan has for a tensor, by the canonical one; `None` for tensors of other parts.
    pub(crate) name_of: fn(&str) -> Option<String>,
    /// Reads the plan from the config of the whole model and that of the tower.
    pub(crate) plan: fn(&Config, &Config) -> Result<TowerPlan, LoadError>,
}
