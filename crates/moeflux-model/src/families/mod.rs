//! Model families: one folder each, one line each in [`FAMILIES`].

mod bailing_moe;
mod bailing_moe_v2;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod deepseek_v4;
mod ernie4_5_moe;
mod exaone_moe;
mod family;
mod gemma4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm4v_moe;
mod glm5_next;
mod glm_moe_dsa;
mod gpt_oss;
mod granitemoe;
mod hy_v3;
mod keys;
mod kimi_linear;
mod minimax_m2;
mod mixtral;
mod nemotron_h;
mod olmoe;
mod published;
mod qwen2_moe;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl_moe;
mod qwen4_exp;
#[cfg(test)]
mod refusals;
mod solar_open;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::LazyLock;

use moeflux_core::Dialects;
use moeflux_core::checkpoint::{Checkpoint, Config, DenseModel, FormatError};

use crate::load::LoadError;

pub use self::family::Family;
pub use self::published::PublishedShape;

/// Every family that this engine runs.
pub const FAMILIES: &[Family] = &[
    bailing_moe::FAMILY,
    bailing_moe_v2::FAMILY,
    deepseek_v2::FAMILY,
    deepseek_v3::FAMILY,
    deepseek_v32::FAMILY,
    deepseek_v4::FAMILY,
    glm_moe_dsa::FAMILY,
    ernie4_5_moe::FAMILY,
    exaone_moe::FAMILY,
    gemma4::FAMILY,
    glm4_moe::FAMILY,
    glm4_moe_lite::FAMILY,
    glm4v_moe::FAMILY,
    glm5_next::FAMILY,
    gpt_oss::FAMILY,
    granitemoe::FAMILY,
    hy_v3::FAMILY,
    kimi_linear::FAMILY,
    minimax_m2::FAMILY,
    mixtral::FAMILY,
    nemotron_h::FAMILY,
    olmoe::FAMILY,
    qwen2_moe::FAMILY,
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
        let model_type = config.str("model_type")?;
        let class = config.get("architectures").and_then(|classes| classes.get(0)?.as_str());
        let by_class = FAMILIES.iter().find(|family| family.is_by_class(model_type, class));
        let by_type = || FAMILIES.iter().find(|family| family.model_types.contains(&model_type));
        let family = by_class.or_else(by_type);
        let is_switched_off = family.is_some_and(|family| family.is_switched_off(config));
        if let Some(source) = DenseModel::of_config(|key| config.get(key), is_switched_off) {
            return Err(FormatError::Dense { path: config.path().to_path_buf(), source }.into());
        }
        family.ok_or_else(|| {
            let known = FAMILIES.iter().flat_map(|family| family.model_types).copied();
            LoadError::UnknownFamily {
                path: config.path().to_path_buf(),
                model_type: model_type.to_owned(),
                known: known.collect::<Vec<_>>().join(", "),
            }
        })
    }
}

/// What all families say of the files that models are read from.
pub fn dialects() -> &'static Dialects {
    static DIALECTS: LazyLock<Dialects> = LazyLock::new(|| {
        let mut dialects = Dialects::default();
        for family in FAMILIES {
            if let Some(architecture) = family.gguf
                && !dialects.architectures.iter().any(|known| std::ptr::eq(*known, architecture))
            {
                dialects.architectures.push(architecture);
            }
            dialects.prefixes.extend(family.prefixes);
            if !family.spellings.is_empty() {
                dialects.spellings.push((family.model_types, family.spellings));
            }
            dialects.skipped_parts.extend(family.skipped_parts);
            dialects.mtp_parts.extend(family.mtp_parts);
            dialects.joined_experts.extend(family.joined_experts);
            dialects.tokenizers.push(&family.tokenizer);
        }
        dialects.architectures.sort_unstable_by_key(|architecture| architecture.name);
        dialects
    });
    &DIALECTS
}

/// Opens the checkpoint in a directory; `path` may also name a file of it.
///
/// # Errors
/// As [`Checkpoint::open`].
pub fn open_checkpoint(path: &Path) -> Result<Checkpoint, FormatError> {
    Checkpoint::open(path, dialects())
}

/// A family whose experts are chosen by sigmoids and whose heads rotate, for tests of layers.
#[cfg(test)]
pub(crate) const EXAMPLE: &Family = &glm4_moe::FAMILY;

/// A config as the family that it names reads it.
#[cfg(test)]
pub(crate) fn resolved(root: serde_json::Value) -> Result<Config, LoadError> {
    let config = Config::from_value(Path::new("config.json"), root)?;
    Family::of(&config)?.resolve(&config)
}
