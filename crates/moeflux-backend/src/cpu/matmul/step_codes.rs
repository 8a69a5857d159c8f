//! The codes of a step of blocks of ggml, a byte a column, as [`BlockType::decode_codes`] defines them.
//!
//! What bytes of a type become its codes is said once, in [`codes`]. How an instruction set does it is
//! its [`StepCodes`].

use moeflux_core::quant::{BlockType, Codebooks};

use super::by_type::by_type;
use super::integers::E2M1_INTEGERS;
use super::steps::{of, step_bytes};

/// Vectors with the codes of 256 columns in their order. As with [`Lanes`](super::lanes::Lanes),
/// holding a value is the proof that the machine has the instructions.
pub(super) trait StepCodes: Copy {
    /// The vectors.
    type Codes: Copy;

    /// The codes of a type, through memory: for types that have no faster way.
    fn decoded(self, block_type: BlockType, step: &[u8]) -> Self::Codes;
    /// Eight blocks of 32 columns in `BYTES` bytes, whose nibbles begin at `AT`: the lower ones of
    /// sixteen bytes, then the upper ones.
    fn nibbles_of_32<const BYTES: usize, const AT: usize>(self, step: &[u8]) -> Self::Codes;
    /// Adds sixteen where the bit of a column is set, in eight blocks of 32 columns, in `BYTES` bytes,
    /// whose bits begin at `AT`.
    fn add_fifth_bits<const BYTES: usize, const AT: usize>(
        self,
        step: &[u8],
        codes: Self::Codes,
    ) -> Self::Codes;
    /// Eight blocks of 32 columns in 34 bytes, after two of them a signed byte a column; the code is
    /// 128 more.
    fn signed_bytes_of_32(self, step: &[u8]) -> Self::Codes;
    /// Two groups of 32 columns for each 32 bytes: the lower nibbles, then the upper ones.
    fn nibble_planes(self, packed: &[u8]) -> Self::Codes;
    /// Adds `VALUE` where the bit of a column is set: bit `i` of the first 32 bytes belongs to the
    /// `i`-th 32 columns.
    fn add_bit_planes<const VALUE: i8>(self, bits: &[u8], codes: Self::Codes) -> Self::Codes;
    /// Four groups of 32 columns for each 32 bytes, two bits each.
    fn two_bit_planes(self, packed: &[u8]) -> Self::Codes;
    /// What codes of four bits stand for.
    fn look_up(self, table: &[u8; 16], codes: Self::Codes) -> Self::Codes;

    /// Two halves of 128 columns: 64 bytes of nibbles each, then for both the upper two bits.
    fn q6_k(self, step: &[u8]) -> Self::Codes;
    /// Sixteen bytes for each of eight groups of 32 columns: the lower nibbles, then the upper ones.
    #[inline(always)]
    fn iq4_xs(self, step: &[u8]) -> Self::Codes {
        let nibbles = self.nibbles_of_32::<16, 0>(&step[8..]);
        self.look_up(&Codebooks::IQ4_LEVELS, nibbles)
    }
    /// Four blocks of 64 columns, each of four groups of eight bytes: lower nibbles, upper nibbles.
    #[inline(always)]
    fn nvfp4(self, step: &[u8]) -> Self::Codes {
        self.decoded(BlockType::NVFP4, step)
    }
    /// Two blocks of 128 columns, a bit each.
    #[inline(always)]
    fn q1_0(self, step: &[u8]) -> Self::Codes {
        self.decoded(BlockType::Q1_0, step)
    }
    /// Four blocks of 64 columns, four columns a byte.
    #[inline(always)]
    fn q2_0(self, step: &[u8]) -> Self::Codes {
        self.decoded(BlockType::Q2_0, step)
    }

    /// Per 32 columns: four indices of eight columns, then four sign fields and a scale in 32 bits.
    fn iq2_xxs(self, block: &[u8; 66]) -> Self::Codes;
    /// Per eight columns 16 bits: nine of an index, seven of a sign field.
    fn iq2_xs(self, block: &[u8; 74]) -> Self::Codes;
    /// Low bytes of indices of eight columns, plain sign bits, the upper two bits of indices.
    fn iq2_s(self, block: &[u8; 82]) -> Self::Codes;
    /// Indices of four columns each; then, per 32 columns, four sign fields and a scale in 32 bits.
    fn iq3_xxs(self, block: &[u8; 98]) -> Self::Codes;
    /// Low bytes of indices of four columns, their ninth bits, plain sign bits.
    fn iq3_s(self, block: &[u8; 110]) -> Self::Codes;
    /// Low bytes of indices of eight columns; per 32 columns 16 bits: four times three upper bits, a
    /// scale, the shift.
    fn iq1_s(self, block: &[u8; 50]) -> Self::Codes;
    /// Low bytes of indices of eight columns; for each a nibble: three upper bits and the shift.
    fn iq1_m(self, block: &[u8; 56]) -> Self::Codes;
}

/// The codes of the blocks of 256 columns, `step_bytes(TYPE)` bytes.
#[inline(always)]
pub(super) fn codes<S: StepCodes, const TYPE: u8>(isa: S, step: &[u8]) -> S::Codes {
    // With a length known here, no load below needs a check.
    let step = &step[..const { step_bytes(TYPE) }];
    by_type!(TYPE {
        BlockType::Q4_0 => isa.nibbles_of_32::<18, 2>(step),
        BlockType::Q4_1 => isa.nibbles_of_32::<20, 4>(step),
        BlockType::Q5_0 => isa.add_fifth_bits::<22, 2>(step, isa.nibbles_of_32::<22, 6>(step)),
        BlockType::Q5_1 => isa.add_fifth_bits::<24, 4>(step, isa.nibbles_of_32::<24, 8>(step)),
        BlockType::Q8_0 => isa.signed_bytes_of_32(step),
        BlockType::IQ4_NL => isa.look_up(&Codebooks::IQ4_LEVELS, isa.nibbles_of_32::<18, 2>(step)),
        BlockType::MXFP4 => isa.look_up(&E2M1_INTEGERS, isa.nibbles_of_32::<17, 1>(step)),
        BlockType::NVFP4 => isa.nvfp4(step),
        BlockType::Q4_K => isa.nibble_planes(&step[16..]),
        BlockType::Q5_K => isa.add_bit_planes::<16>(&step[16..], isa.nibble_planes(&step[48..])),
        BlockType::Q6_K => isa.q6_k(step),
        BlockType::Q2_K => isa.two_bit_planes(&step[16..]),
        BlockType::Q3_K => isa.add_bit_planes::<4>(step, isa.two_bit_planes(&step[32..])),
        BlockType::TQ2_0 => isa.two_bit_planes(step),
        BlockType::IQ4_XS => isa.iq4_xs(step),
        BlockType::Q1_0 => isa.q1_0(step),
        BlockType::Q2_0 => isa.q2_0(step),
        BlockType::IQ2_XXS => isa.iq2_xxs(block(step)),
        BlockType::IQ2_XS => isa.iq2_xs(block(step)),
        BlockType::IQ2_S => isa.iq2_s(block(step)),
        BlockType::IQ3_XXS => isa.iq3_xxs(block(step)),
        BlockType::IQ3_S => isa.iq3_s(block(step)),
        BlockType::IQ1_S => isa.iq1_s(block(step)),
        BlockType::IQ1_M => isa.iq1_m(block(step)),
        BlockType::TQ1_0 => isa.decoded(BlockType::TQ1_0, step),
    })
}

#[inline(always)]
fn block<const N: usize>(step: &[u8]) -> &[u8; N] {
    step.first_chunk().expect("a block")
}
