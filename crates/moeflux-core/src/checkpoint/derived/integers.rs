//! Integers with scales and zero points in the layouts of GPTQ, AWQ and compressed-tensors:
//! `w = (code - zero point) * scale`. They become codes, scales and biases of the affine format:
//! `w = scale * code + bias` with `bias = -zero point * scale`, in `f32`, where that is exact.

use super::transpose::{AWQ_SHIFTS, transpose_awq, transpose_words, word};
use crate::quant::{Affine, Float};

/// A matrix of integers as it is published.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct IntegerMatrix {
    /// Rows: outputs.
    pub(crate) rows: usize,
    /// Columns: inputs.
    pub(crate) cols: usize,
    /// Bits of a code.
    pub(crate) bits: u8,
    /// Columns that share a scale.
    pub(crate) group_cols: usize,
    /// How scales are stored.
    pub(crate) scales: Float,
    /// How codes are stored.
    pub(crate) codes: CodeLayout,
    /// How zero points are stored.
    pub(crate) zeros: ZeroLayout,
    /// Whether a tensor names the group of each column.
    pub(crate) has_group_index: bool,
}

/// How codes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeLayout {
    /// Rows are streams of bits, lowest column first, each row in whole words; scales are
    /// `[rows, groups]` (compressed-tensors).
    Rows,
    /// Words of consecutive columns, from row to row; scales are `[groups, rows]` (GPTQ).
    Columns,
    /// Words of eight rows in AWQ's order, from column to column; scales are `[groups, rows]`.
    Awq,
}

/// Where zero points come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroLayout {
    /// All are the middle of the range.
    Middle,
    /// Packed along rows, `[rows * bits / 32, groups]` (compressed-tensors).
    PackedRows,
    /// One signed byte each, `[rows, groups]`, counted from the middle of the range.
    SignedBytes,
    /// Packed along rows, `[groups, rows * bits / 32]` (GPTQ), one less than they are in the first
    /// version of the format.
    PackedColumns {
        /// What is added to those that are stored.
        offset: u8,
    },
    /// AWQ's words, `[groups, rows / 8]`.
    Awq,
}

/// A part of a matrix in the affine format, or all of it decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    /// The codes, as streams of bits along rows.
    Codes,
    /// The scales in `f32`.
    Scales,
    /// The biases in `f32`, where they are not those of symmetric integers.
    Biases,
    /// The elements in `f32`.
    Decoded,
}

/// The tensors of a published matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Codes,
    Scales,
    Zeros,
    GroupIndex,
}

impl IntegerMatrix {
    /// Groups of a row.
    pub(crate) fn n_groups(&self) -> usize {
        self.cols.div_ceil(self.group_cols)
    }

    /// Whether all zero points are the middle of the range.
    pub(crate) fn is_symmetric(&self) -> bool {
        self.zeros == ZeroLayout::Middle
    }

    /// Columns that share a scale in the affine format: the most that kernels have; `None` if the
    /// groups, or the order of columns, fit none.
    pub(crate) fn affine_group_cols(&self, is_reordered: bool) -> Option<usize> {
        let fits = |size: &&usize| {
            self.group_cols.is_multiple_of(**size) && self.cols.is_multiple_of(**size)
        };
        let found = Affine::GROUP_SIZES.iter().rev().find(fits).copied();
        found.filter(|_| !is_reordered && Affine::BITS.contains(&self.bits))
    }

    /// The tensors from which a plane is computed, in the order of [`compute`](Self::compute).
    pub(crate) fn inputs(&self, plane: Plane) -> Vec<Input> {
        let mut inputs = match plane {
            Plane::Codes => vec![Input::Codes],
            Plane::Scales => vec![Input::Scales],
            Plane::Biases => vec![Input::Scales, Input::Zeros],
            Plane::Decoded => vec![Input::Codes, Input::Scales, Input::Zeros],
        };
        if self.is_symmetric() {
            inputs.retain(|input| *input != Input::Zeros);
        }
        if self.has_group_index && matches!(plane, Plane::Scales | Plane::Decoded) {
            inputs.push(Input::GroupIndex);
        }
        inputs
    }

    /// Bytes of a plane whose groups have `group_cols` columns.
    pub(crate) fn plane_bytes(&self, plane: Plane, group_cols: usize) -> usize {
        let n_params = self.rows * self.cols.div_ceil(group_cols);
        match plane {
            Plane::Codes => self.rows * self.cols * usize::from(self.bits) / 8,
            Plane::Scales | Plane::Biases => n_params * 4,
            Plane::Decoded => self.rows * self.cols * 4,
        }
    }

    /// The bytes of a plane; the error says what is wrong with the inputs.
    pub(super) fn compute(&self, plane: Plane, inputs: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        let input = |wanted: Input| -> &[u8] {
            let at = self.inputs(plane).iter().position(|input| *input == wanted);
            at.map_or(&[], |at| &inputs[at])
        };
        let group_cols = self.affine_group_cols(false).unwrap_or(self.group_cols);
        match plane {
            Plane::Codes => Ok(self.codes(input(Input::Codes))),
            Plane::Scales => {
                self.check_order(input(Input::GroupIndex))?;
                Ok(self.params(group_cols, |row, group| self.scale(&inputs[0], row, group)))
            }
            Plane::Biases => {
                let (scales, zeros) = (input(Input::Scales), input(Input::Zeros));
                self.check_zeros(zeros)?;
                Ok(self.params(group_cols, |row, group| {
                    -self.zero(zeros, row, group) * self.scale(scales, row, group)
                }))
            }
            Plane::Decoded => self.decoded(
                input(Input::Codes),
                input(Input::Scales),
                input(Input::Zeros),
                input(Input::GroupIndex),
            ),
        }
    }

    fn codes(&self, codes: &[u8]) -> Vec<u8> {
        let bits = usize::from(self.bits);
        match self.codes {
            CodeLayout::Rows => codes.to_vec(),
            CodeLayout::Columns => transpose_words(codes, self.cols * bits / 32, self.rows),
            CodeLayout::Awq => transpose_awq(codes, self.rows, self.cols),
        }
    }

    /// A float of each row and group of the affine format, which may be a part of a stored one.
    fn params(&self, group_cols: usize, value: impl Fn(usize, usize) -> f32) -> Vec<u8> {
        let n = self.cols.div_ceil(group_cols);
        let mut out = Vec::with_capacity(self.rows * n * 4);
        for row in 0..self.rows {
            let mut last = (usize::MAX, 0.0);
            for group in 0..n {
                let stored = group * group_cols / self.group_cols;
                if last.0 != stored {
                    last = (stored, value(row, stored));
                }
                out.extend_from_slice(&last.1.to_le_bytes());
            }
        }
        out
    }

    fn scale(&self, scales: &[u8], row: usize, group: usize) -> f32 {
        let idx = match self.codes {
            CodeLayout::Rows => row * self.n_groups() + group,
            CodeLayout::Columns | CodeLayout::Awq => group * self.rows + row,
        };
        self.scales.read(scales, idx)
    }

    fn zero(&self, zeros: &[u8], row: usize, group: usize) -> f32 {
        let (bits, middle) = (usize::from(self.bits), 1u32 << (self.bits - 1));
        let mask = (1u32 << bits) - 1;
        let code = match self.zeros {
            ZeroLayout::Middle => middle,
            ZeroLayout::PackedRows => {
                let bit = row * bits;
                let at = |word_row: usize| word_row * self.n_groups() + group;
                code_across(zeros, at, bit) & mask
            }
            ZeroLayout::SignedBytes => {
                let stored = zeros[row * self.n_groups() + group].cast_signed();
                return f32::from(stored) + middle as f32;
            }
            ZeroLayout::PackedColumns { offset } => {
                let row_words = self.rows * bits / 32;
                let at = |word_col: usize| group * row_words + word_col;
                (code_across(zeros, at, row * bits) + u32::from(offset)) & mask
            }
            ZeroLayout::Awq => {
                let packed = word(zeros, group * (self.rows / 8) + row / 8);
                (packed >> AWQ_SHIFTS[row % 8]) & mask
            }
        };
        code as f32
    }

    /// Refuses zero points that are not codes. Packed ones cannot be others.
    fn check_zeros(&self, zeros: &[u8]) -> Result<(), String> {
        if self.zeros != ZeroLayout::SignedBytes {
            return Ok(());
        }
        let middle = 1i16 << (self.bits - 1);
        let is_code = |zero: &i8| (-middle..middle).contains(&i16::from(*zero));
        match zeros.iter().map(|byte| byte.cast_signed()).find(|zero| !is_code(zero)) {
            Some(zero) => Err(format!(
                "a zero point is {zero}, integers of {} bits have {} to {}",
                self.bits,
                -middle,
                middle - 1
            )),
            None => Ok(()),
        }
    }

    /// The group of each column: those that a tensor names, or those in order. A tensor with 0, or
    /// with -1, for all columns says nothing.
    fn group_of_columns(&self, named: &[u8]) -> Result<Vec<usize>, String> {
        let in_order = || (0..self.cols).map(|col| col / self.group_cols).collect();
        let (named, _) = named.as_chunks::<4>();
        if [0i32, -1].iter().any(|unset| named.iter().all(|group| *group == unset.to_le_bytes())) {
            return Ok(in_order());
        }
        let n_groups = self.n_groups();
        let group = |bytes: &[u8; 4]| {
            let group = i32::from_le_bytes(*bytes);
            let known = usize::try_from(group).ok().filter(|group| *group < n_groups);
            known.ok_or_else(|| format!("g_idx has group {group} of {n_groups}"))
        };
        named.iter().map(group).collect()
    }

    /// Refuses columns whose groups are not in order: the config says that they are.
    fn check_order(&self, named: &[u8]) -> Result<(), String> {
        let groups = self.group_of_columns(named)?;
        let is_ordered = (0..).zip(&groups).all(|(col, group)| col / self.group_cols == *group);
        if is_ordered {
            return Ok(());
        }
        Err("g_idx reorders columns, but quantization_config has no \"desc_act\": true".to_owned())
    }

    fn decoded(
        &self,
        codes: &[u8],
        scales: &[u8],
        zeros: &[u8],
        named: &[u8],
    ) -> Result<Vec<u8>, String> {
        let groups = self.group_of_columns(named)?;
        self.check_zeros(zeros)?;
        let n_groups = self.n_groups();
        let mut out = Vec::with_capacity(self.rows * self.cols * 4);
        let (mut row_scales, mut row_zeros) = (vec![0.0; n_groups], vec![0.0; n_groups]);
        for row in 0..self.rows {
            for group in 0..n_groups {
                row_scales[group] = self.scale(scales, row, group);
                row_zeros[group] = self.zero(zeros, row, group);
            }
            for (col, group) in groups.iter().enumerate() {
                let code = self.code(codes, row, col) as f32;
                let value = (code - row_zeros[*group]) * row_scales[*group];
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
        Ok(out)
    }

    fn code(&self, codes: &[u8], row: usize, col: usize) -> u32 {
        let bits = usize::from(self.bits);
        let mask = (1u32 << bits) - 1;
        match self.codes {
            CodeLayout::Rows => {
                let row_words = (self.cols * bits).div_ceil(32);
                code_across(codes, |word_col| row * row_words + word_col, col * bits) & mask
            }
            CodeLayout::Columns => {
                code_across(codes, |word_row| word_row * self.rows + row, col * bits) & mask
            }
            CodeLayout::Awq => {
                (word(codes, col * (self.rows / 8) + row / 8) >> AWQ_SHIFTS[row % 8]) & mask
            }
        }
    }
}

/// The bits from `bit` on of a stream whose words are at the places that `at` tells.
fn code_across(bytes: &[u8], at: impl Fn(usize) -> usize, bit: usize) -> u32 {
    let low = word(bytes, at(bit / 32)) >> (bit % 32);
    let next = at(bit / 32 + 1);
    let has_next = !bit.is_multiple_of(32) && (next + 1) * 4 <= bytes.len();
    let high = if has_next { word(bytes, next) << (32 - bit % 32) } else { 0 };
    low | high
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quant::{MatrixFormat, MatrixView};

    /// A published matrix, written from codes by the definitions of its layout.
    struct Published {
        matrix: IntegerMatrix,
        inputs: [Vec<u8>; 4],
        want: Vec<f32>,
    }

    /// A stream of `bits`-wide codes in words.
    fn pack(codes: impl Iterator<Item = u32>, bits: usize) -> Vec<u32> {
        let mut words = Vec::new();
        for (i, code) in codes.enumerate() {
            for bit in 0..bits {
                let at = i * bits + bit;
                words.resize(words.len().max(at / 32 + 1), 0);
                words[at / 32] |= (code >> bit & 1) << (at % 32);
            }
        }
        words
    }

    fn bytes(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    /// Words of streams that go along the second index of `[n, len]`, transposed.
    fn transposed(streams: &[Vec<u32>]) -> Vec<u8> {
        let n_words = streams[0].len();
        bytes((0..n_words).flat_map(|word| streams.iter().map(move |stream| stream[word])))
    }

    fn awq(len: usize, n: usize, code: impl Fn(usize, usize) -> u32) -> Vec<u8> {
        let word = |line: usize, eighth: usize| {
            let shifts = AWQ_SHIFTS.iter().enumerate();
            shifts.fold(0, |word, (j, shift)| word | code(8 * eighth + j, line) << shift)
        };
        bytes(
            (0..len)
                .flat_map(|line| (0..n / 8).map(move |eighth| (line, eighth)))
                .map(|(line, eighth)| word(line, eighth)),
        )
    }

    /// Codes, scales and zero points by small functions of their places.
    fn publish(matrix: IntegerMatrix, order: impl Fn(usize) -> usize) -> Published {
        let IntegerMatrix { rows, cols, bits, group_cols, .. } = matrix;
        let (n_bits, n_groups) = (usize::from(bits), matrix.n_groups());
        let mask = (1u32 << bits) - 1;
        let code = |row: usize, col: usize| (row as u32 * 11 + col as u32 * 7 + 3) & mask;
        let zero = |row: usize, group: usize| match matrix.zeros {
            ZeroLayout::Middle => 1 << (bits - 1),
            _ => (row as u32 * 5 + group as u32 * 3 + 1) & mask,
        };
        let scale = |row: usize, group: usize| 0.5 + (row % 7) as f32 * 0.25 + group as f32;
        let by_row = matrix.codes == CodeLayout::Rows;
        let codes = match matrix.codes {
            CodeLayout::Rows => {
                bytes((0..rows).flat_map(|row| pack((0..cols).map(|col| code(row, col)), n_bits)))
            }
            CodeLayout::Columns => {
                let rows = (0..rows).map(|row| pack((0..cols).map(|col| code(row, col)), n_bits));
                transposed(&rows.collect::<Vec<_>>())
            }
            CodeLayout::Awq => awq(cols, rows, code),
        };
        let places: Vec<(usize, usize)> = if by_row {
            (0..rows).flat_map(|row| (0..n_groups).map(move |g| (row, g))).collect()
        } else {
            (0..n_groups).flat_map(|g| (0..rows).map(move |row| (row, g))).collect()
        };
        let scales = places.iter().flat_map(|(row, g)| scale(*row, *g).to_le_bytes()).collect();
        let zeros = match matrix.zeros {
            ZeroLayout::Middle => Vec::new(),
            ZeroLayout::PackedRows => {
                let groups = (0..n_groups).map(|g| pack((0..rows).map(|row| zero(row, g)), n_bits));
                transposed(&groups.collect::<Vec<_>>())
            }
            ZeroLayout::SignedBytes => {
                let signed = |(row, g): &(usize, usize)| zero(*row, *g) as i32 - (1 << (bits - 1));
                places.iter().map(|place| signed(place) as u8).collect()
            }
            ZeroLayout::PackedColumns { offset } => bytes((0..n_groups).flat_map(|g| {
                pack((0..rows).map(|row| zero(row, g).wrapping_sub(offset.into()) & mask), n_bits)
            })),
            ZeroLayout::Awq => awq(n_groups, rows, zero),
        };
        let named = bytes((0..cols).map(|col| (order(col) / group_cols) as u32));
        let mut want = Vec::new();
        for row in 0..rows {
            for col in 0..cols {
                let group = order(col) / group_cols;
                want.push((code(row, col) as f32 - zero(row, group) as f32) * scale(row, group));
            }
        }
        Published { matrix, inputs: [codes, scales, zeros, named], want }
    }

    impl Published {
        fn plane(&self, plane: Plane) -> Result<Vec<u8>, String> {
            let inputs = self.matrix.inputs(plane).into_iter().map(|input| {
                self.inputs[match input {
                    Input::Codes => 0,
                    Input::Scales => 1,
                    Input::Zeros => 2,
                    Input::GroupIndex => 3,
                }]
                .clone()
            });
            let group_cols = self.matrix.affine_group_cols(false);
            let bytes = self.matrix.compute(plane, &inputs.collect::<Vec<_>>())?;
            let len = self.matrix.plane_bytes(plane, group_cols.unwrap_or(self.matrix.group_cols));
            assert_eq!(bytes.len(), len, "{plane:?}");
            Ok(bytes)
        }

        #[track_caller]
        fn check(&self) {
            let IntegerMatrix { rows, cols, bits, .. } = self.matrix;
            let decoded = self.plane(Plane::Decoded).unwrap();
            let decoded: Vec<f32> =
                (0..rows * cols).map(|i| Float::F32.read(&decoded, i)).collect();
            assert_eq!(decoded, self.want, "{:?}", self.matrix);
            let Some(group) = self.matrix.affine_group_cols(false) else { return };
            let planes = [Plane::Codes, Plane::Scales, Plane::Biases];
            let [weight, scales, biases] = planes.map(|plane| self.plane(plane).unwrap());
            let format = MatrixFormat::Affine(Affine::new(bits, group, Float::F32));
            let (weight, scales, biases) = (&weight[..], &scales[..], &biases[..]);
            let view = MatrixView { rows, cols, format, weight, scales, biases };
            view.assert_sizes();
            let mut got = vec![0.0; cols];
            for (row, want) in self.want.chunks(cols).enumerate() {
                view.decode_row(row, &mut got);
                assert_eq!(got, want, "row {row} of {:?}", self.matrix);
            }
        }
    }

    fn layouts() -> impl Strategy<Value = (CodeLayout, ZeroLayout)> {
        use {CodeLayout as C, ZeroLayout as Z};
        prop_oneof![
            Just((C::Rows, Z::Middle)),
            Just((C::Rows, Z::PackedRows)),
            Just((C::Rows, Z::SignedBytes)),
            Just((C::Columns, Z::Middle)),
            Just((C::Columns, Z::PackedColumns { offset: 0 })),
            Just((C::Columns, Z::PackedColumns { offset: 1 })),
            Just((C::Awq, Z::Awq)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn every_layout_has_the_values_of_its_definition(
            (codes, zeros) in layouts(),
            bits in prop::sample::select(vec![2u8, 3, 4, 5, 6, 8]),
            rows in 1..4usize,
            groups in 1..4usize,
            group_cols in prop::sample::select(vec![32usize, 64, 96, 128, 256]),
        ) {
            let bits = if codes == CodeLayout::Awq { 4 } else { bits };
            publish(
                IntegerMatrix {
                    rows: 32 * rows, cols: groups * group_cols, bits, group_cols,
                    scales: Float::F32, codes, zeros, has_group_index: false,
                },
                |col| col,
            ).check();
        }
    }

    #[test]
    fn rows_that_end_within_a_word_are_decoded() {
        for (bits, cols) in [(3, 200), (4, 20), (5, 7), (8, 3)] {
            let zeros = ZeroLayout::PackedRows;
            publish(
                IntegerMatrix {
                    rows: 10,
                    cols,
                    bits,
                    group_cols: cols,
                    scales: Float::F32,
                    codes: CodeLayout::Rows,
                    zeros,
                    has_group_index: false,
                },
                |col| col,
            )
            .check();
        }
    }

    #[test]
    fn columns_in_another_order_are_decoded_and_never_taken_to_be_in_order() {
        let matrix = IntegerMatrix {
            rows: 64,
            cols: 128,
            bits: 4,
            group_cols: 32,
            scales: Float::F32,
            codes: CodeLayout::Columns,
            zeros: ZeroLayout::PackedColumns { offset: 1 },
            has_group_index: true,
        };
        assert_eq!(matrix.affine_group_cols(true), None);
        let published = publish(matrix.clone(), |col| (col * 37) % 128);
        let decoded = published.plane(Plane::Decoded).unwrap();
        let decoded: Vec<f32> = (0..64 * 128).map(|i| Float::F32.read(&decoded, i)).collect();
        assert_eq!(decoded, published.want);
        let err = published.plane(Plane::Scales).unwrap_err();
        assert!(err.starts_with("g_idx reorders columns"), "{err}");
        let mut published = publish(matrix, |col| col);
        assert!(published.plane(Plane::Scales).is_ok());
        let named = published.inputs[3].clone();
        for unset in [0, 0xff] {
            published.inputs[3].fill(unset);
            assert!(published.plane(Plane::Scales).is_ok(), "{unset}");
        }
        published.inputs[3] = named;
        published.inputs[3][..4].copy_from_slice(&9u32.to_le_bytes());
        assert_eq!(published.plane(Plane::Scales).unwrap_err(), "g_idx has group 9 of 4");
    }

    #[test]
    fn zero_points_that_are_no_codes_are_refused() {
        let matrix = IntegerMatrix {
            rows: 10,
            cols: 64,
            bits: 4,
            group_cols: 32,
            scales: Float::F32,
            codes: CodeLayout::Rows,
            zeros: ZeroLayout::SignedBytes,
            has_group_index: false,
        };
        let mut published = publish(matrix, |col| col);
        for plane in [Plane::Biases, Plane::Decoded] {
            for (zero, is_code) in [(-8i8, true), (7, true), (-9, false), (8, false), (99, false)] {
                published.inputs[2][3] = zero.cast_unsigned();
                let computed = published.plane(plane);
                assert_eq!(computed.is_ok(), is_code, "{plane:?}, {zero}");
                if let Err(err) = computed {
                    assert_eq!(
                        err,
                        format!("a zero point is {zero}, integers of 4 bits have -8 to 7")
                    );
                }
            }
        }
    }
}
