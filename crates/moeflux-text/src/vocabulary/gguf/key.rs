//! Keys of a GGUF file that texts need.

pub(crate) const MODEL: &str = "tokenizer.ggml.model";
pub(crate) const PRE: &str = "tokenizer.ggml.pre";
pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(crate) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
pub(crate) const SCORES: &str = "tokenizer.ggml.scores";
pub(crate) const MERGES: &str = "tokenizer.ggml.merges";
pub(crate) const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
pub(crate) const REMOVE_EXTRA_WHITESPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
pub(crate) const PRECOMPILED_CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
pub(crate) const HUGGINGFACE_JSON: &str = "tokenizer.huggingface.json";
pub(crate) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(crate) const BOS: &str = "tokenizer.ggml.bos_token_id";
pub(crate) const EOS: &str = "tokenizer.ggml.eos_token_id";
pub(crate) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
pub(crate) const EOS_LIST: &str = "tokenizer.ggml.eos_token_ids";
pub(crate) const EOT: &str = "tokenizer.ggml.eot_token_id";
pub(crate) const EOM: &str = "tokenizer.ggml.eom_token_id";
pub(crate) const INFILL_PREFIX: [&str; 2] =
    ["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"];
pub(crate) const INFILL_SUFFIX: [&str; 2] =
    ["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"];
pub(crate) const INFILL_MIDDLE: [&str; 2] =
    ["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"];
