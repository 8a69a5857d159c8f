//! Mixes of block types, as the quantiser of llama.cpp chooses them for models with experts.

use moeflux_core::quant::BlockType;

/// A mix of types, named as files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgufMix {
    name: &'static str,
    /// Of gates and ups of experts.
    gate_up: BlockType,
    /// Of downs, and of those in layers that get more bits.
    down: [BlockType; 2],
    /// Of the values of attention and what has them, likewise.
    values: [BlockType; 2],
    dense: BlockType,
    /// Of downs of MLPs that all tokens pass, likewise.
    dense_down: [BlockType; 2],
    embedding: BlockType,
    head: BlockType,
}

/// What a tensor is for, as far as mixes tell tensors apart. `Values` are also those that are one
/// matrix with queries and keys, or with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    GateUp,
    Down,
    Values,
    Dense,
    DenseDown,
    Embedding,
    Head,
}

/// The same type for everything but the head.
const fn uniform(name: &'static str, all: BlockType, head: BlockType) -> GgufMix {
    GgufMix {
        name,
        gate_up: all,
        down: [all; 2],
        values: [all; 2],
        dense: all,
        dense_down: [all; 2],
        embedding: all,
        head,
    }
}

/// All mixes.
const MIXES: [GgufMix; 10] = [
    uniform("Q8_0", BlockType::Q8_0, BlockType::Q8_0),
    uniform("Q6_K", BlockType::Q6_K, BlockType::Q6_K),
    GgufMix {
        down: [BlockType::Q5_K, BlockType::Q6_K],
        values: [BlockType::Q5_K, BlockType::Q6_K],
        dense_down: [BlockType::Q5_K, BlockType::Q6_K],
        ..uniform("Q5_K_M", BlockType::Q5_K, BlockType::Q6_K)
    },
    GgufMix {
        down: [BlockType::Q4_K, BlockType::Q6_K],
        values: [BlockType::Q4_K, BlockType::Q6_K],
        dense_down: [BlockType::Q4_K, BlockType::Q6_K],
        ..uniform("Q4_K_M", BlockType::Q4_K, BlockType::Q6_K)
    },
    uniform("Q4_0", BlockType::Q4_0, BlockType::Q6_K),
    uniform("IQ4_XS", BlockType::IQ4_XS, BlockType::Q6_K),
    GgufMix {
        gate_up: BlockType::MXFP4,
        down: [BlockType::MXFP4; 2],
        ..uniform("MXFP4_MOE", BlockType::Q8_0, BlockType::Q8_0)
    },
    GgufMix {
        down: [BlockType::Q4_K; 2],
        values: [BlockType::Q4_K; 2],
        dense_down: [BlockType::Q4_K; 2],
        ..uniform("Q3_K_M", BlockType::Q3_K, BlockType::Q6_K)
    },
    GgufMix {
        gate_up: BlockType::Q2_K,
        down: [BlockType::Q3_K; 2],
        values: [BlockType::Q4_K; 2],
        dense_down: [BlockType::Q3_K; 2],
        ..uniform("Q2_K", BlockType::Q2_K, BlockType::Q6_K)
    },
    GgufMix {
        gate_up: BlockType::IQ2_XXS,
        down: [BlockType::IQ3_XXS, BlockType::Q3_K],
        embedding: BlockType::Q4_K,
        ..uniform("UD-IQ2_XXS", BlockType::Q5_K, BlockType::Q6_K)
    },
];

impl GgufMix {
    /// The mix of this name, in capitals or not.
    pub fn by_name(name: &str) -> Option<GgufMix> {
        MIXES.into_iter().find(|mix| mix.name.eq_ignore_ascii_case(name))
    }

    /// The names of all mixes.
    pub fn names() -> impl Iterator<Item = &'static str> {
        MIXES.iter().map(|mix| mix.name)
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The type of a tensor of `cols` columns in a layer; `None` where rows are in no blocks.
    pub(super) fn block_type(self, purpose: Use, layer: LayerOf, cols: usize) -> Option<BlockType> {
        let more = usize::from(layer.gets_more_bits());
        let wanted = match purpose {
            Use::GateUp => self.gate_up,
            Use::Down => self.down[more],
            Use::Values => self.values[more],
            Use::Dense => self.dense,
            Use::DenseDown => self.dense_down[more],
            Use::Embedding => self.embedding,
            Use::Head => self.head,
        };
        [wanted, narrower(wanted)].into_iter().find(|kind| cols.is_multiple_of(kind.block_cols()))
    }
}

/// A layer, counted from 0, of some number of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerOf {
    pub(super) idx: usize,
    pub(super) n: usize,
}

impl LayerOf {
    /// The first and the last eighth, and every third between them.
    fn gets_more_bits(self) -> bool {
        let eighth = self.n / 8;
        self.idx < eighth || self.idx >= 7 * self.n / 8 || (self.idx - eighth) % 3 == 2
    }
}

/// What is taken where rows do not consist of blocks of 256 columns.
fn narrower(kind: BlockType) -> BlockType {
    match kind {
        BlockType::Q4_K => BlockType::Q5_0,
        BlockType::Q5_K => BlockType::Q5_1,
        BlockType::Q6_K => BlockType::Q8_0,
        BlockType::Q2_K | BlockType::Q3_K => BlockType::Q4_0,
        kind if kind.block_cols() == 256 => BlockType::IQ4_NL,
        kind => kind,
    }
}

impl Default for GgufMix {
    /// Q4_K_M, of which most files are.
    fn default() -> GgufMix {
        MIXES[3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_no_whole_blocks_take_smaller_blocks() {
        let mix = GgufMix::default();
        assert_eq!(mix.name(), "Q4_K_M");
        let kind = |purpose, idx, cols| mix.block_type(purpose, LayerOf { idx, n: 40 }, cols);
        assert_eq!(kind(Use::GateUp, 0, 2048), Some(BlockType::Q4_K));
        assert_eq!(kind(Use::Down, 0, 512), Some(BlockType::Q6_K));
        assert_eq!(kind(Use::Down, 5, 512), Some(BlockType::Q4_K));
        assert_eq!(kind(Use::Down, 5, 1408), Some(BlockType::Q5_0));
        assert_eq!(kind(Use::Down, 7, 2880), Some(BlockType::Q8_0));
        assert_eq!(kind(Use::DenseDown, 0, 512), kind(Use::Down, 0, 512));
        assert_eq!(kind(Use::Dense, 0, 40), None);
    }
}
