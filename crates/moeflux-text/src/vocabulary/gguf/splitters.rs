//! The names that `tokenizer.ggml.pre` has for ways to split texts.
//!
//! A GGUF file names the pattern of its tokenizer and holds neither the pattern nor the normaliser.
//! The patterns here are those of the published `tokenizer.json` of the models that a name stands
//! for. Names whose originals are not known for sure are left out: another pattern gives other
//! tokens, and worse text without any error.

use super::super::classes::{GPT4, KIMI, QWEN2, QWEN3_5, Splitting};

/// gpt-oss, Llama 4 and MiniMax-M2: letters by their case, and slashes after punctuation.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// Mistral's, from 2024 on.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// DeepSeek-V3: digits, then Chinese and kana, then all else.
const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// Ling and Ring.
const BAILING: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
);

/// GPT-2's: OLMoE has it after NFC, as `GPTNeoXTokenizer` of transformers, and Granite after
/// digits are split off one by one.
const GPT2: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Splitter {
    /// How texts are split.
    pub(in super::super) splitting: Splitting,
    /// Whether a piece that is a token is that token, whatever its merges give.
    pub(super) ignores_merges: bool,
    /// Whether a text begins with the token that begins texts, where the file does not say it.
    pub(crate) adds_bos: bool,
}

impl Splitter {
    const fn new(splitting: Splitting) -> Splitter {
        Splitter { splitting, ignores_merges: false, adds_bos: false }
    }

    const fn ignoring_merges(splitting: Splitting) -> Splitter {
        Splitter { ignores_merges: true, ..Splitter::new(splitting) }
    }

    const fn adding_bos(splitting: Splitting) -> Splitter {
        Splitter { adds_bos: true, ..Splitter::ignoring_merges(splitting) }
    }
}

/// Names and what they stand for, in the order in which messages list them.
const SPLITTERS: &[(&str, Splitter)] = &[
    ("qwen2", Splitter::new(Splitting::composed(&[QWEN2]))),
    ("qwen35", Splitter::new(Splitting::composed(&[QWEN3_5]))),
    ("deepseek-v3", Splitter::new(Splitting::of(&DEEPSEEK_V3))),
    ("glm4", Splitter::ignoring_merges(Splitting::of(&[GPT4]))),
    ("glm5", Splitter::ignoring_merges(Splitting::of(&[GPT4]))),
    ("chatglm-bpe", Splitter::new(Splitting::of(&[GPT4]))),
    ("gpt-4o", Splitter::ignoring_merges(Splitting::of(&[O200K]))),
    ("llama4", Splitter::ignoring_merges(Splitting::of(&[O200K]))),
    ("minimax-m2", Splitter::new(Splitting::of(&[O200K]))),
    ("kimi-k2", Splitter::ignoring_merges(Splitting::of(&[KIMI]))),
    ("llama-bpe", Splitter::adding_bos(Splitting::of(&[GPT4]))),
    ("llama3", Splitter::adding_bos(Splitting::of(&[GPT4]))),
    ("llama-v3", Splitter::adding_bos(Splitting::of(&[GPT4]))),
    ("lfm2", Splitter::adding_bos(Splitting::of(&[GPT4]))),
    ("tekken", Splitter::adding_bos(Splitting::of(&[TEKKEN]))),
    ("hunyuan", Splitter::new(Splitting::of(&[QWEN2]))),
    ("hunyuan-dense", Splitter::new(Splitting::of(&DEEPSEEK_V3))),
    ("hy_v4", Splitter::new(Splitting::of(&DEEPSEEK_V3))),
    ("joyai-llm", Splitter::new(Splitting::of(&DEEPSEEK_V3))),
    ("bailingmoe", Splitter::new(Splitting::of(&[BAILING]))),
    ("bailingmoe2", Splitter::new(Splitting::of(&[BAILING]))),
    ("grok-2", Splitter::new(Splitting::of(&[QWEN2]))),
    ("gpt-2", Splitter::new(Splitting::Gpt2)),
    ("olmo", Splitter::new(Splitting::composed(&[GPT2]))),
    ("phi-2", Splitter::new(Splitting::Gpt2)),
    ("refact", Splitter::new(Splitting::of(&[r"\p{N}", GPT2]))),
];

/// What a name stands for, if it is known.
pub(crate) fn named(name: &str) -> Option<Splitter> {
    SPLITTERS.iter().find(|(known, _)| *known == name).map(|(_, splitter)| *splitter)
}

/// All names, for messages.
pub(super) fn names() -> String {
    SPLITTERS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
