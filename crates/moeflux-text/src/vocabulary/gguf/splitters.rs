//! The names that `tokenizer.ggml.pre` has for ways to split texts.
//!
//! A GGUF file names the pattern of its tokenizer and holds neither the pattern nor the normaliser.
//! The patterns here are those of the published `tokenizer.json` of the models that a name stands
//! for. Names whose originals are not known for sure are left out: another pattern gives other
//! tokens, and worse text without any error.

use moeflux_core::{Dialects, Patterns, Splitter, Splitting};

use super::super::patterns::{DIGITS_GPT2, KIMI, TEKKEN};

/// Names that tokenizers of several families have, and those of publishers without a family here.
const SPLITTERS: &[(&str, Splitter)] = &[
    ("qwen2", Splitter::new(Splitting::composed(Patterns::Qwen2))),
    ("gpt-4o", Splitter::ignoring_merges(Splitting::of(Patterns::O200k))),
    ("llama4", Splitter::ignoring_merges(Splitting::of(Patterns::O200k))),
    ("kimi-k2", Splitter::ignoring_merges(Splitting::of(KIMI))),
    ("llama-bpe", Splitter::adding_bos(Splitting::of(Patterns::Gpt4))),
    ("llama3", Splitter::adding_bos(Splitting::of(Patterns::Gpt4))),
    ("llama-v3", Splitter::adding_bos(Splitting::of(Patterns::Gpt4))),
    ("lfm2", Splitter::adding_bos(Splitting::of(Patterns::Gpt4))),
    ("tekken", Splitter::adding_bos(Splitting::of(TEKKEN))),
    ("hunyuan", Splitter::new(Splitting::of(Patterns::Qwen2))),
    ("hunyuan-dense", Splitter::new(Splitting::of(Patterns::DeepSeek))),
    ("hy_v4", Splitter::new(Splitting::of(Patterns::DeepSeek))),
    ("joyai-llm", Splitter::new(Splitting::of(Patterns::DeepSeek))),
    ("grok-2", Splitter::new(Splitting::of(Patterns::Qwen2))),
    ("gpt-2", Splitter::new(Splitting::of(Patterns::Gpt2))),
    ("phi-2", Splitter::new(Splitting::of(Patterns::Gpt2))),
    ("refact", Splitter::new(Splitting::of(DIGITS_GPT2))),
];

/// Whether the first files of a tokenizer leave merges to be found by rank: those of Kimi K2 do.
pub(super) fn finds_merges_by_rank(splitter: &Splitter) -> bool {
    splitter.splitting.patterns == KIMI
}

/// All names and what they stand for, in the order in which messages list them.
fn all(dialects: &Dialects) -> impl Iterator<Item = &'static (&'static str, Splitter)> {
    SPLITTERS.iter().chain(dialects.splitters())
}

/// What a name stands for, if it is known.
pub(super) fn named(name: &str, dialects: &Dialects) -> Option<Splitter> {
    all(dialects).find(|(known, _)| *known == name).map(|(_, splitter)| *splitter)
}

/// All names, for messages.
pub(super) fn names(dialects: &Dialects) -> String {
    all(dialects).map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
