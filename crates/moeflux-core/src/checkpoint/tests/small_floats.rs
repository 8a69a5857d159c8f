//! Checkpoints of small floats, with the names and shapes that their publishers use.

use super::*;
use crate::quant::{MicroScaled, ScaledBlocks};

pub(super) type Tensors<'a> = &'a [(&'a str, &'a str, &'a [usize])];

fn experts_decl(parts: [&'static str; 3], fused: FusedOrder) -> ExpertsDecl {
    ExpertsDecl {
        layer: LayerIdx(0),
        prefix: "layers.0.mlp".into(),
        matrices: ExpertMatrices::Three { parts, fused },
        n_experts: 3,
        hidden: 64,
        intermediate: 96,
    }
}

const PARTS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

pub(super) fn claim_experts(
    config: Value,
    tensors: Tensors<'_>,
    decl: &ExpertsDecl,
) -> Result<LayerBank, FormatError> {
    let dir = small(config, tensors);
    let checkpoint = open_checkpoint(dir.path())?;
    let mut claims = Claims::new(&checkpoint);
    let bank = claims.experts(decl)?;
    claims.finish()?;
    for e in 0..decl.n_experts {
        for (source, len) in bank.sources.iter().zip(&bank.layout.extents) {
            let (file, offset) = source.locate(ExpertId(e as u16));
            // Files after these are computed.
            let stored = checkpoint.files().get(file.0 as usize);
            assert!(stored.is_none_or(|stored| offset + *len as u64 <= stored.len));
        }
    }
    for matrix in bank.layout.matrices() {
        let want = matrix.format.matrix_bytes(matrix.rows, matrix.cols);
        assert_eq!(matrix.weight.len + matrix.scales.len + matrix.biases.len, want);
    }
    Ok(bank)
}

#[test]
fn reads_gpt_oss_as_published() {
    let config = json!({"quantization_config": {"quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn"]}});
    let tensors: Tensors<'_> = &[
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", "U8", &[3, 192, 2, 16]),
        ("model.layers.0.mlp.experts.gate_up_proj_scales", "U8", &[3, 192, 2]),
        ("model.layers.0.mlp.experts.down_proj_blocks", "U8", &[3, 64, 3, 16]),
        ("model.layers.0.mlp.experts.down_proj_scales", "U8", &[3, 64, 3]),
    ];
    let decl = experts_decl(PARTS, FusedOrder::Alternating);
    let bank = claim_experts(config.clone(), tensors, &decl).unwrap();
    assert_eq!(bank.layout.extents, [192 * 32, 192 * 2, 64 * 48, 64 * 3]);
    let GateUp::Alternating(both) = bank.layout.gate_up else { panic!("one matrix") };
    assert_eq!((both.rows, both.cols), (192, 64));
    assert_eq!(both.format, MatrixFormat::Micro(MicroScaled::MXFP4));
    assert_eq!(bank.layout.intermediate(), 96);

    let mut short = tensors.to_vec();
    short[1].2 = &[3, 192, 1];
    let got = claim_experts(config.clone(), &short, &decl).unwrap_err().to_string();
    assert!(got.contains("gate_up_proj_scales has shape [3, 192, 1]"), "{got}");
    let mut odd = tensors.to_vec();
    odd[0].1 = "F32";
    let got = claim_experts(config, &odd, &decl).unwrap_err().to_string();
    assert!(got.contains("dtype F32"), "{got}");
    let got = claim_experts(json!({}), &tensors[..2], &decl).unwrap_err().to_string();
    assert!(got.contains("down_proj_blocks is missing"), "{got}");
}

/// The experts of a layer in two tensors, with scales of these shapes.
fn claim_together(
    is_nvfp4: bool,
    gate_up_scale: &[usize],
    down_scale: &[usize],
) -> Result<LayerBank, FormatError> {
    let name = |part: &str| format!("model.layers.0.mlp.experts.{part}");
    let parts = ["gate_up_proj", "down_proj"];
    let weights = parts.map(name);
    let scales = parts.map(|part| name(&format!("{part}_weight_scale")));
    let global = parts.map(|part| name(&format!("{part}_weight_scale_2")));
    let decl = experts_decl(PARTS, FusedOrder::GateThenUp);
    if is_nvfp4 {
        let tensors: [(&str, &str, &[usize]); 6] = [
            (&weights[0], "U8", &[3, 192, 32]),
            (&scales[0], "F8_E4M3", &[3, 192, 4]),
            (&global[0], "F32", gate_up_scale),
            (&weights[1], "U8", &[3, 64, 48]),
            (&scales[1], "F8_E4M3", &[3, 64, 6]),
            (&global[1], "F32", down_scale),
        ];
        return claim_experts(json!({}), &tensors, &decl);
    }
    let tensors: [(&str, &str, &[usize]); 4] = [
        (&weights[0], "F8_E4M3", &[3, 192, 64]),
        (&scales[0], "F32", gate_up_scale),
        (&weights[1], "F8_E4M3", &[3, 64, 96]),
        (&scales[1], "F32", down_scale),
    ];
    claim_experts(json!({}), &tensors, &decl)
}

#[test]
fn experts_together_share_a_scale_or_have_one_each_or_one_for_gate_and_one_for_up() {
    let shapes: [&[usize]; 4] = [&[], &[1], &[3, 1], &[3, 2]];
    for is_nvfp4 in [true, false] {
        for gate_up in shapes {
            for down in [&[][..], &[1], &[3, 1]] {
                let bank = claim_together(is_nvfp4, gate_up, down).unwrap();
                let GateUp::Split { gate, up } = bank.layout.gate_up else {
                    panic!("two matrices")
                };
                let places =
                    [gate, up].map(|part| if is_nvfp4 { part.biases } else { part.scales });
                let are_apart = places[0].offset != places[1].offset;
                assert_eq!(are_apart, gate_up.get(1) == Some(&2), "{is_nvfp4} {gate_up:?}");
            }
        }
        for odd in [&[2][..], &[6], &[3, 3], &[2, 3]] {
            assert!(claim_together(is_nvfp4, odd, &[3, 1]).is_err(), "{odd:?}");
        }
        assert!(claim_together(is_nvfp4, &[3, 1], &[3, 2]).is_err());
    }
}

#[test]
fn reads_unquantised_gpt_oss_inputs_first() {
    let tensors: Tensors<'_> = &[
        ("model.layers.0.mlp.experts.gate_up_proj", "BF16", &[3, 64, 192]),
        ("model.layers.0.mlp.experts.down_proj", "BF16", &[3, 96, 64]),
    ];
    let decl = experts_decl(PARTS, FusedOrder::Alternating);
    let bank = claim_experts(json!({}), tensors, &decl).unwrap();
    let transposed = MatrixFormat::Transposed(Float::BF16);
    let GateUp::Alternating(both) = bank.layout.gate_up else { panic!("one matrix") };
    assert_eq!((both.rows, both.cols, both.format), (192, 64, transposed));
    let down = bank.layout.down;
    assert_eq!((down.rows, down.cols, down.format), (64, 96, transposed));
    let other = experts_decl(PARTS, FusedOrder::GateThenUp);
    assert!(claim_experts(json!({}), tensors, &other).is_err());
}

#[test]
fn finds_out_by_shapes_which_way_fused_experts_lie() {
    let lying = |hidden: usize, intermediate: usize, is_turned: bool| {
        let (gate_up, down) = if is_turned {
            ([3, hidden, 2 * intermediate], [3, intermediate, hidden])
        } else {
            ([3, 2 * intermediate, hidden], [3, hidden, intermediate])
        };
        let tensors: Tensors<'_> = &[
            ("model.language_model.layers.0.mlp.experts.gate_up_proj", "BF16", &gate_up),
            ("model.language_model.layers.0.mlp.experts.down_proj", "BF16", &down),
        ];
        let decl = experts_decl(PARTS, FusedOrder::GateThenUpByShape);
        claim_experts(json!({}), tensors, &ExpertsDecl { hidden, intermediate, ..decl })
    };
    // Square matrices too: of gate and up in the second case, of down in the third.
    for (hidden, intermediate) in [(64, 96), (64, 32), (64, 64)] {
        let turned = lying(hidden, intermediate, true);
        if hidden == 2 * intermediate {
            let text = turned.unwrap_err().to_string();
            assert!(text.contains("fits inputs and outputs in either order"), "{text}");
            continue;
        }
        let bank = turned.unwrap();
        let GateUp::Joined(both) = bank.layout.gate_up else { panic!("one matrix") };
        let transposed = MatrixFormat::Transposed(Float::BF16);
        assert_eq!((both.rows, both.cols, both.format), (2 * intermediate, hidden, transposed));
        assert_eq!(bank.layout.down.format, transposed);
    }
    for (hidden, intermediate) in [(64, 96), (64, 32), (64, 64)] {
        let bank = lying(hidden, intermediate, false).unwrap();
        let GateUp::Split { gate, up } = bank.layout.gate_up else { panic!("two matrices") };
        assert_eq!((gate.rows, up.rows), (intermediate, intermediate));
        assert_eq!(up.weight.offset, intermediate * hidden * 2);
    }
    let bank = claim_experts(
        json!({}),
        &[("layers.0.mlp.experts.gate_up_proj", "BF16", &[3, 64, 190])],
        &experts_decl(PARTS, FusedOrder::GateThenUpByShape),
    );
    let got = bank.unwrap_err().to_string();
    assert!(got.contains("gate_up_proj has shape [3, 64, 190]"), "{got}");
}

#[test]
fn reads_mlx_modes_under_either_name() {
    let modes = [("mxfp4", 8, 2, 12, 3), ("nvfp4", 8, 4, 12, 6), ("mxfp8", 16, 2, 24, 3)];
    for (mode, words, groups, down_words, down_groups) in modes {
        for block in ["switch_mlp", "experts"] {
            let name = |part: &str, tensor: &str| {
                format!("language_model.model.layers.0.mlp.{block}.{part}_proj.{tensor}")
            };
            let names: Vec<String> = ["gate", "up", "down"]
                .iter()
                .flat_map(|part| [name(part, "weight"), name(part, "scales")])
                .collect();
            let shapes = [
                [3, 96, words],
                [3, 96, groups],
                [3, 96, words],
                [3, 96, groups],
                [3, 64, down_words],
                [3, 64, down_groups],
            ];
            let dtypes = ["U32", "U8"].into_iter().cycle();
            let tensors: Vec<(&str, &str, &[usize])> = names
                .iter()
                .zip(dtypes)
                .zip(&shapes)
                .map(|((name, dtype), shape)| (name.as_str(), dtype, shape.as_slice()))
                .collect();
            let micro = MicroScaled::by_mode(mode).unwrap();
            let config = json!({"quantization": {"mode": mode, "bits": micro.element.bits(),
                "group_size": micro.group_size}});
            // Families with other names for the projections of single experts still stack them
            // under these names.
            let decl = experts_decl(["w1", "w3", "w2"], FusedOrder::GateThenUp);
            let bank = claim_experts(config, &tensors, &decl).unwrap();
            assert!(
                bank.layout.matrices().all(|matrix| matrix.format == MatrixFormat::Micro(micro))
            );
            let wrong = json!({"quantization": {"bits": 4, "group_size": 32}});
            let got = claim_experts(wrong, &tensors, &decl).unwrap_err().to_string();
            assert!(got.contains("the config says 4 bits in groups of 32"), "{got}");
        }
    }
}

fn fp8(block: [usize; 2]) -> Value {
    json!({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
        "weight_block_size": block}})
}

#[test]
fn reads_fp8_matrices_with_partial_blocks() {
    let config = fp8([128, 128]);
    let claim = |config: Value, tensors: Tensors<'_>| {
        let dir = small(config, tensors);
        let checkpoint = open_checkpoint(dir.path()).unwrap();
        let mut claims = Claims::new(&checkpoint);
        let source = claims.matrix(&decl("a", 300, 200))?;
        claims.finish()?;
        source
            .rows(130, 150)
            .read(checkpoint.reader())?
            .view(&source.rows(130, 150))
            .assert_sizes();
        Ok::<_, FormatError>(source)
    };
    for (dtype, float) in [("F32", Float::F32), ("BF16", Float::BF16)] {
        let tensors: Tensors<'_> = &[
            ("model.a.weight", "F8_E4M3", &[300, 200]),
            ("model.a.weight_scale_inv", dtype, &[3, 2]),
        ];
        let source = claim(config.clone(), tensors).unwrap();
        assert_eq!(source.format, MatrixFormat::Blocks(ScaledBlocks::new(128, 128, float)));
        assert_eq!(source.scales.len, 6 * float.bytes());
        let rows = source.rows(130, 150);
        assert_eq!(rows.scales.len, 2 * 2 * float.bytes());
    }
    let weight: (&str, &str, &[usize]) = ("a.weight", "F8_E4M3", &[300, 200]);
    let got = claim(config.clone(), &[weight]).unwrap_err().to_string();
    assert!(got.contains("a.weight_scale_inv is missing"), "{got}");
    // One scale for the whole matrix, or one per row.
    let shapes: [&[usize]; 5] = [&[], &[1], &[1, 1], &[300], &[300, 1]];
    for (shape, name) in shapes
        .iter()
        .flat_map(|shape| ["a.weight_scale_inv", "a.weight_scale"].map(|name| (*shape, name)))
    {
        let is_whole = shape.iter().product::<usize>() == 1;
        let source = claim(config.clone(), &[weight, (name, "BF16", shape)]).unwrap();
        let (rows, cols) = if is_whole { (300, 200) } else { (1, 200) };
        let want = ScaledBlocks::new(rows, cols, Float::BF16);
        assert_eq!(source.format, MatrixFormat::Blocks(want), "{name} {shape:?}");
    }
    let methods = [
        json!({"quant_method": "fp8", "activation_scheme": "static"}),
        json!({"quant_method": "compressed-tensors", "format": "float-quantized"}),
        json!({"quant_method": "modelopt", "quant_algo": "FP8"}),
    ];
    for method in methods {
        let config = json!({"quantization_config": method});
        assert!(claim(config, &[weight, ("a.weight_scale", "F32", &[1])]).is_ok(), "{method}");
    }
    let scales: (&str, &str, &[usize]) = ("a.weight_scale_inv", "F32", &[2, 3]);
    let got = claim(config, &[weight, scales]).unwrap_err().to_string();
    assert!(got.contains("shape [2, 3], the config asks for [3, 2]"), "{got}");
    assert!(claim(fp8([100, 67]), &[weight, ("a.weight_scale_inv", "F32", &[3, 3])]).is_ok());
}

#[test]
fn reads_fp8_experts_one_by_one() {
    let mut names = Vec::new();
    for e in 0..3 {
        for (part, shape) in [("w1", [96, 64]), ("w3", [96, 64]), ("w2", [64, 96])] {
            let name = format!("model.layers.0.mlp.experts.{e}.{part}.weight");
            names.push((format!("{name}_scale_inv"), "F32", [shape[0] / 32, shape[1] / 32]));
            names.push((name, "F8_E4M3", shape));
        }
    }
    let tensors: Vec<(&str, &str, &[usize])> = names
        .iter()
        .map(|(name, dtype, shape)| (name.as_str(), *dtype, shape.as_slice()))
        .collect();
    let decl = experts_decl(["w1", "w3", "w2"], FusedOrder::GateThenUp);
    let bank = claim_experts(fp8([32, 32]), &tensors, &decl).unwrap();
    assert_eq!(bank.layout.extents, [96 * 64, 24, 96 * 64, 24, 64 * 96, 24]);
    let blocks = MatrixFormat::Blocks(ScaledBlocks::new(32, 32, Float::F32));
    assert!(bank.layout.matrices().all(|matrix| matrix.format == blocks));
}

#[test]
fn blocks_of_fused_gate_and_up_cross_the_seam_only_where_the_scales_say_so() {
    let decl = experts_decl(["w1", "w3", "w2"], FusedOrder::GateThenUp);
    // Blocks of 64 rows: 3 over 192 rows, or 2 over each half. Blocks of 100: 2 over all, or 1 over each half.
    for (side, n_scales, starts, phase) in
        [(64, 3, [0, 1], 32), (64, 4, [0, 2], 0), (100, 2, [0, 1], 0), (32, 6, [0, 3], 0)]
    {
        let gate_up: [usize; 3] = [3, n_scales, 64_usize.div_ceil(side)];
        let down: [usize; 3] = [3, 64_usize.div_ceil(side), 96_usize.div_ceil(side)];
        let tensors: Tensors<'_> = &[
            ("model.layers.0.mlp.experts.gate_up_proj", "F8_E4M3", &[3, 192, 64]),
            ("model.layers.0.mlp.experts.gate_up_proj_scale_inv", "F32", &gate_up),
            ("model.layers.0.mlp.experts.down_proj", "F8_E4M3", &[3, 64, 96]),
            ("model.layers.0.mlp.experts.down_proj_scale_inv", "F32", &down),
        ];
        let bank = claim_experts(fp8([side, side]), tensors, &decl).unwrap();
        let GateUp::Split { gate, up } = &bank.layout.gate_up else { panic!("{side}") };
        let row_of_scales = 4 * 64_usize.div_ceil(side);
        assert_eq!([gate, up].map(|half| half.scales.offset / row_of_scales), starts, "{side}");
        let phases = [gate, up].map(|half| match half.format {
            MatrixFormat::Blocks(blocks) => blocks.phase,
            _ => panic!("{side}"),
        });
        assert_eq!(phases, [0, phase], "{side}, {n_scales}");
    }
    let tensors: Tensors<'_> = &[
        ("model.layers.0.mlp.experts.gate_up_proj", "F8_E4M3", &[3, 192, 64]),
        ("model.layers.0.mlp.experts.gate_up_proj_scale_inv", "F32", &[3, 5, 1]),
    ];
    let got = claim_experts(fp8([64, 64]), tensors, &decl).unwrap_err().to_string();
    assert!(got.contains("shape [3, 5, 1], the config asks for [3, 3, 1]"), "{got}");
}

#[test]
fn refuses_a_stack_of_matrices_whose_blocks_end_with_each() {
    let dir = small(
        fp8([4, 4]),
        &[
            ("a.weight", "F8_E4M3", &[4, 6, 8]),
            ("a.weight_scale_inv", "F32", &[4, 2, 2]),
            ("b.weight", "F8_E4M3", &[3, 8, 8]),
            ("b.weight_scale_inv", "F32", &[3, 2, 2]),
        ],
    );
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let mut claims = Claims::new(&checkpoint);
    let got = claims.matrix(&decl("a", 24, 8)).unwrap_err().to_string();
    assert!(got.contains("a of [4, 6] rows, in blocks that these cut"), "{got}");
    assert_eq!(claims.matrix(&decl("b", 24, 8)).unwrap().scales.len, 6 * 2 * 4);
}
