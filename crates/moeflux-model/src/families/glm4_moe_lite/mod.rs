//! GLM-4.7-Flash: DeepSeek-V3's layers under another name. As in
//! transformers' `modeling_glm4_moe_lite`.

pub(super) mod shapes;

use super::Family;
use crate::decoders::latent;

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&super::deepseek_v3::gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    ..Family::new("glm4_moe_lite", &["glm4_moe_lite"], include_str!("keys.json"), latent::decoder)
};
