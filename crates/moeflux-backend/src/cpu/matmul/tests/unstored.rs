//! Products of matrices whose biases follow from scales, of E2M1 with scales of E4M3, and of E4M3.

use super::*;

fn symmetric(bits: u8) -> MatrixFormat {
    MatrixFormat::Affine(Affine::symmetric(bits, 32, Float::F16))
}

/// From the matrix's elements and in `f64`. Activations lose up to a 65,024th of their group's
/// largest, 3e-5 of what is added up where they are half as large on average; what is added to
/// integers, and taken away again, rounds by as much.
#[test]
fn integer_products_come_close_to_the_elements() {
    let mut noise = Noise(21);
    let micro = [MicroScaled::MXFP4, MicroScaled::NVFP4, MicroScaled::NVFP4_GLOBAL];
    for format in micro.map(MatrixFormat::Micro).into_iter().chain([4, 8].map(symmetric)) {
        let (rows, cols) = (7, 320);
        let matrix = TestMatrix::new(&mut noise, rows, cols, format);
        let x: Vec<f32> = (0..cols).map(|_| noise.float()).collect();
        let rounded = quantised(Isa::detect(), &x, cols, group_size(format), 2);
        let one = RowMap::Range { first: 0, n: 1 };
        let got = product(Isa::detect(), matrix.view(), Activations::Quantised(&rounded), one);
        let mut elements = vec![0.0; cols];
        for (row, got) in got.iter().enumerate() {
            matrix.view().decode_row(row, &mut elements);
            let products = elements.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let size: f64 = products.clone().map(f64::abs).sum();
            let error = (f64::from(*got) - products.sum::<f64>()).abs();
            assert!(size > 0.0 && error <= 1e-4 * size, "{format:?}: {error:e} of {size:e}");
        }
    }
}

#[test]
fn every_scale_of_e4m3_is_taken_and_what_is_none_is_no_number() {
    let mut noise = Noise(22);
    for micro in [MicroScaled::NVFP4, MicroScaled::NVFP4_GLOBAL] {
        let format = MatrixFormat::Micro(micro);
        // Shapes with few groups and with many, and rows of activations of which there are one, few
        // and many.
        for (rows, n_groups, n) in [(64, 4, 1), (33, 8, 2), (19, 16, 1), (17, 34, 7), (16, 2, 1)] {
            let cols = 16 * n_groups;
            let mut matrix = TestMatrix::new(&mut noise, rows, cols, format);
            for (code, scale) in (0u8..=255).cycle().zip(matrix.scales[1..].iter_mut()) {
                *scale = if code & 127 == 127 { 0 } else { code };
            }
            let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
            check_integer(&matrix, &x);
            check_full(&matrix, &x);
            // Of the first row, past the byte that shifts all.
            matrix.scales[n_groups] = 255;
            for isa in Isa::available() {
                let x = quantised(isa, &x, cols, 16, 2);
                let x_rows = RowMap::Range { first: 0, n };
                let out = product(isa, matrix.view(), Activations::Quantised(&x), x_rows);
                for (i, out) in out.iter().enumerate() {
                    assert_eq!(out.is_nan(), i % rows == 0, "{isa:?}: output {i} of {rows} rows");
                }
            }
        }
    }
}

#[test]
fn decoded_panels_give_the_bits_of_kernels_that_unpack_e2m1() {
    let mut noise = Noise(23);
    for micro in [MicroScaled::NVFP4, MicroScaled::NVFP4_GLOBAL] {
        let format = MatrixFormat::Micro(micro);
        for (rows, cols, n) in [(1, 32, 1), (17, 96, 3), (413, 512, 5)] {
            let matrix = TestMatrix::new(&mut noise, rows, cols, format);
            let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
            let rounded = quantised(Isa::SCALAR, &x, cols, 16, 2);
            let x_rows = RowMap::Range { first: 0, n };
            let want =
                product(Isa::SCALAR, matrix.view(), Activations::Quantised(&rounded), x_rows);
            let integers = integers::Integers::of(format).expect("integers");
            for isa in Isa::available() {
                let x = quantised(isa, &x, cols, 16, 2);
                let mut got = vec![f32::NAN; n * rows];
                let data = SharedMut::new(&mut got);
                let out = OutRows { data, stride: rows, first_col: 0, rows: x_rows };
                // SAFETY: nothing else uses these outputs.
                let out = unsafe { rows::OutPart::new(out, 0..rows, matrix.view().global_scale()) };
                let weight = matrix.view();
                let product = product::IntegerProduct {
                    weight,
                    integers,
                    x: &x,
                    x_rows,
                    prepacked: None,
                    next: None,
                    next_panel: None,
                    #[cfg(target_arch = "x86_64")]
                    params: None,
                };
                staged::micro_rows(isa, product, 0..rows, out);
                assert_same_bits(&got, &want, &|| format!("{isa:?} {format:?} {rows}x{cols}"));
            }
        }
    }
}

#[test]
fn one_row_times_e4m3_follows_the_definition_in_blocks_of_every_shape() {
    let mut noise = Noise(24);
    let blocks = |rows, cols, scales| MatrixFormat::Blocks(ScaledBlocks::new(rows, cols, scales));
    for (rows, cols, format) in [
        (130, 1029, blocks(128, 128, Float::BF16)),
        (9, 96, blocks(4, 16, Float::F32)),
        (5, 1029, blocks(1, 1029, Float::F32)),
        (6, 2000, blocks(6, 4096, Float::F16)),
        (7, 15, blocks(2, 32, Float::F32)),
        (3, 100, blocks(2, 24, Float::F32)),
    ] {
        let mut matrix = TestMatrix::new(&mut noise, rows, cols, format);
        // All codes that are numbers.
        for (code, byte) in (0u8..=255).cycle().zip(&mut matrix.weight) {
            *byte = if code & 127 == 127 { 0 } else { code };
        }
        let x: Vec<f32> = (0..cols).map(|_| noise.float()).collect();
        check_full(&matrix, &x);
    }
}

#[test]
fn scales_of_e4m3_may_be_as_large_as_floats_are_and_codes_may_be_no_numbers() {
    let format = MatrixFormat::Blocks(ScaledBlocks::new(2, 64, Float::F32));
    let mut matrix = TestMatrix::new(&mut Noise(25), 5, 192, format);
    // Below 2.
    matrix.weight.iter_mut().for_each(|code| *code &= 0xbf);
    for (i, scale) in matrix.scales[1..].as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *scale = [1e-40f32, 2e36, 0.5][i % 3].to_le_bytes();
    }
    let x: Vec<f32> = (0..192).map(|i| 1e-3 * (i as f32 * 0.37).sin()).collect();
    check_full(&matrix, &x);
    matrix.weight[1 + 192 + 70] = 127;
    matrix.weight[1 + 192 * 3 + 130] = 255;
    let rows = FloatRows { data: &x, stride: 192, cols: 192 };
    for isa in Isa::available() {
        let one = RowMap::Range { first: 0, n: 1 };
        let out = product(isa, matrix.view(), Activations::Full(rows), one);
        let are_nan: Vec<bool> = out.iter().map(|out| out.is_nan()).collect();
        assert_eq!(are_nan, [false, true, false, true, false], "{isa:?}");
    }
}
