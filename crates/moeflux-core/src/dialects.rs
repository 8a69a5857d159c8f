//! What families say of the files that models are read from: the formats here know no family.

use crate::gguf::arch::architecture::Architecture;
use crate::spelling::Spelling;
use crate::tokenizer_dialect::{OwnTemplate, Splitter, Splitting, TokenizerDialect};

/// The names and the layouts that families add to what all checkpoints have.
#[derive(Clone, Debug, Default)]
pub struct Dialects {
    /// Architectures of GGUF files.
    pub architectures: Vec<&'static Architecture>,
    /// What stands before the names of all tensors, next to the prefixes that many exporters write.
    pub prefixes: Vec<&'static str>,
    /// Other names of parts of tensors, by the `model_type`s of configs.
    pub spellings: Vec<(&'static [&'static str], &'static [Spelling])>,
    /// First components of the canonical names of tensors that text generation does not use.
    pub skipped_parts: Vec<&'static str>,
    /// First components of the canonical names of tensors that predict several tokens at once.
    pub mtp_parts: Vec<&'static str>,
    /// Names, below the block, of the module with the rows of gate and of up of all experts, and of that
    /// with the rows of down.
    pub joined_experts: Vec<[&'static str; 2]>,
    /// What files leave to the code of tokenizers.
    pub tokenizers: Vec<&'static TokenizerDialect>,
}

impl Dialects {
    /// Other names of parts of tensors in checkpoints whose config has this `model_type`.
    pub(crate) fn spellings(&self, model_type: &str) -> &'static [Spelling] {
        let mut all = self.spellings.iter();
        let of_type = all.find(|(model_types, _)| model_types.contains(&model_type));
        of_type.map_or(&[], |(_, spellings)| spellings)
    }

    /// Values of `tokenizer.ggml.pre` and what they stand for.
    pub fn splitters(&self) -> impl Iterator<Item = &'static (&'static str, Splitter)> {
        self.tokenizers.iter().flat_map(|tokenizer| tokenizer.splitters)
    }

    /// Values of `tokenizer.ggml.model` of vocabularies whose merges make pieces of whole texts.
    pub fn merged_pieces(&self) -> impl Iterator<Item = &'static str> {
        self.tokenizers.iter().flat_map(|tokenizer| tokenizer.merged_pieces).copied()
    }

    /// How a pair of vocabulary and merges splits texts where that follows from the `model_type`;
    /// `Some(None)` where no published code says it.
    pub fn merges(&self, model_type: &str) -> Option<Option<Splitting>> {
        let mut all = self.tokenizers.iter().flat_map(|tokenizer| tokenizer.merges);
        all.find(|(known, _)| *known == model_type).map(|(_, splitting)| *splitting)
    }

    /// Chat templates for models that are published without one.
    pub fn templates(&self) -> impl Iterator<Item = &'static OwnTemplate> {
        self.tokenizers.iter().filter_map(|tokenizer| tokenizer.template.as_ref())
    }
}
