//! DeepSeek-V3 and R1, Cogito-V2-671B, Kimi K2 and the text of K2.5: multi-head latent attention,
//! a few dense layers, then experts that sigmoid scores choose. As in
//! transformers' `modeling_deepseek_v3`.

pub(super) mod gguf;
pub(super) mod shapes;
mod tokenizer;

use moeflux_core::Spelling;

use super::Family;
use crate::decoders::latent;
use crate::towers;

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tokenizer: tokenizer::TOKENIZER,
    // Of Kimi K2.5.
    skipped_parts: &["mm_projector"],
    spellings: &[Spelling::start("blocks.", "layers.")],
    tower: Some(towers::flat::TOWER),
    ..Family::new(
        "deepseek_v3",
        &["deepseek_v3", "kimi_k2", "kimi_k25"],
        include_str!("keys.json"),
        latent::decoder,
    )
};

#[cfg(test)]
mod tests;
