//! Models without experts: known by name, so that what is said of them is more than that they are unknown.

use std::fmt;

use serde_json::Value;

/// A model all of whose weights are used for every token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseModel {
    /// The class, type or architecture that its files name.
    pub name: String,
}

impl fmt::Display for DenseModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "moeflux runs Mixture-of-Experts models, and this one ({}) is dense: llama.cpp, Ollama or \
             mlx-lm run it",
            self.name
        )
    }
}

impl std::error::Error for DenseModel {}

/// `model_type` of configs. A model that sees or hears has the type of its language model.
const TYPES: &[&str] = &[
    "apertus",
    "arcee",
    "baichuan",
    "bitnet",
    "bloom",
    "chatglm",
    "codegen",
    "cohere",
    "cohere2",
    "deci",
    "ernie4_5",
    "exaone",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gemma3n",
    "gemma3n_text",
    "glm",
    "glm4",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "granite",
    "helium",
    "hunyuan_v1_dense",
    "internlm",
    "internlm2",
    "internlm3",
    "llama",
    "llava",
    "mimo",
    "minicpm",
    "minicpm3",
    "ministral",
    "ministral3",
    "mistral",
    "mistral3",
    "mllama",
    "mllama_text_model",
    "mpt",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phi4mm",
    "qwen",
    "qwen2",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen3",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_vl",
    "qwen3_vl_text",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
    "vaultgemma",
    "xglm",
];

/// `general.architecture` of GGUF files without experts, or with experts and without.
const ARCHITECTURES: &[&str] = &[
    "apertus",
    "arcee",
    "baichuan",
    "bitnet",
    "bloom",
    "chatglm",
    "codeshell",
    "cohere2",
    "command-r",
    "deci",
    "ernie4_5",
    "exaone",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3n",
    "glm4",
    "gpt2",
    "gptj",
    "gptneox",
    "granite",
    "hunyuan-dense",
    "internlm2",
    "llama",
    "minicpm",
    "minicpm3",
    "mistral3",
    "mpt",
    "nemotron",
    "olmo",
    "olmo2",
    "orion",
    "phi2",
    "phi3",
    "qwen",
    "qwen2",
    "qwen2vl",
    "qwen3",
    "qwen35",
    "qwen3vl",
    "refact",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder",
    "starcoder2",
    "xverse",
];

/// Keys of configs that count experts.
const COUNTS: [&str; 7] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_experts_per_tok",
    "top_k_experts",
    "moe_topk",
];

impl DenseModel {
    /// What a config describes, if it names a model without experts and counts none, or switches them
    /// off. `get` gives a key of it.
    pub fn of_config<'a>(
        get: impl Fn(&str) -> Option<&'a Value>,
        is_switched_off: bool,
    ) -> Option<DenseModel> {
        let model_type = get("model_type")?.as_str()?;
        let has_experts = |key: &&str| get(key).is_some_and(|count| count.as_u64() != Some(0));
        let counts_experts = COUNTS.iter().any(has_experts);
        if !is_switched_off && (!TYPES.contains(&model_type) || counts_experts) {
            return None;
        }
        let class = get("architectures").and_then(|classes| classes.get(0)?.as_str());
        Some(DenseModel { name: class.unwrap_or(model_type).to_owned() })
    }

    /// A GGUF file of an architecture, with `n_experts` experts. `may_be_dense` says that one that is run
    /// also has files without experts.
    pub(crate) fn of_architecture(
        name: &str,
        n_experts: usize,
        may_be_dense: bool,
    ) -> Option<DenseModel> {
        let is_known = ARCHITECTURES.contains(&name) || may_be_dense;
        (is_known && n_experts == 0).then(|| DenseModel { name: name.to_owned() })
    }
}
