//! Tokenizer classes, and how each splits texts: what neither ranks nor merges say.

use moeflux_core::checkpoint::companions::TIKTOKEN;
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::facts::VocabularyFacts;
use crate::error::{TextError, excerpt};
use crate::vocabulary::files::damaged;

/// How a byte-level vocabulary splits texts before it merges bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splitting {
    /// GPT-2's pattern, which the library knows.
    Gpt2,
    /// Patterns, each within the pieces of the one before, after normalisation to NFC where
    /// `is_nfc` is set.
    Patterns { regexes: &'static [&'static str], is_nfc: bool },
}

impl Splitting {
    /// By these patterns, of texts as they are.
    pub(super) const fn of(regexes: &'static [&'static str]) -> Splitting {
        Splitting::Patterns { regexes, is_nfc: false }
    }

    /// By these patterns, of texts in NFC.
    pub(super) const fn composed(regexes: &'static [&'static str]) -> Splitting {
        Splitting::Patterns { regexes, is_nfc: true }
    }
}

/// Kimi K2 and other models of Moonshot, from their `tokenization_kimi.py`: Han characters apart
/// from other letters.
pub(super) const KIMI: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// `Qwen2Tokenizer` of transformers, which Qwen3 uses too, and Qwen's own class.
pub(super) const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// `Qwen3_5Tokenizer` of transformers: marks belong to words.
pub(super) const QWEN3_5: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// GPT-4's, which transformers takes for vocabularies of tiktoken whose class says nothing else.
pub(super) const GPT4: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// Classes that transformers has, and which say nothing of their own.
const GENERIC: [&str; 2] = ["PreTrainedTokenizer", "TokenizersBackend"];

/// Whether ranks are those of a vocabulary of Moonshot's, whose classes reserve tokens.
pub(super) fn is_kimi(path: &Path, facts: &VocabularyFacts) -> bool {
    let modules = ["tokenization_kimi", "tokenization_moonshot"];
    if facts.module.as_deref().is_some_and(|module| modules.contains(&module)) {
        return true;
    }
    match facts.class.as_deref() {
        Some("TikTokenTokenizer") => true,
        Some(class) if !GENERIC.contains(&class) => false,
        // Moonshot's repositories are the ones with a file of this name.
        None if path.ends_with(TIKTOKEN) => true,
        _ => facts.model_types.iter().any(|name| name.starts_with("kimi")),
    }
}

/// How a vocabulary of ranks splits texts.
///
/// # Errors
/// Where the class is of a module that is published with the model, and not known here.
pub(super) fn of_ranks(path: &Path, facts: &VocabularyFacts) -> Result<Splitting, TextError> {
    match facts.class.as_deref() {
        _ if is_kimi(path, facts) => Ok(Splitting::of(&[KIMI])),
        Some("QWenTokenizer") => Ok(Splitting::composed(&[QWEN2])),
        Some("Llama" | "LlamaTokenizer") => Ok(Splitting::of(&[GPT4])),
        Some(class) if !GENERIC.contains(&class) => Err(unknown_class(path, class)),
        _ => Ok(Splitting::of(&[GPT4])),
    }
}

/// How a vocabulary of merges splits texts.
///
/// # Errors
/// Where neither the class nor the architecture says it.
pub(super) fn of_merges(path: &Path, facts: &VocabularyFacts) -> Result<Splitting, TextError> {
    let qwen2 = Splitting::composed(&[QWEN2]);
    let qwen3_5 = Splitting::composed(&[QWEN3_5]);
    // Some repositories name a class that is not theirs; transformers goes by the architecture.
    let of_type = facts.model_types.iter().find_map(|model_type| match model_type.as_str() {
        "qwen2" => Some(Ok(qwen2)),
        "qwen3_5" | "qwen3_5_moe" | "qwen3_5_moe_text" | "qwen3_5_text" | "qwen4_exp" => {
            Some(Ok(qwen3_5))
        }
        "minimax_m2" => Some(Err(unknown_class(path, "of MiniMax-M2"))),
        _ => None,
    });
    if let Some(of_type) = of_type {
        return of_type;
    }
    match facts.class.as_deref() {
        Some("Qwen2Tokenizer") => Ok(qwen2),
        Some("Qwen3_5Tokenizer") => Ok(qwen3_5),
        Some("GPT2Tokenizer") => Ok(Splitting::Gpt2),
        Some(class) if !GENERIC.contains(&class) => Err(unknown_class(path, class)),
        _ if facts.model_types.iter().any(|name| name.starts_with("qwen")) => Ok(qwen2),
        Some(class) => Err(unknown_class(path, class)),
        None => Ok(Splitting::Gpt2),
    }
}

/// Named tokens that a class has where no file names them.
pub(super) fn named_tokens(path: &Path, facts: &VocabularyFacts) -> BTreeMap<&'static str, String> {
    let named: &[(&str, &str)] = match facts.class.as_deref() {
        _ if is_kimi(path, facts) => &[("bos_token", "[BOS]"), ("eos_token", "[EOS]")],
        Some("GPT2Tokenizer") => &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>")],
        Some("Qwen2Tokenizer" | "Qwen3_5Tokenizer" | "QWenTokenizer") => {
            &[("eos_token", "<|endoftext|>")]
        }
        _ => &[],
    };
    named.iter().map(|(name, text)| (*name, (*text).to_owned())).collect()
}

impl Splitting {
    /// The normalizer and the pre-tokenizer of a `tokenizer.json`.
    pub(super) fn parts(self, add_prefix_space: bool) -> (Value, Value) {
        let byte_level = |use_regex: bool| {
            json!({
                "type": "ByteLevel",
                "add_prefix_space": add_prefix_space,
                "trim_offsets": false,
                "use_regex": use_regex,
            })
        };
        match self {
            Self::Gpt2 => (Value::Null, byte_level(true)),
            Self::Patterns { regexes, is_nfc } => {
                let split = |regex: &&str| {
                    json!({
                        "type": "Split",
                        "pattern": {"Regex": regex},
                        "behavior": "Isolated",
                        "invert": false,
                    })
                };
                let normalizer = if is_nfc { json!({"type": "NFC"}) } else { Value::Null };
                let steps: Vec<Value> =
                    regexes.iter().map(split).chain([byte_level(false)]).collect();
                (normalizer, json!({"type": "Sequence", "pretokenizers": steps}))
            }
        }
    }
}

fn unknown_class(path: &Path, class: &str) -> TextError {
    damaged(
        path,
        format!(
            "how the tokenizer class {} splits texts is not known here, and the file does not \
             say it: put the model's tokenizer.json next to it (transformers' save_pretrained \
             writes one, conversions of the model have one)",
            excerpt(class)
        ),
    )
}
