//! Every kernel translated for Metal, whose compiler no machine of ours has,
//! and its needs against what Apple's GPUs offer. `tools/metal` runs some of what is translated.

pub(in crate::tests) mod cases;
mod translate;

use moeflux_backend::ActivationPrecision;
use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat, MicroScaled, ScaledBlocks};
use naga::AddressSpace;
use naga::valid::Capabilities;

use crate::device::adapter::{
    COOP_MATRIX_BYTES, MOST_BINDINGS, STORAGE_BINDINGS, WORKGROUP_BYTES, WORKGROUP_THREADS,
};
use crate::kernels::attention::*;
use crate::kernels::basic::*;
use crate::kernels::blocks::staged_words;
use crate::kernels::kernel::{Kernel, Variant};
use crate::kernels::matmul::*;
use crate::kernels::moe::*;
use crate::kernels::recurrent::*;
use crate::kernels::shared::WeightFormat;
use crate::kernels::streams::*;
use crate::layouts::format::Decoder;
use crate::layouts::product::{F16Tiles, F32Tiles};
use crate::state::quantized_inputs::activation_quant;
use crate::words::word;
use translate::{NEWEST, OLDEST, check, parse, translate};

/// Threadgroup memory of every GPU from Apple4 and Mac2 on (Metal feature set
/// tables, "maximum total threadgroup memory allocation").
const APPLE_WORKGROUP_BYTES: u32 = 32 << 10;
/// Threads of a threadgroup of the same.
const APPLE_THREADS: u32 = 1024;
/// Buffers of a function ("maximum number of entries in the buffer argument
/// table"); wgpu takes one for the sizes of the others.
const APPLE_BUFFERS: usize = 31;

/// Kernels that run only where they may have as many buffers as they like.
const FUSED: [&str; 2] = ["MatvecActivates", "DeltaMixer"];

/// The files that declare kernels.
const DECLARATIONS: [&str; 6] = [
    include_str!("../kernels/attention.rs"),
    include_str!("../kernels/basic.rs"),
    include_str!("../kernels/matmul.rs"),
    include_str!("../kernels/moe.rs"),
    include_str!("../kernels/recurrent.rs"),
    include_str!("../kernels/streams.rs"),
];

/// A kernel with its constants in the order of its declaration.
fn add<K: Kernel>(all: &mut Vec<Variant>, constants: &[&[u32]]) {
    all.extend(constants.iter().map(|values| Variant::with_values::<K>(values)));
}

/// Constants of every format of weights: `FORMAT`, `BITS`, `FLOATS`.
fn formats() -> Vec<[u32; 3]> {
    let mut all = Vec::new();
    for bits in [2, 3, 4, 5, 6, 8] {
        for floats in 0..3 {
            all.push([0, bits, floats]);
        }
    }
    // Biases apart from scales, and those that follow from them.
    all.extend([[0, 4, 3], [0, 4, 6], [0, 8, 7], [0, 4, 8]]);
    all.extend([[1, 0, 0], [2, 0, 0], [3, 0, 0]]);
    all.extend([[4, 0, 0], [4, 3, 0], [4, 0, 1], [4, 3, 1], [5, 0, 0], [6, 0, 0], [6, 0, 2]]);
    // A scale of all of the matrix, in front of the others and apart.
    all.extend([[4, 7, 0], [4, 7, 1], [4, 15, 1]]);
    all.extend(BlockType::all().map(|block_type| [7, block_type.id(), 0]));
    all.push([7, BlockType::Q6_K.id(), 1]);
    all
}

/// Kernels with the constants that ops give them, or their extremes.
fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for format in formats() {
        let with = |own: &[u32]| [&format[..], own].concat();
        let are_integers = [0, 7].contains(&format[0]);
        // Fixed point with bytes and with floats; floats that are anyhow, and aligned ones.
        let inputs: &[[u32; 3]] = if are_integers {
            &[[0, 0, 0], [0, 0, 1], [1, 0, 0], [2, 0, 0], [1, 1, 0], [2, 1, 0]]
        } else {
            &[[0, 0, 0], [0, 0, 1]]
        };
        for inputs in inputs {
            for layout in [[4, 1, 1, 1, 1], [32, 4, 8, 4, 4], [32, 32, 4, 1, 2], [16, 8, 2, 4, 1]] {
                let consts = with(&[&inputs[..], &layout, &[128, 0, layout[0] / 32]].concat());
                add::<Matvec>(&mut all, &[&consts]);
                add::<MatvecChosen>(&mut all, &[&consts]);
            }
        }
        if are_integers {
            add::<Matvec>(
                &mut all,
                &[
                    &with(&[2, 0, 0, 32, 32, 4, 1, 2, 128, 1, 0]),
                    &with(&[1, 0, 0, 16, 16, 8, 2, 1, 256, 1, 0]),
                ],
            );
        }
        if are_integers {
            add::<MatvecBoth>(
                &mut all,
                &[
                    &with(&[2, 0, 1, 32, 32, 4, 1, 2, 128, 1, 1]),
                    &with(&[1, 1, 0, 16, 8, 8, 4, 1, 256, 0, 0]),
                ],
            );
        }
        if are_integers {
            let order = match format {
                [7, ..] => 3,
                [0, 4, _] => 1,
                [0, 2, _] => 2,
                _ => 0,
            };
            // Blocks also have groups of 16 columns, and more sums.
            let block_type = BlockType::by_id(format[1]).filter(|_| format[0] == 7);
            let staged = block_type.map_or(0, |block_type| 4 * staged_words(block_type) as u32);
            let small_group = if block_type.is_some() { 16 } else { 32 };
            let most_cols = if block_type.is_some() { 5632 - staged / 5 * 2 } else { 6336 };
            let most_cols = most_cols / 32 * 32;
            add::<MatvecActivates>(
                &mut all,
                &[
                    &with(&[2, 0, 0, 32, 32, 2, 1, 2, 128, 1, 0, 64, order, 0, most_cols, 0, 0, 0]),
                    &with(&[
                        1,
                        0,
                        0,
                        16,
                        4,
                        1,
                        1,
                        1,
                        256,
                        0,
                        0,
                        small_group,
                        order,
                        0,
                        96,
                        1,
                        1,
                        0,
                    ]),
                    &with(&[
                        2,
                        1,
                        0,
                        32,
                        8,
                        4,
                        1,
                        1,
                        128,
                        0,
                        1,
                        128,
                        order,
                        2,
                        most_cols / 2,
                        1,
                        1,
                        1,
                    ]),
                ],
            );
        }
        let [format_code, bits, floats] = format;
        let weights = WeightFormat { format: format_code, bits, floats };
        for shape in [F32Tiles::NARROW, F32Tiles::WIDE] {
            all.extend(
                [false, true].map(|is_aligned| Variant::from(shape.kernel(weights, is_aligned))),
            );
        }
        add::<Embed>(&mut all, &[&with(&[])]);
        add::<HeadProduct>(&mut all, &[&with(&[1]), &with(&[4])]);
    }
    for op in 0..9 {
        // Some compute one of three activations.
        for kind in 0..if [5, 6, 8].contains(&op) { 3 } else { 1 } {
            add::<Elementwise>(&mut all, &[&[op, kind, 1], &[op, kind, 8]]);
            let quantized = [&[64, 2, 1, 0, op, kind, 1][..], &[32, 1, 0, 2, op, kind, 1]];
            add::<ElementwiseQuantized>(&mut all, &quantized);
        }
    }
    for kind in 0..3 {
        add::<Norm>(&mut all, &[&[kind, 0, 64, 2, 1], &[kind, 1, 256, 7, 0]]);
        add::<NormQuantized>(
            &mut all,
            &[&[kind, 0, 64, 2, 1, 64, 2, 1, 0], &[kind, 1, 256, 2, 0, 128, 1, 2, 0]],
        );
        add::<Route>(&mut all, &[&[kind, 8, 0], &[kind, 1, kind / 2]]);
        add::<Route>(&mut all, &[&[3, 8, 0]]);
        add::<StoreKv>(
            &mut all,
            &[
                &[kind, 70, 0, 70, 0, 0, 64, 0, 0, 0],
                &[kind, 256, 128, 256, 1, 0, 64, 32, kind & 1, 1],
                &[kind, 512, 512, 512, 1, 1, 256, 64, 0, 1],
            ],
        );
        add::<ScoreIndex>(&mut all, &[&[kind, 0], &[kind, 1]]);
        add::<ScoreIndexTiles>(&mut all, &[&[kind, 0], &[kind, 1]]);
        let wide = [4, 2, 1][kind as usize];
        add::<AttentionTiles>(
            &mut all,
            &[
                &[kind, 1, 0, 70, 51, 1, 8, 0, 16, 1, 1],
                &[kind, wide, 1, 256, 256, 8, 16, 0, 64, 4, 1],
                &[kind, wide, 0, 576, 512, 4, 12, 2, 128, 2, 1],
                &[kind, 1, 0, 64, 2000, 8, 4, 0, 256, 1, 2],
            ],
        );
        add::<AttentionRows>(
            &mut all,
            &[
                &[kind, 1, 0, 70, 51, 1, 8],
                &[kind, wide, 1, 576, 512, 4, 2],
                &[kind, wide, 0, 64, 1000, 8, 1],
            ],
        );
        for (group, quant, order) in [(32, 1, kind), (64, 2, kind), (128, 2, kind), (16, 2, 3)] {
            add::<QuantizeActivations>(
                &mut all,
                &[&[group, quant, order, 0], &[group, quant, 0, 1], &[group, quant, order, 2]],
            );
        }
    }
    // A sum and its norm; what stands between the halves of a layer, and its end.
    add::<Chain>(
        &mut all,
        &[
            &[0x40080, 0x4907a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 64, 1],
            &[
                0x40002, 0x408f8, 0x590fa, 0x4997a, 0x6a1fa, 0x4ab7c, 0, 0, 64, 2, 1, 0, 0, 0, 0,
                6, 256, 3,
            ],
            &[
                0x47f81, 0x4007a, 0x4088a, 0x7878, 0x4017a, 0x47978, 0x417fb, 0x599fa, 128, 2, 1,
                2, 8, 1, 1, 8, 256, 3,
            ],
        ],
    );
    add::<SplitF16>(&mut all, &[&[64, 1, 0], &[128, 2, 1], &[16, 2, 3]]);
    add::<Rope>(&mut all, &[&[0], &[1]]);
    add::<SplitF16Qkv>(
        &mut all,
        &[
            &[0, 0, 64, 64, 2],
            &[0, 0, 72, 96, 2],
            &[0, 1, 64, 64, 2],
            &[1, 1, 80, 96, 1],
            &[2, 1, 256, 256, 2],
        ],
    );
    add::<MergeAttention>(
        &mut all,
        &[&[0, 0, 0, 0, 0, 1], &[64, 2, 1, 0, 1, 0], &[32, 1, 0, 2, 0, 1]],
    );
    add::<ConvStep>(&mut all, &[&[1, 0], &[3, 1]]);
    add::<CopyState>(&mut all, &[&[]]);
    add::<Serial>(&mut all, &[&[]]);
    add::<DeltaRows>(
        &mut all,
        &[
            &[4, 128, 8, 4, 2, 4, 2],
            &[1, 21, 4, 2, 2, 4, 1],
            &[4, 512, 8, 16, 2, 1, 2],
            &[4, 128, 8, 4, 3, 4, 3],
            &[1, 21, 4, 2, 3, 4, 1],
            &[4, 512, 8, 16, 3, 1, 3],
        ],
    );
    add::<DeltaStep>(
        &mut all,
        &[
            &[4, 128, 8, 4, 128, 4, 0, 0],
            &[1, 21, 4, 2, 130, 3, 1, 0],
            &[1, 21, 4, 2, 130, 3, 1, 2],
        ],
    );
    add::<DeltaMixer>(
        &mut all,
        &[
            &[4, 128, 8, 4, 128, 4, 0, 0, 64, 2, 1, 0, 3, 384, 2],
            &[4, 128, 8, 4, 128, 4, 1, 1, 64, 2, 1, 0, 3, 384, 2],
            &[1, 21, 4, 2, 130, 3, 1, 2, 0, 0, 0, 0, 1, 172, 1],
            &[4, 16, 4, 1, 1536, 24, 0, 0, 32, 1, 2, 2, 3, 1568, 7],
        ],
    );
    add::<StateSpace>(&mut all, &[&[128, 32, 2, 8], &[21, 6, 4, 3], &[1, 1, 4, 1]]);
    add::<SumPools>(&mut all, &[&[]]);
    add::<PutPools>(&mut all, &[&[0], &[1]]);
    add::<GatePools>(&mut all, &[&[]]);
    add::<PutGatedPools>(&mut all, &[&[]]);
    add::<PutEntries>(&mut all, &[&[0, 0], &[1, 1]]);
    add::<MixStreams>(&mut all, &[&[]]);
    add::<StreamShares>(&mut all, &[&[4, 3], &[1, 1], &[8, 3]]);
    add::<WeighStreams>(&mut all, &[&[]]);
    add::<BlendStreams>(&mut all, &[&[4], &[1]]);
    add::<JoinStreams>(&mut all, &[&[]]);
    add::<SimilarityGate>(&mut all, &[&[]]);
    add::<ChooseIndex>(&mut all, &[&[]]);
    add::<Conv>(&mut all, &[&[1, 0], &[3, 1]]);
    add::<ConvHistory>(&mut all, &[&[]]);
    add::<PrepareDelta>(&mut all, &[&[0], &[1], &[2]]);
    add::<SortByExpert>(&mut all, &[&[]]);
    add::<GroupedGemmJobs>(&mut all, &[&[1024]]);
    for bits in 0..8 {
        let own = [bits & 1, bits >> 1 & 1, bits >> 2];
        add::<Activate>(&mut all, &[&own]);
        add::<ActivateQuantized>(&mut all, &[&[&own[..], &[64, 2, 1, 0]].concat()]);
    }
    add::<AddRows>(&mut all, &[&[0], &[1]]);
    add::<BandwidthProbe>(&mut all, &[&[0], &[1]]);
    add::<BufferCopy>(&mut all, &[&[]]);
    add::<ExpertGather>(&mut all, &[&[]]);
    add::<ExpertGatherAdmitted>(&mut all, &[&[]]);
    add::<ExpertAdmit>(&mut all, &[&[1], &[32]]);
    add::<TopLogitsPartial>(&mut all, &[&[16]]);
    add::<TopLogitsMerge>(&mut all, &[&[64]]);
    add::<Combine>(&mut all, &[&[0, 0], &[1, 0], &[1, 1]]);
    all
}

fn workgroup_bytes(module: &naga::Module) -> u32 {
    let shared = module
        .global_variables
        .iter()
        .filter(|(_, variable)| variable.space == AddressSpace::WorkGroup);
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).expect("types have sizes");
    shared.map(|(_, variable)| layouter[variable.ty].size).sum()
}

#[test]
fn every_kernel_becomes_metal_within_apples_limits() {
    const { assert!(WORKGROUP_BYTES <= APPLE_WORKGROUP_BYTES && WORKGROUP_THREADS <= APPLE_THREADS) };
    for variant in variants() {
        // As on the smallest subgroups that are allowed.
        parse(variant, 4, Capabilities::SHADER_FLOAT16);
        let (module, info) = parse(variant, 32, Capabilities::SHADER_FLOAT16);
        let [entry] = &module.entry_points[..] else { panic!("{variant:?}: one entry point") };
        let threads: u32 = entry.workgroup_size.iter().product();
        assert!(threads <= WORKGROUP_THREADS, "{variant:?}: {threads} threads");
        let bytes = workgroup_bytes(&module);
        assert!(bytes <= WORKGROUP_BYTES, "{variant:?}: {bytes} bytes of workgroup memory");
        let n = variant.info.bindings.len();
        let most = match variant.info.name {
            "Chain" => word(CHAIN_BINDINGS),
            name if FUSED.contains(&name) => MOST_BINDINGS,
            _ => STORAGE_BINDINGS,
        };
        assert!(n <= most as usize && n + 2 <= APPLE_BUFFERS, "{variant:?}: {n} buffers");
        let [oldest, newest] = [OLDEST, NEWEST].map(|version| {
            translate(variant, &module, &info, version)
                .unwrap_or_else(|err| panic!("{variant:?} for Metal {version:?}: {err}"))
        });
        // The first line is the version.
        let rest = |text: &str| text.split_once('\n').expect("lines").1.to_owned();
        assert_eq!(rest(&oldest), rest(&newest), "{variant:?}");
        if let Err(wrong) = check(&newest, variant, threads) {
            panic!("{variant:?}: {wrong}\n{newest}");
        }
    }
}

#[test]
fn no_kernel_is_left_out() {
    let mut seen: Vec<&str> = variants().iter().map(|variant| variant.info.name).collect();
    // See below.
    seen.extend(["CoopMatmul", "AttentionCoopMatrix"]);
    let lines = DECLARATIONS.iter().flat_map(|text| text.lines());
    let declared: Vec<&str> =
        lines.filter_map(|line| Some(line.trim().split_once(" in \"")?.0)).collect();
    assert!(declared.len() > 40, "{declared:?}");
    let left_out: Vec<&&str> = declared.iter().filter(|name| !seen.contains(name)).collect();
    assert!(left_out.is_empty(), "{left_out:?}");
}

#[test]
fn kernels_on_cooperative_matrices_are_valid() {
    let capabilities = Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX;
    let params = Float::BF16;
    let affine = [4, 6, 8].map(|bits| Affine::new(bits, 64, params));
    let mut formats = affine.map(MatrixFormat::Affine).to_vec();
    formats.push(MatrixFormat::Affine(Affine::symmetric(4, 64, params)));
    formats.extend(MicroScaled::MODES.map(|(_, mode)| MatrixFormat::Micro(mode)));
    formats.extend([Float::BF16, Float::F32].map(MatrixFormat::Dense));
    formats.push(MatrixFormat::Blocks(ScaledBlocks::new(128, 128, Float::F32)));
    formats.extend(BlockType::all().map(MatrixFormat::Ggml));
    for format in formats {
        let decoder = Decoder::new(format);
        let quant = activation_quant(decoder, ActivationPrecision::Int16);
        let parts = quant.expect("inputs are rounded").parts;
        let of = decoder.f16_operand();
        for (shape, is_emulated) in
            F16Tiles::all(of).iter().flat_map(|shape| [(shape, false), (shape, true)])
        {
            let variant = shape.kernel(decoder.constants(), of, parts, is_emulated).into();
            let (module, _) = parse(variant, 32, capabilities);
            let [entry] = &module.entry_points[..] else { panic!("{variant:?}: one entry point") };
            assert!(entry.workgroup_size[0] <= WORKGROUP_THREADS, "{variant:?}");
            let bytes = workgroup_bytes(&module);
            assert!(bytes <= COOP_MATRIX_BYTES, "{variant:?}: {bytes} bytes of workgroup memory");
        }
    }
}

#[test]
fn attention_on_cooperative_matrices_is_valid() {
    let capabilities = Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX;
    for is_emulated in [false, true] {
        for (is_masked, [q_parts, parts], k_dim, v_dim, v_parts, block, subgroups) in [
            (false, [2, 2], 256, 256, 1, 32, 8),
            (false, [2, 2], 512, 256, 2, 32, 4),
            (true, [2, 1], 576, 32, 1, 32, 8),
            (true, [2, 2], 576, 256, 2, 32, 8),
            (false, [2, 1], 64, 64, 1, 32, 4),
            (false, [1, 1], 256, 256, 1, 64, 8),
            (false, [1, 1], 512, 256, 2, 64, 8),
            (true, [1, 1], 576, 256, 2, 64, 8),
            (false, [1, 1], 96, 32, 1, 32, 4),
        ] {
            let variant = AttentionCoopMatrix {
                is_emulated,
                is_masked,
                k_dim,
                k_squares: k_dim.min(72).div_ceil(16),
                v_dim,
                v_parts,
                y_dim: v_dim.min(72),
                q_parts,
                parts,
                block,
                subgroups,
            }
            .into();
            let (module, _) = parse(variant, 32, capabilities);
            let bytes = workgroup_bytes(&module);
            assert!(bytes <= COOP_MATRIX_BYTES, "{variant:?}: {bytes} bytes of workgroup memory");
        }
    }
}
