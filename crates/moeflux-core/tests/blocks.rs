//! The weight types of ggml, against the decoder of ggml's Python package: `tools/gguf/blocks.py`.

use moeflux_core::quant::{BlockType, MatrixFormat, MatrixView};

/// One type's blocks and their elements.
struct Golden {
    block_type: BlockType,
    blocks: Vec<u8>,
    elements: Vec<f32>,
}

fn goldens() -> Vec<Golden> {
    let mut rest: &[u8] = include_bytes!("golden/blocks.bin");
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (head, body) = rest.split_at(16);
        let number = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().unwrap()) as usize;
        let name = std::str::from_utf8(&head[..8]).unwrap().trim_end_matches('\0');
        let (blocks, body) = body.split_at(number(8));
        let (elements, body) = body.split_at(4 * number(12));
        let elements = elements.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        all.push(Golden {
            block_type: BlockType::by_name(name).unwrap(),
            blocks: blocks.to_vec(),
            elements: elements.collect(),
        });
        rest = body;
    }
    all
}

#[test]
fn every_type_decodes_to_the_bits_of_the_reference() {
    let all = goldens();
    assert_eq!(all.len(), BlockType::all().count());
    for Golden { block_type, blocks, elements } in &all {
        let cols = elements.len();
        let format = MatrixFormat::Ggml(*block_type);
        assert_eq!(format.row_bytes(cols), blocks.len(), "{block_type:?}");
        assert!(format.is_supported(cols) && !format.is_supported(cols - 1), "{block_type:?}");
        let view = MatrixView { rows: 1, cols, format, weight: blocks, scales: &[], biases: &[] };
        let mut got = vec![0.0; cols];
        view.decode_row(0, &mut got);
        for (col, (got, want)) in got.iter().zip(elements).enumerate() {
            // Zeros of both signs are one value: a code that stands for zero has no sign here.
            let is_same = got.to_bits() == want.to_bits() || *got == 0.0 && *want == 0.0;
            assert!(is_same, "{block_type:?}, column {col}: {got:e}, not {want:e}");
        }
    }
}

#[test]
fn a_scale_that_is_not_finite_is_found() {
    for Golden { block_type, mut blocks, .. } in goldens() {
        assert_eq!(block_type.find_not_finite(&blocks), None, "{block_type:?}");
        let n = block_type.block_bytes();
        for at in block_type.scale_offsets() {
            let stored = [blocks[n + at], blocks[n + at + 1]];
            blocks[n + at..n + at + 2].copy_from_slice(&[0, 0x7c]);
            assert_eq!(block_type.find_not_finite(&blocks), Some((1, f32::INFINITY)));
            blocks[n + at..n + at + 2].copy_from_slice(&stored);
        }
        if block_type == BlockType::MXFP4 {
            for (exponent, is_found) in [(251, false), (252, true), (255, true)] {
                blocks[n] = exponent;
                let format = MatrixFormat::Ggml(block_type);
                let (rows, cols) = (1, block_type.block_cols());
                // The largest magnitude of both signs.
                blocks[n + 1] = 0xf7;
                let weight = &blocks[n..2 * n];
                let view = MatrixView { rows, cols, format, weight, scales: &[], biases: &[] };
                let mut elements = vec![0.0; cols];
                view.decode_row(0, &mut elements);
                let found = block_type.find_not_finite(&blocks);
                assert_eq!(found, is_found.then_some((1, f32::INFINITY)), "{exponent}");
                assert!(is_found || elements.iter().all(|element| element.is_finite()));
            }
        }
        if block_type == BlockType::IQ1_M {
            let scale = 2 * n - 8;
            blocks[scale..].iter_mut().for_each(|byte| *byte |= 0xf0);
            assert!(block_type.find_not_finite(&blocks).is_some_and(|(block, _)| block == 1));
        }
    }
}
