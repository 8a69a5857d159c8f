//! Blocks of integers with their scales in between: the weight types of ggml.
//!
//! A row is a sequence of blocks. Each holds the codes of its columns, packed, and the scales of its
//! groups; the types with 256 columns a block have a second level of integer scales.

/// A weight type of ggml, by its name there.
#[allow(non_camel_case_types, missing_docs, reason = "the names of ggml's types")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    IQ1_M,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

/// What a type is, apart from where its bits lie.
struct Facts {
    block_type: BlockType,
    name: &'static str,
    /// The number in GGUF files.
    id: u32,
    /// Columns of a block.
    cols: usize,
    /// Bytes of a block.
    bytes: usize,
    /// Columns of the groups of products.
    group: usize,
}

const fn facts(
    block_type: BlockType,
    name: &'static str,
    id: u32,
    [cols, bytes, group]: [usize; 3],
) -> Facts {
    Facts { block_type, name, id, cols, bytes, group }
}

/// In the order of the enum.
const FACTS: [Facts; 25] = [
    facts(BlockType::Q4_0, "Q4_0", 2, [32, 18, 32]),
    facts(BlockType::Q4_1, "Q4_1", 3, [32, 20, 32]),
    facts(BlockType::Q5_0, "Q5_0", 6, [32, 22, 32]),
    facts(BlockType::Q5_1, "Q5_1", 7, [32, 24, 32]),
    facts(BlockType::Q8_0, "Q8_0", 8, [32, 34, 32]),
    facts(BlockType::Q2_K, "Q2_K", 10, [256, 84, 16]),
    facts(BlockType::Q3_K, "Q3_K", 11, [256, 110, 16]),
    facts(BlockType::Q4_K, "Q4_K", 12, [256, 144, 32]),
    facts(BlockType::Q5_K, "Q5_K", 13, [256, 176, 32]),
    facts(BlockType::Q6_K, "Q6_K", 14, [256, 210, 16]),
    facts(BlockType::IQ2_XXS, "IQ2_XXS", 16, [256, 66, 32]),
    facts(BlockType::IQ2_XS, "IQ2_XS", 17, [256, 74, 16]),
    facts(BlockType::IQ3_XXS, "IQ3_XXS", 18, [256, 98, 32]),
    facts(BlockType::IQ1_S, "IQ1_S", 19, [256, 50, 32]),
    facts(BlockType::IQ4_NL, "IQ4_NL", 20, [32, 18, 32]),
    facts(BlockType::IQ3_S, "IQ3_S", 21, [256, 110, 32]),
    facts(BlockType::IQ2_S, "IQ2_S", 22, [256, 82, 16]),
    facts(BlockType::IQ4_XS, "IQ4_XS", 23, [256, 136, 32]),
    facts(BlockType::IQ1_M, "IQ1_M", 29, [256, 56, 16]),
    facts(BlockType::TQ1_0, "TQ1_0", 34, [256, 54, 32]),
    facts(BlockType::TQ2_0, "TQ2_0", 35, [256, 66, 32]),
    facts(BlockType::MXFP4, "MXFP4", 39, [32, 17, 32]),
    facts(BlockType::NVFP4, "NVFP4", 40, [64, 36, 16]),
    facts(BlockType::Q1_0, "Q1_0", 41, [128, 18, 32]),
    facts(BlockType::Q2_0, "Q2_0", 42, [64, 18, 32]),
];

impl BlockType {
    /// All types.
    pub fn all() -> impl Iterator<Item = BlockType> {
        FACTS.iter().map(|facts| facts.block_type)
    }

    /// The type with this number in GGUF files.
    pub fn by_id(id: u32) -> Option<BlockType> {
        FACTS.iter().find(|facts| facts.id == id).map(|facts| facts.block_type)
    }

    /// The type with this name.
    pub fn by_name(name: &str) -> Option<BlockType> {
        FACTS.iter().find(|facts| facts.name == name).map(|facts| facts.block_type)
    }

    fn facts(self) -> &'static Facts {
        &FACTS[self as usize]
    }

    /// The number in GGUF files.
    pub fn id(self) -> u32 {
        self.facts().id
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Columns of a block.
    pub fn block_cols(self) -> usize {
        self.facts().cols
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.facts().bytes
    }

    /// Columns that share a scale and a bias in products: 16, or 32 where as many or more share
    /// one.
    pub fn group_cols(self) -> usize {
        self.facts().group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_in_the_order_of_the_enum() {
        for (i, block_type) in BlockType::all().enumerate() {
            assert_eq!(block_type as usize, i, "{block_type:?}");
            assert_eq!(BlockType::by_id(block_type.id()), Some(block_type));
            assert_eq!(BlockType::by_name(&format!("{block_type:?}")), Some(block_type));
        }
    }
}
