//! The types that every other crate shares: ids, quantised matrices, host memory, experts, and the
//! checkpoint formats that they are read from.

pub mod atomic_file;
mod bank;
mod bytes;
pub mod checkpoint;
mod dense_model;
mod dialects;
mod error;
mod expert;
mod file_reader;
pub mod files;
pub mod gguf;
mod ids;
mod json_problem;
mod lock;
pub mod manifest;
mod memory;
mod nanoseconds;
mod option_id;
mod picture_rows;
pub mod private;
pub mod quant;
mod random;
mod rows;
mod spelling;
mod stand_in;
pub mod system;
mod tensor;
mod thread_limits;
pub mod threads;
mod tokenizer_dialect;
mod visible;
mod write_error;

pub use bank::{DerivedBytes, ExpertBank, Extent, ExtentSource, FileIdx, LayerBank, SourceFile};
pub use bytes::{hex, show_bytes};
pub use dialects::Dialects;
pub use expert::{
    Expert, ExpertLayout, ExpertMemory, ExpertParts, GateUp, MatrixLayout, PartSpan, ShapedPart,
};
pub use ids::{ExpertId, ExpertKey, LayerIdx, TokenId};
pub use json_problem::json_problem;
pub use lock::FileLock;
pub use memory::{
    HostBuf, HostSlab, MappedFile, OutOfMemory, PAGE_BYTES, SlabGuard, catch_out_of_memory,
};
pub use nanoseconds::nanoseconds;
pub use option_id::{OptionId, OptionWords, call_options};
pub use picture_rows::PictureRows;
pub use random::{SplitMix64, fnv1a_64};
pub use rows::{RowBank, RowEncoding, RowPart, RowTable};
pub use spelling::Spelling;
pub use stand_in::{StandIn, is_unfinished_name};
pub use thread_limits::explain_thread_error;
pub use tokenizer_dialect::{OwnTemplate, Patterns, Splitter, Splitting, TokenizerDialect};
pub use visible::visible;
pub use write_error::WriteError;
