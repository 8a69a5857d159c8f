//! What families say of the files that models are read from: the formats here know no family.

use crate::gguf::arch::architecture::Architecture;

/// The names and the layouts that families add to what all checkpoints have.
#[derive(Clone, Debug, Default)]
pub struct Dialects {
    /// Architectures of GGUF files.
    pub architectures: Vec<&'static Architecture>,
    /// What stands before the names of all tensors, next to the prefixes that many exporters write.
    pub prefixes: Vec<&'static str>,
    /// First components of the canonical names of tensors that text generation does not use.
    pub skipped_parts: Vec<&'static str>,
    /// First components of the canonical names of tensors that predict several tokens at once.
    pub mtp_parts: Vec<&'static str>,
    /// Names, below the block, of the module with the rows of gate and of up of all experts, and of that
    /// with the rows of down.
    pub joined_experts: Vec<[&'static str; 2]>,
}

impl Dialects {
    /// The architecture that GGUF files call so.
    pub fn architecture(&self, name: &str) -> Option<&'static Architecture> {
        self.architectures.iter().copied().find(|known| known.name == name)
    }
}
