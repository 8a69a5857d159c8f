//! GGUF: files of llama.cpp that hold a model's tensors, its hyperparameters and its tokenizer.
//!
//! Layout and meaning follow `docs/gguf.md` of the ggml repository and its reader.

mod metadata;

pub use metadata::{Array, Metadata, Value};
