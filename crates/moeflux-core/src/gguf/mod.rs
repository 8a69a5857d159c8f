//! GGUF: files of llama.cpp that hold a model's tensors, its hyperparameters and its tokenizer.
//!
//! Layout and meaning follow the specification in the ggml repository and its reader.

pub mod arch;
mod bytes;
mod header;
mod metadata;
mod set;
mod split;
mod types;

pub use arch::{Architecture, StoredNames};
pub(crate) use arch::{NamedTensor, translate};
pub use header::{GgufHeader, parse_gguf_header};
pub use metadata::{Array, Metadata, Value};
pub(crate) use set::{Found, GgufSet};
pub use set::{is_only_model, read_metadata};

#[cfg(test)]
mod tests;
