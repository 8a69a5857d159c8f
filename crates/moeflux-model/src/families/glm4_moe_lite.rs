//! GLM-4.7-Flash: DeepSeek-V3's layers under another name. As in
//! transformers' `modeling_glm4_moe_lite`.

use super::Family;
use super::deepseek_v3::build;

pub(crate) const FAMILY: Family =
    Family { name: "glm4_moe_lite", model_types: &["glm4_moe_lite"], build };
