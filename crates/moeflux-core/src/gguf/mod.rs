//! GGUF: files of llama.cpp that hold a model's tensors, its hyperparameters and its tokenizer.
//!
//! Layout and meaning follow the specification in the ggml repository and its reader.

pub mod arch;
mod bytes;
mod header;
mod metadata;
mod pieces;
mod set;
mod split;
mod towers;
mod types;

pub use arch::{Architecture, StoredNames};
pub(crate) use arch::{NamedTensor, translate};
pub use header::{GgufHeader, parse_gguf_header};
pub use metadata::{Array, Metadata, Value};
pub use pieces::PieceName;
pub(crate) use set::{Found, GgufSet};
pub use set::{PartFile, is_only_model, read_metadata};
pub use split::first_part;
pub(crate) use split::is_gguf_name;
pub use towers::{is_mmproj, preferred_mmproj};

#[cfg(test)]
mod tests;
