//! Configs of published models, as far as their shapes and arithmetic go.
//! Figures: the models' own `config.json`, and the defaults of transformers'
//! configuration classes that were made after them.

mod latent;
mod others;
mod parts;
mod qwen;

use serde_json::Value;

type Make = fn() -> Value;

/// Shapes by name.
pub(super) const MODELS: &[(&str, Make)] = &[
    ("deepseek-v3", latent::deepseek_v3),
    ("deepseek-v3.2", latent::deepseek_v32),
    ("kimi-k2", latent::kimi_k2),
    ("kimi-k2.5", latent::kimi_k25),
    ("glm-5", latent::glm_5),
    ("glm-5.3", latent::glm_53),
    ("glm-4.7-flash", latent::glm_47_flash),
    ("glm-4.5-air", others::glm_45_air),
    ("glm-4.5v", others::glm_45v),
    ("glm-4.7", others::glm_47),
    ("gemma-4-26b-a4b", others::gemma_4_26b_a4b),
    ("qwen3-30b-a3b", qwen::qwen3_30b_a3b),
    ("qwen3-235b-a22b", qwen::qwen3_235b_a22b),
    ("qwen3-coder-480b-a35b", qwen::qwen3_coder_480b_a35b),
    ("qwen3-vl-30b-a3b", qwen::qwen3_vl_30b_a3b),
    ("qwen3-vl-235b-a22b", qwen::qwen3_vl_235b_a22b),
    ("qwen3-next-80b-a3b", qwen::qwen3_next_80b_a3b),
    ("qwen3.8-flash-next", qwen::qwen38_flash_next),
    ("hy3", others::hy3),
    ("solar-open-100b", others::solar_open_100b),
    ("k-exaone-236b-a23b", others::k_exaone_236b_a23b),
    ("ernie-4.5-21b-a3b", others::ernie_45_21b_a3b),
    ("ling-mini-2.0", others::ling_mini_20),
    ("mixtral-8x7b", others::mixtral_8x7b),
    ("minimax-m2", others::minimax_m2),
    ("olmoe-1b-7b", others::olmoe_1b_7b),
    ("granite-3.1-3b-a800m", others::granite_31_3b_a800m),
    ("gpt-oss-20b", others::gpt_oss_20b),
    ("gpt-oss-120b", others::gpt_oss_120b),
];
