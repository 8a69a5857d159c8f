//! Checkpoints of every format, read in place.
//!
//! All files are untrusted. Offsets, lengths, shapes and counts are checked before use, and nothing
//! here panics, whatever the file contains.

mod checksum;
mod claims;
pub mod companions;
mod config;
mod container;
mod derived;
mod header;
mod identity;
mod json;
mod names;
mod open;
mod opened;
mod part;
mod prepared;
mod published;
mod quantization;
mod record;
mod shards;

pub use checksum::{Checksum, FileChecksums, part_checksum, part_checksum_hex};
pub use claims::{Claims, IndicesSource, MatrixBytes, MatrixSource, VectorSource};
pub use config::{Config, ResolvedKeys, language_model, python_json};
pub use container::{
    Container, PackedFile, PackedLayer, SourceIdentity, StoredFloat, StoredFormat, StoredLevels,
    StoredMode,
};
pub use derived::Turned;
pub use header::{Header, open_safetensors, parse_safetensors_header};
pub use opened::{Checkpoint, CheckpointKind};
pub use part::{PartConfig, PartTensor, open_part};
pub use prepared::{layer_file_name, parse_model_weights};
pub use quantization::Precision;
pub use record::{PartFormats, record_layout};
pub use shards::WeightFiles;

pub use crate::bank::Extent;
pub use crate::dense_model::DenseModel;
pub use crate::error::FormatError;
pub use crate::file_reader::FileReader;
pub use crate::tensor::{Dtype, Tensor};

#[cfg(test)]
mod tests;
