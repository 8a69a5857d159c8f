//! Products with blocks of ggml, some types at a time. The tests of all ops and of all forms do the
//! same with all types, which takes too long while one of them is worked on.

use std::sync::Arc;

use moeflux_backend::{Backend, conformance};
use moeflux_core::quant::{BlockType, MatrixFormat};

use super::{closeness, context, layouts};
use crate::{Tiles, Wgpu};

/// As the device would compute them, and by floats and the kernel for matrix units.
fn check(types: &[BlockType]) {
    let Some(context) = context() else { return };
    let tiles = if context.has_coop_matrix { Tiles::CoopMatrix } else { Tiles::Emulated };
    let open = || -> Box<dyn Backend> { Box::new(Wgpu::new(Arc::clone(&context), None)) };
    let open_other = || -> Box<dyn Backend> {
        let mut backend = Wgpu::new(Arc::clone(&context), None);
        backend.fix_layout(Some(layouts()[2]));
        backend.fix_tiles(tiles);
        Box::new(backend)
    };
    let formats: Vec<MatrixFormat> = types.iter().map(|it| MatrixFormat::Ggml(*it)).collect();
    conformance::check_formats(&[&open], closeness(Tiles::F32), &formats);
    conformance::check_formats(&[&open_other], closeness(tiles), &formats);
}

#[test]
#[ignore = "the tests of all ops and of all forms do the same"]
fn types_with_one_scale_agree_with_the_specification() {
    check(&[
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
        BlockType::IQ4_NL,
        BlockType::MXFP4,
        BlockType::NVFP4,
    ]);
}

#[test]
#[ignore = "the tests of all ops and of all forms do the same"]
fn types_with_two_scales_agree_with_the_specification() {
    check(&[
        BlockType::Q2_K,
        BlockType::Q3_K,
        BlockType::Q4_K,
        BlockType::Q5_K,
        BlockType::Q6_K,
        BlockType::IQ4_XS,
    ]);
}

#[test]
#[ignore = "the tests of all ops and of all forms do the same"]
fn types_with_codebooks_agree_with_the_specification() {
    let all: Vec<BlockType> = BlockType::all().filter(|it| it.has_codebook()).collect();
    assert_eq!(all.len(), 7);
    check(&all);
}

#[test]
#[ignore = "the tests of all ops and of all forms do the same"]
fn types_of_few_levels_agree_with_the_specification() {
    check(&[BlockType::TQ1_0, BlockType::TQ2_0, BlockType::Q1_0, BlockType::Q2_0]);
}
