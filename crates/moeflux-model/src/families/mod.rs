//! Model families: one file each, one line each in [`FAMILIES`].

mod bailing_moe;
mod deepseek_v3;
mod deepseek_v32;
mod ernie4_5_moe;
mod exaone_moe;
mod family;
mod gemma4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm4v_moe;
mod gpt_oss;
mod granitemoe;
mod hy_v3;
mod keys;
mod minimax_m2;
mod mixtral;
mod olmoe;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl_moe;
mod qwen4_exp;
#[cfg(test)]
mod refusals;
mod solar_open;
#[cfg(test)]
mod tests;

use moeflux_core::checkpoint::{Config, DenseModel, FormatError};

use crate::load::LoadError;

pub use self::family::Family;

/// Every family that this engine runs.
pub const FAMILIES: &[Family] = &[
    bailing_moe::BAILING_MOE,
    bailing_moe::BAILING_MOE_V2,
    deepseek_v3::FAMILY,
    deepseek_v32::DEEPSEEK_V32,
    deepseek_v32::GLM_MOE_DSA,
    ernie4_5_moe::FAMILY,
    exaone_moe::FAMILY,
    gemma4::FAMILY,
    glm4_moe::FAMILY,
    glm4_moe_lite::FAMILY,
    glm4v_moe::FAMILY,
    gpt_oss::FAMILY,
    granitemoe::FAMILY,
    hy_v3::FAMILY,
    minimax_m2::FAMILY,
    mixtral::FAMILY,
    olmoe::FAMILY,
    qwen3_5_moe::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_next::FAMILY,
    qwen3_vl_moe::FAMILY,
    qwen4_exp::FAMILY,
    solar_open::FAMILY,
];

impl Family {
    /// The family of a config.
    ///
    /// # Errors
    /// Where `model_type` is missing or names no family.
    pub fn of(config: &Config) -> Result<&'static Family, LoadError> {
        let mut model_type = config.str("model_type")?;
        let class = config.get("architectures").and_then(|classes| classes.get(0)?.as_str());
        if model_type == "bailing_moe" && class == Some(bailing_moe::SECOND_CLASS) {
            model_type = "bailing_moe_v2";
        }
        if let Some(source) = DenseModel::of_config(|key| config.get(key)) {
            return Err(FormatError::Dense { path: config.path().to_path_buf(), source }.into());
        }
        FAMILIES.iter().find(|family| family.model_types.contains(&model_type)).ok_or_else(|| {
            let known = FAMILIES.iter().flat_map(|family| family.model_types).copied();
            LoadError::UnknownFamily {
                path: config.path().to_path_buf(),
                model_type: model_type.to_owned(),
                known: known.collect::<Vec<_>>().join(", "),
            }
        })
    }
}

/// A config as the family that it names reads it.
#[cfg(test)]
pub(crate) fn resolved(root: serde_json::Value) -> Result<Config, LoadError> {
    let config = Config::from_value(std::path::Path::new("config.json"), root)?;
    Family::of(&config)?.resolve(&config)
}
