//! The patterns by which tokenizers split texts, and the parts of a `tokenizer.json` that they make.

use moeflux_core::{Patterns, Splitting};
use serde_json::{Value, json};

/// Kimi K2 and other models of Moonshot, from their `tokenization_kimi.py`: Han characters apart
/// from other letters.
pub(super) const KIMI: Patterns = Patterns::Own(&[concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)]);

/// Mistral's, from 2024 on.
pub(super) const TEKKEN: Patterns = Patterns::Own(&[concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)]);

/// Digits one by one, then GPT-2's: Granite's.
pub(super) const DIGITS_GPT2: Patterns = Patterns::Own(&[r"\p{N}", GPT2]);

/// GPT-2's, where a normaliser or another pattern comes first.
const GPT2: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// GPT-4's, which transformers takes for vocabularies of tiktoken whose class says nothing else.
const GPT4: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// `Qwen2Tokenizer` of transformers, which Qwen3 uses too, and Qwen's own class.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// `Qwen3_5Tokenizer` of transformers: marks belong to words.
const QWEN3_5: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// GPT-4o's: letters by their case, and slashes after punctuation.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// DeepSeek's since V3: digits, then Chinese and kana, then all else.
const DEEPSEEK: [&str; 3] = [
    r"\p{N}{1,3}",
    "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// The regular expressions, each of which splits the pieces of the one before.
fn regexes(patterns: Patterns) -> &'static [&'static str] {
    match patterns {
        Patterns::Gpt2 => &[GPT2],
        Patterns::Gpt4 => &[GPT4],
        Patterns::O200k => &[O200K],
        Patterns::Qwen2 => &[QWEN2],
        Patterns::Qwen3_5 => &[QWEN3_5],
        Patterns::DeepSeek => &DEEPSEEK,
        Patterns::Own(regexes) => regexes,
    }
}

/// The normalizer and the pre-tokenizer of a `tokenizer.json`.
pub(super) fn parts(splitting: Splitting, add_prefix_space: bool) -> (Value, Value) {
    let byte_level = |use_regex: bool| {
        json!({
            "type": "ByteLevel",
            "add_prefix_space": add_prefix_space,
            "trim_offsets": false,
            "use_regex": use_regex,
        })
    };
    // The library knows GPT-2's pattern.
    if splitting == Splitting::of(Patterns::Gpt2) {
        return (Value::Null, byte_level(true));
    }
    let split = |regex: &&str| {
        json!({
            "type": "Split",
            "pattern": {"Regex": regex},
            "behavior": "Isolated",
            "invert": false,
        })
    };
    let normalizer = if splitting.is_nfc { json!({"type": "NFC"}) } else { Value::Null };
    let regexes = regexes(splitting.patterns).iter();
    let steps: Vec<Value> = regexes.map(split).chain([byte_level(false)]).collect();
    (normalizer, json!({"type": "Sequence", "pretokenizers": steps}))
}
