//! Tokenizer classes, and how each splits texts: what neither ranks nor merges say.

use std::collections::BTreeMap;
use std::path::Path;

use moeflux_core::checkpoint::companions::TIKTOKEN;
use moeflux_core::{Dialects, Patterns, Splitting};

use super::facts::VocabularyFacts;
use super::patterns::KIMI;
use crate::error::{TextError, excerpt};
use crate::vocabulary::files::damaged;

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
        _ if is_kimi(path, facts) => Ok(Splitting::of(KIMI)),
        Some("QWenTokenizer") => Ok(Splitting::composed(Patterns::Qwen2)),
        Some("Llama" | "LlamaTokenizer") => Ok(Splitting::of(Patterns::Gpt4)),
        Some(class) if !GENERIC.contains(&class) => Err(unknown_class(path, class)),
        _ => Ok(Splitting::of(Patterns::Gpt4)),
    }
}

/// How a vocabulary of merges splits texts.
///
/// # Errors
/// Where neither the class nor the architecture says it.
pub(super) fn of_merges(
    path: &Path,
    facts: &VocabularyFacts,
    dialects: &Dialects,
) -> Result<Splitting, TextError> {
    let qwen2 = Splitting::composed(Patterns::Qwen2);
    // Some repositories name a class that is not theirs; transformers goes by the architecture.
    for model_type in &facts.model_types {
        if model_type == "qwen2" {
            return Ok(qwen2);
        }
        if let Some(splitting) = dialects.merges(model_type) {
            let class = format!("of {model_type}");
            return splitting.ok_or_else(|| unknown_class(path, &class));
        }
    }
    match facts.class.as_deref() {
        Some("Qwen2Tokenizer") => Ok(qwen2),
        Some("Qwen3_5Tokenizer") => Ok(Splitting::composed(Patterns::Qwen3_5)),
        Some("GPT2Tokenizer") => Ok(Splitting::of(Patterns::Gpt2)),
        Some(class) if !GENERIC.contains(&class) => Err(unknown_class(path, class)),
        _ if facts.model_types.iter().any(|name| name.starts_with("qwen")) => Ok(qwen2),
        Some(class) => Err(unknown_class(path, class)),
        None => Ok(Splitting::of(Patterns::Gpt2)),
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
