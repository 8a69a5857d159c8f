//! Kernels that read weights, and those that prepare their inputs.

use crate::kernels::blocks::{block_type, has_biases};
use crate::kernels::kernel::Include::{
    self, FusedActivation, MatvecMultiply, MatvecMultiplyPlain, Quantize, WeightFormats,
};
use crate::kernels::kernel::{NamedConstants, constants, kernel};
use crate::kernels::shared::{
    Activation, FLOATS_SYMMETRIC, FORMAT_AFFINE, FORMAT_GGML, Quant, WeightFormat,
};
use crate::kernels::template::value;

kernel! {
    QuantizeActivations in "matmul/quantize_activations"("rww") include [Quantize];
    { quant: Quant, }
    {}
}

kernel! {
    /// Splits activations into sums of f16 parts.
    SplitF16 in "matmul/split_f16"("rww");
    {}
    { group: u32 = GROUP, parts: u32 = PARTS, order: u32 = ORDER, }
}

constants! {
    /// How a matrix-vector product is laid out, see `matmul/matvec.wgsl`.
    MatvecShape {
        /// Limbs of quantised inputs; 0 where they are not quantised.
        limbs: u32 = DIGITS,
        uses_fma: bool = FMA,
        is_aligned: bool = ALIGNED,
        virtual_lanes: u32 = VLANES,
        lanes: u32 = LANES,
        rows: u32 = ROWS,
        x_rows: u32 = X_ROWS,
        depth: u32 = DEPTH,
        threads: u32 = THREADS,
        /// Inputs are read once for all rows of a workgroup.
        reads_once: bool = ONCE,
        /// Jobs have as many workgroups as they need.
        is_packed: bool = PACKED,
    }
}

kernel! {
    Matvec in "matmul/matvec"("rrrrrw") include [WeightFormats, MatvecMultiply]
        feature [WritesFirst];
    { format: WeightFormat, shape: MatvecShape, }
    {}
}

kernel! {
    /// A matrix-vector product with experts that the device chose.
    MatvecChosen in "matmul/matvec"("rrrrrwrr") include [WeightFormats, MatvecMultiply]
        feature [Chosen, WritesFirst];
    { format: WeightFormat, shape: MatvecShape, }
    {}
}

constants! {
    /// Activations that the down projection computes and quantises itself.
    FusedActivations {
        group: u32 = GROUP,
        order: u32 = ORDER,
        float: u32 = FLOAT,
        cols: u32 = COLS,
    }
}

kernel! {
    /// A down projection of chosen experts that computes its activations itself.
    MatvecActivates in "matmul/matvec"("rrrrrwrrr")
        include [WeightFormats, Quantize, FusedActivation, Include::Activation, MatvecMultiply]
        feature [Chosen, Activates, WritesFirst] derived steps;
    { format: WeightFormat, shape: MatvecShape, fused: FusedActivations, activation: Activation, }
    {}
}

kernel! {
    /// A matrix-vector product of which some inputs are quantised and others are not.
    MatvecBoth in "matmul/matvec"("rrrrrwr")
        include [WeightFormats, MatvecMultiply, MatvecMultiplyPlain] feature [Both, WritesFirst];
    { format: WeightFormat, shape: MatvecShape, }
    {}
}

kernel! {
    Matmul in "matmul/matmul"("rrrrw") include [WeightFormats] feature [WritesFirst];
    { format: WeightFormat, }
    {
        x_tile: u32 = X_TILE,
        w_tile: u32 = W_TILE,
        x_fours: u32 = X_FOURS,
        step: u32 = STEP,
        is_aligned: bool = ALIGNED,
    }
}

kernel! {
    /// A product on cooperative matrices of f16.
    CoopMatmul in "matmul/coop_matmul"("rrrrrw") include [WeightFormats] feature [WritesFirst]
        derived coop_tiles;
    { format: WeightFormat, }
    {
        parts: u32 = PARTS,
        is_emulated: bool = EMULATED,
        x_tile: u32 = X_TILE,
        w_tile: u32 = W_TILE,
        x_fragments: u32 = X_FRAGS,
        w_fragments: u32 = W_FRAGS,
        step: u32 = STEP,
        /// f16 summands of a weight; 0 for packed elements times their scale.
        summands: u32 = SUMMANDS,
    }
}

kernel! {
    /// Products of heads with transposed rows of one matrix.
    HeadProduct in "matmul/head_product"("rrrrw") include [WeightFormats];
    { format: WeightFormat, }
    { x_rows: u32 = X_ROWS, }
}

kernel! {
    Embed in "embed/embed"("rrrw") include [WeightFormats];
    { format: WeightFormat, }
    {}
}

/// Fours of columns that a thread activates.
fn steps(constants: &NamedConstants) -> NamedConstants {
    let steps = value("COLS", constants).div_ceil(4 * value("THREADS", constants));
    vec![("STEPS", steps)]
}

/// Threads of a workgroup, how much each of them loads in a step, and how weights are stored in
/// tiles.
fn coop_tiles(constants: &NamedConstants) -> NamedConstants {
    let of = |text| value(text, constants);
    let threads = of("X_TILE*W_TILE/X_FRAGS/W_FRAGS/8");
    let words = of("W_TILE*STEP*4") / threads;
    let per_load = if words >= 4 { 4 } else { 2 };
    assert!(per_load == 4 || of("FORMAT") != FORMAT_GGML, "a thread takes whole steps of blocks");
    let (is_biased, w_parts) = match of("FORMAT") {
        // Blocks are unpacked to one half an element.
        FORMAT_GGML => (has_biases(block_type(of("BITS"))), 1),
        format => {
            let is_unpacked = format == FORMAT_AFFINE && of("SUMMANDS") == 0;
            (is_unpacked && of("FLOATS") < FLOATS_SYMMETRIC, of("SUMMANDS").max(1))
        }
    };
    vec![
        ("THREADS", threads),
        ("X_LOADS", of("X_TILE*STEP*PARTS*4") / threads),
        ("W_WORDS", per_load),
        ("W_LOADS", words / per_load),
        ("BIASED", u32::from(is_biased)),
        ("W_PARTS", w_parts),
        // The factor of weights: packed ones lose no bits of small scales, decoded ones may be
        // large.
        ("W_FACTOR", if of("SUMMANDS") == 0 { 128 } else { 16 }),
    ]
}
