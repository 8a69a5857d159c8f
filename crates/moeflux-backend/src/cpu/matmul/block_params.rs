//! Scales and biases of rows of blocks, with the rows as lanes, straight from the blocks.

use moeflux_core::quant::{BlockType, Codebooks, SmallScale};

use super::by_type::by_type;
use super::lanes::{Lanes, RowBytes};
use super::steps::{GROUPS_OF_STEP, of, step_blocks, step_groups};
use super::stored_params::params_of_e2m1;

const IQ2_ZERO: f32 = Codebooks::IQ2_ZERO as f32;

/// Scales and biases of the groups of 256 columns; lanes are rows. Types with groups of 32 columns
/// use the first eight.
pub(super) struct StepParams<L: Lanes> {
    isa: L,
    pub(super) scale: [L::Floats; GROUPS_OF_STEP],
    pub(super) bias: [L::Floats; GROUPS_OF_STEP],
}

/// `n_bits` bits of a word from bit `at` on.
#[inline(always)]
pub(super) fn field<L: Lanes>(isa: L, words: L::Words, at: usize, n_bits: usize) -> L::Words {
    let shifted = isa.shift_right(words, at);
    if at + n_bits == 32 { shifted } else { isa.and(shifted, isa.words((1 << n_bits) - 1)) }
}

impl<L: Lanes> StepParams<L> {
    #[inline(always)]
    pub(super) fn zero(isa: L) -> StepParams<L> {
        let zero = [isa.floats(0.0); GROUPS_OF_STEP];
        StepParams { isa, scale: zero, bias: zero }
    }

    /// Takes those of 256 columns of each row.
    #[inline(always)]
    pub(super) fn load<const TYPE: u8>(&mut self, rows: impl RowBytes<L>) {
        by_type!(TYPE {
            BlockType::Q4_0 => self.centred_blocks::<TYPE>(rows, 8.0),
            BlockType::IQ4_NL => self.centred_blocks::<TYPE>(rows, 127.0),
            BlockType::Q5_0 => self.centred_blocks::<TYPE>(rows, 16.0),
            BlockType::Q8_0 => self.centred_blocks::<TYPE>(rows, 128.0),
            BlockType::Q1_0 | BlockType::Q2_0 => self.centred_blocks::<TYPE>(rows, 1.0),
            BlockType::Q4_1 | BlockType::Q5_1 => self.blocks::<TYPE>(rows),
            BlockType::MXFP4 => self.mxfp4(rows),
            BlockType::NVFP4 => self.nvfp4(rows),
            BlockType::Q2_K => self.q2_k(rows),
            BlockType::Q3_K => self.q3_k(rows),
            BlockType::Q4_K | BlockType::Q5_K => self.scales_and_mins(rows),
            BlockType::Q6_K => self.q6_k(rows),
            BlockType::TQ1_0 => self.ternary(rows, 50),
            BlockType::TQ2_0 => self.ternary(rows, 62),
            BlockType::IQ4_XS => self.iq4_xs(rows),
            BlockType::IQ2_XXS => self.iq2_xxs(rows),
            BlockType::IQ2_XS => self.iq2_nibbles(rows, 66),
            BlockType::IQ2_S => self.iq2_nibbles(rows, 74),
            BlockType::IQ3_XXS => self.iq3_xxs(rows),
            BlockType::IQ3_S => self.iq3_s(rows),
            BlockType::IQ1_S => self.iq1_s(rows),
            BlockType::IQ1_M => self.iq1_m(rows),
        })
    }

    /// Takes those of groups of E2M1, a byte each, four to a word.
    #[inline(always)]
    pub(super) fn set_e2m1<const WORDS: usize>(
        &mut self,
        scale: SmallScale,
        words: [L::Words; WORDS],
    ) {
        for (i, words) in words.into_iter().enumerate() {
            for k in 0..4 {
                let byte = field(self.isa, words, 8 * k, 8);
                let at = 4 * i + k;
                [self.scale[at], self.bias[at]] = params_of_e2m1(self.isa, scale, byte);
            }
        }
    }

    #[inline(always)]
    fn centred(&mut self, group: usize, scale: L::Floats, zero: f32) {
        self.scale[group] = scale;
        self.bias[group] = self.isa.multiply(scale, self.isa.floats(-zero));
    }

    /// As [`field`], as floats.
    #[inline(always)]
    fn number(&self, words: L::Words, at: usize, n_bits: usize) -> L::Floats {
        self.isa.to_floats(field(self.isa, words, at, n_bits))
    }

    /// The two `f16` at `at`.
    #[inline(always)]
    fn factors(&self, rows: impl RowBytes<L>, at: usize) -> [L::Floats; 2] {
        self.isa.f16_pair(rows.word(self.isa, at))
    }

    /// `factor * (0.5 + number) * part`, in this order.
    #[inline(always)]
    fn half_more(&self, factor: L::Floats, number: L::Floats, part: f32) -> L::Floats {
        let isa = self.isa;
        let product = isa.multiply(factor, isa.add(isa.floats(0.5), number));
        isa.multiply(product, isa.floats(part))
    }

    /// `factor * (2 * number + 1)`.
    #[inline(always)]
    fn odd(&self, factor: L::Floats, number: L::Floats) -> L::Floats {
        let isa = self.isa;
        isa.multiply(factor, isa.multiply_add(isa.floats(2.0), number, isa.floats(1.0)))
    }

    /// Blocks that begin with a scale; the codes of zeros are `zero`.
    #[inline(always)]
    fn centred_blocks<const TYPE: u8>(&mut self, rows: impl RowBytes<L>, zero: f32) {
        let n_groups = const { step_groups(TYPE) / step_blocks(TYPE) };
        for i in 0..const { step_blocks(TYPE) } {
            let [scale, _] = self.factors(rows, i * const { of(TYPE).block_bytes() });
            for group in n_groups * i..n_groups * (i + 1) {
                self.centred(group, scale, zero);
            }
        }
    }

    /// Blocks of a group that begin with a scale and a bias.
    #[inline(always)]
    fn blocks<const TYPE: u8>(&mut self, rows: impl RowBytes<L>) {
        for i in 0..const { step_blocks(TYPE) } {
            let at = i * const { of(TYPE).block_bytes() };
            [self.scale[i], self.bias[i]] = self.factors(rows, at);
        }
    }

    /// One scale of 256 columns.
    #[inline(always)]
    fn ternary(&mut self, rows: impl RowBytes<L>, at: usize) {
        let [_, scale] = self.factors(rows, at);
        for group in 0..GROUPS_OF_STEP {
            self.centred(group, scale, 1.0);
        }
    }

    /// A power of two before each 32 columns.
    #[inline(always)]
    fn mxfp4(&mut self, rows: impl RowBytes<L>) {
        for i in 0..8 {
            let exponents = field(self.isa, rows.word(self.isa, 17 * i), 0, 8);
            self.centred(i, self.isa.half_powers(exponents), 12.0);
        }
    }

    /// Four scales before each 64 columns.
    #[inline(always)]
    fn nvfp4(&mut self, rows: impl RowBytes<L>) {
        for i in 0..4 {
            let codes = rows.word(self.isa, 36 * i);
            for k in 0..4 {
                let code = field(self.isa, codes, 8 * k, 8);
                self.centred(4 * i + k, self.isa.half_ue4m3(code), 12.0);
            }
        }
    }

    /// A byte a group: a number of the scale and one of the minimum.
    #[inline(always)]
    fn q2_k(&mut self, rows: impl RowBytes<L>) {
        let isa = self.isa;
        let [d, min] = self.factors(rows, 80);
        let min = isa.subtract(isa.floats(0.0), min);
        for (i, words) in rows.four_words(isa, 0).into_iter().enumerate() {
            for k in 0..4 {
                self.scale[4 * i + k] = isa.multiply(d, self.number(words, 8 * k, 4));
                self.bias[4 * i + k] = isa.multiply(min, self.number(words, 8 * k + 4, 4));
            }
        }
    }

    /// The lower four bits of sixteen numbers, then their upper two bits, then their factor.
    #[inline(always)]
    fn q3_k(&mut self, rows: impl RowBytes<L>) {
        let isa = self.isa;
        let [_, first, second, upper] = rows.four_words(isa, 92);
        let [_, d] = self.factors(rows, 106);
        let parts = [
            (first, isa.shift_left(upper, 4)),
            (second, isa.shift_left(upper, 2)),
            (isa.shift_right(first, 4), upper),
            (isa.shift_right(second, 4), isa.shift_right(upper, 2)),
        ];
        for (i, (four, two)) in parts.into_iter().enumerate() {
            let four = isa.and(four, isa.words(0x0f0f_0f0f));
            let numbers = isa.or(four, isa.and(two, isa.words(0x3030_3030)));
            for k in 0..4 {
                let number = isa.subtract(self.number(numbers, 8 * k, 8), isa.floats(32.0));
                self.centred(4 * i + k, isa.multiply(d, number), 4.0);
            }
        }
    }

    /// Eight scales and eight minima of six bits each, after their factors.
    #[inline(always)]
    fn scales_and_mins(&mut self, rows: impl RowBytes<L>) {
        let isa = self.isa;
        let [factors, scales, mins, lower] = rows.four_words(isa, 0);
        let [d, min] = isa.f16_pair(factors);
        let min = isa.subtract(isa.floats(0.0), min);
        let six = isa.words(0x3f3f_3f3f);
        let second_scales = six_bits(isa, lower, scales);
        let second_mins = six_bits(isa, isa.shift_right(lower, 4), mins);
        let scales = [isa.and(scales, six), second_scales];
        let mins = [isa.and(mins, six), second_mins];
        for half in 0..2 {
            for k in 0..4 {
                let at = 4 * half + k;
                self.scale[at] = isa.multiply(self.number(scales[half], 8 * k, 8), d);
                self.bias[at] = isa.multiply(self.number(mins[half], 8 * k, 8), min);
            }
        }
    }

    /// Sixteen signed bytes, then their factor.
    #[inline(always)]
    fn q6_k(&mut self, rows: impl RowBytes<L>) {
        let isa = self.isa;
        let [_, d] = self.factors(rows, 206);
        for (i, words) in rows.four_words(isa, 192).into_iter().enumerate() {
            for k in 0..4 {
                let number = isa.shift_right_signed(isa.shift_left(words, 24 - 8 * k), 24);
                self.centred(4 * i + k, isa.multiply(isa.to_floats(number), d), 32.0);
            }
        }
    }

    /// A factor, eight times two upper bits, eight nibbles.
    #[inline(always)]
    fn iq4_xs(&mut self, rows: impl RowBytes<L>) {
        let isa = self.isa;
        let (first, low) = (rows.word(isa, 0), rows.word(isa, 4));
        let [d, _] = isa.f16_pair(first);
        for g in 0..8 {
            let high = isa.shift_left(field(isa, first, 16 + 2 * g, 2), 4);
            let number = isa.to_floats(isa.or(field(isa, low, 4 * g, 4), high));
            let number = isa.subtract(number, isa.floats(32.0));
            self.centred(g, isa.multiply(d, number), 127.0);
        }
    }

    /// Of each eight bytes, the highest four bits.
    #[inline(always)]
    fn iq2_xxs(&mut self, rows: impl RowBytes<L>) {
        let [d, _] = self.factors(rows, 0);
        for g in 0..8 {
            let number = self.number(rows.word(self.isa, 6 + 8 * g), 28, 4);
            self.centred(g, self.half_more(d, number, 0.25), IQ2_ZERO);
        }
    }

    /// Sixteen numbers of four bits from byte `at` on.
    #[inline(always)]
    fn iq2_nibbles(&mut self, rows: impl RowBytes<L>, at: usize) {
        let [d, _] = self.factors(rows, 0);
        for half in 0..2 {
            let words = rows.word(self.isa, at + 4 * half);
            for k in 0..8 {
                let scale = self.half_more(d, self.number(words, 4 * k, 4), 0.25);
                self.centred(8 * half + k, scale, IQ2_ZERO);
            }
        }
    }

    /// Of each of the last eight words, the highest four bits.
    #[inline(always)]
    fn iq3_xxs(&mut self, rows: impl RowBytes<L>) {
        let [d, _] = self.factors(rows, 0);
        for half in 0..2 {
            let four = rows.four_words(self.isa, 66 + 16 * half);
            for (k, words) in four.into_iter().enumerate() {
                let scale = self.half_more(d, self.number(words, 28, 4), 0.5);
                self.centred(4 * half + k, scale, Codebooks::IQ3_XXS_ZERO.into());
            }
        }
    }

    /// Eight numbers of four bits in the last word.
    #[inline(always)]
    fn iq3_s(&mut self, rows: impl RowBytes<L>) {
        let [d, _] = self.factors(rows, 0);
        let words = rows.word(self.isa, 106);
        for g in 0..8 {
            let scale = self.odd(d, self.number(words, 4 * g, 4));
            self.centred(g, scale, Codebooks::IQ3_S_ZERO.into());
        }
    }

    /// Of each of the last eight words of 16 bits, three bits below the highest.
    #[inline(always)]
    fn iq1_s(&mut self, rows: impl RowBytes<L>) {
        let [d, _] = self.factors(rows, 0);
        for (i, words) in rows.four_words(self.isa, 34).into_iter().enumerate() {
            for k in 0..2 {
                self.iq1(2 * i + k, d, self.number(words, 16 * k + 12, 3));
            }
        }
    }

    /// Four words of 16 bits: four numbers of three bits each, and a quarter of their factor.
    #[inline(always)]
    fn iq1_m(&mut self, rows: impl RowBytes<L>) {
        let isa = self.isa;
        let words = [rows.word(isa, 48), rows.word(isa, 52)];
        let mut factor = isa.words(0);
        for part in 0..4 {
            let four = field(isa, words[part / 2], 16 * (part % 2) + 12, 4);
            factor = isa.or(factor, isa.shift_left(four, 4 * part));
        }
        let [d, _] = isa.f16_pair(factor);
        for g in 0..16 {
            self.iq1(g, d, self.number(words[g / 8], g / 4 % 2 * 16 + g % 4 * 3, 3));
        }
    }

    /// A group of the IQ1 types.
    #[inline(always)]
    fn iq1(&mut self, group: usize, d: L::Floats, number: L::Floats) {
        let scale = self.isa.multiply(self.odd(d, number), self.isa.floats(0.125));
        self.centred(group, scale, 9.0);
    }
}

/// Of each byte, the lower four bits of `low` and above them the upper two of `high`.
#[inline(always)]
fn six_bits<L: Lanes>(isa: L, low: L::Words, high: L::Words) -> L::Words {
    let high = isa.and(isa.shift_right(high, 2), isa.words(0x3030_3030));
    isa.or(isa.and(low, isa.words(0x0f0f_0f0f)), high)
}
