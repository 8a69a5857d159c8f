//! Decodes blocks of any bytes, and compares what the decoders of a type say of each other.

use moeflux_core::quant::{BlockType, MatrixFormat, MatrixView};

/// The most blocks of one input.
const MAX_BLOCKS: usize = 64;

/// The type of an input, the number of its rows, and their bytes.
pub type Input<'a> = (u8, u8, &'a [u8]);

/// Decodes a matrix of one of the types.
pub fn check(types: &[BlockType], input: Input<'_>) {
    let (which, rows, bytes) = input;
    let kind = types[usize::from(which) % types.len()];
    let rows = usize::from(rows).max(1);
    let n_row_blocks = (bytes.len() / kind.block_bytes()).min(MAX_BLOCKS) / rows;
    let (n_blocks, cols) = (n_row_blocks * rows, n_row_blocks * kind.block_cols());
    let blocks = &bytes[..n_blocks * kind.block_bytes()];
    let n_cols = n_blocks * kind.block_cols();
    let n_groups = n_cols / kind.group_cols();
    let (mut codes, mut scales, mut biases) =
        (vec![0; n_cols], vec![0.0; n_groups], vec![0.0; n_groups]);
    kind.decode(blocks, &mut codes, &mut scales, &mut biases);
    let mut alone = vec![0; n_cols];
    kind.decode_codes(blocks, &mut alone);
    assert_eq!(codes, alone);
    let (mut of_scales, mut of_biases) = (vec![0.0; n_groups], vec![0.0; n_groups]);
    kind.decode_params(blocks, &mut of_scales, &mut of_biases);
    let bits = |all: &[f32]| all.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
    assert_eq!([bits(&scales), bits(&biases)], [bits(&of_scales), bits(&of_biases)]);
    let format = MatrixFormat::Ggml(kind);
    if n_row_blocks == 0 || !format.is_supported(cols) {
        return;
    }
    let view = MatrixView { rows, cols, format, weight: blocks, scales: &[], biases: &[] };
    view.assert_sizes();
    let is_finite = kind.find_not_finite(blocks).is_none();
    let mut row = vec![0.0; cols];
    for nth in 0..rows {
        view.decode_row(nth, &mut row);
        assert!(!is_finite || row.iter().all(|element| element.is_finite()));
        for (col, element) in row.iter().enumerate() {
            let at = nth * cols + col;
            let group = at / kind.group_cols();
            let want = f32::from(codes[at]).mul_add(scales[group], biases[group]);
            let is_same = element.to_bits() == want.to_bits() || *element == want;
            assert!(is_same || element.is_nan() && want.is_nan(), "{element} at {at}, not {want}");
        }
    }
}
