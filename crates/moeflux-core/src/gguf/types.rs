//! The types of tensors in GGUF files, by their numbers.

use crate::checkpoint::Dtype;
use crate::quant::{BlockType, Float};

/// How the elements of a tensor are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorType {
    pub(super) dtype: Dtype,
    /// Elements of a block.
    pub(super) block_cols: usize,
    /// Bytes of a block.
    pub(super) block_bytes: usize,
}

/// Types with one element a block that are not of [`BlockType`].
const PLAIN: [(u32, &str, usize); 8] = [
    (0, "F32", 4),
    (1, "F16", 2),
    (30, "BF16", 2),
    (24, "I8", 1),
    (25, "I16", 2),
    (26, "I32", 4),
    (27, "I64", 8),
    (28, "F64", 8),
];

/// The types that hold rounded inputs of products while a program runs.
const OF_INPUTS: [(u32, &str); 2] = [(9, "Q8_1"), (15, "Q8_K")];

/// The number that ggml once had for Q4_2, and that Ollama's first files of gpt-oss have for blocks of MXFP4 whose
/// elements are in the order of the publisher: two neighbours in a byte.
const OF_OLLAMA: u32 = 4;

/// The types that ggml has given up.
const REMOVED: [(u32, &str); 7] = [
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

/// The numbers from which on forks of llama.cpp count their own types.
const FIRST_OF_FORKS: u32 = 97;

/// Types of a fork other than ik_llama.cpp.
const OF_PRISM: [u32; 2] = [142, 143];

impl TensorType {
    /// The type with this number. The error describes why its elements are not read.
    pub(super) fn by_id(id: u32) -> Result<TensorType, String> {
        if let Some(block) = BlockType::by_id(id) {
            let (block_cols, block_bytes) = (block.block_cols(), block.block_bytes());
            return Ok(TensorType { dtype: Dtype::Ggml(block), block_cols, block_bytes });
        }
        if let Some((_, name, bytes)) = PLAIN.iter().find(|plain| plain.0 == id) {
            return Ok(TensorType { dtype: plain(name), block_cols: 1, block_bytes: *bytes });
        }
        if let Some((_, name)) = OF_INPUTS.iter().find(|inputs| inputs.0 == id) {
            return Err(format!("type {name} is for activations, not for weights"));
        }
        if let Some((_, name)) = REMOVED.iter().find(|removed| removed.0 == id) {
            let remedy = "fetch a newer file of the model, or convert it again";
            return Err(format!("type {id} ({name}) was removed from GGUF; {remedy}"));
        }
        let remedy = "fetch a file for llama.cpp";
        Err(match id {
            OF_OLLAMA => format!(
                "type {id} is MXFP4 in the layout of Ollama's first files of gpt-oss (or Q4_2, which was removed \
                 from GGUF); {remedy}, like ggml-org/gpt-oss-20b-GGUF"
            ),
            _ if OF_PRISM.contains(&id) => {
                format!("type {id} belongs to Prism's fork of llama.cpp; {remedy}")
            }
            FIRST_OF_FORKS..1024 => {
                format!("type {id}: the file was made for ik_llama.cpp; {remedy}")
            }
            _ => format!("type {id} is not a type of GGUF"),
        })
    }
}

fn plain(name: &str) -> Dtype {
    match name {
        "F32" => Dtype::Float(Float::F32),
        "F16" => Dtype::Float(Float::F16),
        "BF16" => Dtype::Float(Float::BF16),
        "I32" => Dtype::I32,
        "I64" => Dtype::I64,
        other => Dtype::Other(other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_every_type_of_weights() {
        for block in BlockType::all() {
            let found = TensorType::by_id(block.id()).unwrap();
            assert_eq!(found.dtype, Dtype::Ggml(block));
        }
        let f16 = TensorType::by_id(1).unwrap();
        assert_eq!((f16.dtype, f16.block_cols, f16.block_bytes), (Dtype::Float(Float::F16), 1, 2));
        assert_eq!(TensorType::by_id(26).unwrap().dtype, Dtype::I32);
        assert_eq!(TensorType::by_id(25).unwrap().dtype, Dtype::Other("I16".to_owned()));
    }

    #[test]
    fn says_whose_a_type_is() {
        let refused = |id| TensorType::by_id(id).unwrap_err();
        assert!(refused(4).contains("Ollama's first files"), "{}", refused(4));
        for id in [4, 5, 31, 32, 33, 36, 37, 38] {
            assert!(refused(id).contains("was removed from GGUF"), "{id}");
        }
        for id in [133, 139, 158, 208, 338, 397] {
            assert!(refused(id).contains("made for ik_llama.cpp"), "{id}");
        }
        assert!(refused(142).contains("Prism"));
        assert!(refused(9).contains("Q8_1"));
        for id in [43, 96, u32::MAX] {
            assert_eq!(refused(id), format!("type {id} is not a type of GGUF"));
        }
    }
}
