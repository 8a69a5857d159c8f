//! GLM-4.7-Flash: DeepSeek-V3's layers under another name. As in
//! transformers' `modeling_glm4_moe_lite`.

use super::Family;
use crate::decoders::latent;

pub(crate) const FAMILY: Family =
    Family::new("glm4_moe_lite", &["glm4_moe_lite"], include_str!("keys.json"), latent::decoder);
