//! Products with blocks of ggml, in every type.

use moeflux_core::quant::BlockType;

use super::*;

fn check_every_type(shapes: &[(usize, usize, usize)], is_largest: bool) {
    let mut noise = Noise(13);
    for block_type in BlockType::all() {
        for (rows, n_blocks, n) in shapes.iter().copied() {
            let cols = n_blocks * block_type.block_cols();
            let format = MatrixFormat::Ggml(block_type);
            let mut matrix = TestMatrix::new(&mut noise, rows, cols, format);
            if is_largest {
                matrix.fill_with_largest();
            }
            let x: Vec<f32> = if is_largest {
                vec![-1.0; n * cols]
            } else {
                (0..n * cols).map(|_| noise.float()).collect()
            };
            check_integer(&matrix, &x);
            check_full(&matrix, &x);
        }
    }
}

#[test]
fn every_isa_gives_the_bits_of_scalar_for_every_type() {
    check_every_type(
        &[(1, 1, 1), (17, 3, 2), (18, 16, 1), (33, 2, 5), (50, 1, 20), (3, 5, 70)],
        false,
    );
}

#[test]
fn the_largest_codes_leave_no_lane() {
    check_every_type(&[(9, 1, 5), (2, 2, 1)], true);
}

/// Also those that no file should have: signs of unsigned floats, and powers beyond the largest float.
#[test]
fn every_byte_of_a_scale_gives_the_bits_of_scalar() {
    let mut noise = Noise(16);
    for block_type in [BlockType::MXFP4, BlockType::NVFP4] {
        let (rows, cols, n_bytes) = (16, 512, block_type.block_bytes());
        let mut matrix = TestMatrix::new(&mut noise, rows, cols, MatrixFormat::Ggml(block_type));
        let n_scales = if block_type == BlockType::MXFP4 { 1 } else { 4 };
        let blocks = matrix.weight[1..].chunks_exact_mut(n_bytes);
        let scales = blocks.flat_map(|block| &mut block[..n_scales]);
        scales.zip((0..=255).cycle()).for_each(|(scale, byte)| *scale = byte);
        let x: Vec<f32> = (0..20 * cols).map(|_| noise.float()).collect();
        check_integer(&matrix, &x);
        check_full(&matrix, &x);
    }
}

#[test]
fn panels_end_within_a_task() {
    let mut noise = Noise(14);
    for block_type in [BlockType::Q4_K, BlockType::Q6_K, BlockType::Q8_0] {
        let cols = 16 * block_type.block_cols();
        let matrix = TestMatrix::new(&mut noise, 413, cols, MatrixFormat::Ggml(block_type));
        let x: Vec<f32> = (0..5 * cols).map(|_| noise.float()).collect();
        check_integer(&matrix, &x);
    }
}

/// Rows that are whole tiles of sixteen, in several panels of a kernel, and rows of whole steps of 256
/// columns: scales are read with rows as lanes. From 32 rows of activations on AMX multiplies.
#[test]
fn whole_tiles_of_every_type_give_the_bits_of_scalar() {
    let mut noise = Noise(17);
    for block_type in BlockType::all() {
        for (rows, n) in [(112, 5), (80, 37)] {
            let matrix = TestMatrix::new(&mut noise, rows, 512, MatrixFormat::Ggml(block_type));
            let x: Vec<f32> = (0..n * 512).map(|_| noise.float()).collect();
            check_integer(&matrix, &x);
        }
    }
}

/// The definition, from the matrix's elements and in `f64`. Activations lose up to a 65,024th of
/// their group's largest, 3e-5 of what is added up where they are half as large on average; what
/// centred codes add and biases take away again rounds by as much.
#[test]
fn integer_products_come_close_to_the_elements() {
    let mut noise = Noise(15);
    for block_type in BlockType::all() {
        let cols = 2 * block_type.block_cols();
        let matrix = TestMatrix::new(&mut noise, 7, cols, MatrixFormat::Ggml(block_type));
        let x: Vec<f32> = (0..cols).map(|_| noise.float()).collect();
        let rounded = quantised(Isa::detect(), &x, cols, block_type.group_cols(), 2);
        let one = RowMap::Range { first: 0, n: 1 };
        let got = product(Isa::detect(), matrix.view(), Activations::Quantised(&rounded), one);
        let mut elements = vec![0.0; cols];
        for (row, got) in got.iter().enumerate() {
            matrix.view().decode_row(row, &mut elements);
            let products = elements.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let size: f64 = products.clone().map(f64::abs).sum();
            let error = (f64::from(*got) - products.sum::<f64>()).abs();
            assert!(error <= 1e-4 * size + 1e-12, "{block_type:?}: {error:e} of {size:e}");
        }
    }
}
