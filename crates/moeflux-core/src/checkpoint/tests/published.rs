//! Quantised checkpoints of other tools than MLX: which tensors make which format.

use super::*;
use crate::quant::{MicroScaled, ScaledBlocks};

pub(super) type Tensors<'a> = &'a [(&'a str, &'a str, &'a [usize])];

pub(super) fn claim(config: Value, tensors: Tensors<'_>) -> Result<MatrixFormat, FormatError> {
    let dir = small(json!({"quantization_config": config}), tensors);
    let checkpoint = open_checkpoint(dir.path())?;
    let mut claims = Claims::new(&checkpoint);
    let source = claims.matrix(&decl("a", 64, 128))?;
    claims.finish()?;
    let [weight, scales, biases] =
        [source.weight, source.scales, source.biases].map(|extent| extent.len);
    assert_eq!(weight, 64 * source.format.row_bytes(128));
    assert_eq!(scales, source.format.scale_bytes(64, 128));
    assert_eq!(biases, source.format.bias_bytes(64, 128));
    // What is computed can be read by anyone who reads files.
    let bytes = source.read(checkpoint.reader())?;
    bytes.view(&source).assert_sizes();
    Ok(source.format)
}

#[track_caller]
pub(super) fn refused(config: Value, tensors: Tensors<'_>) -> String {
    let text = claim(config, tensors).unwrap_err().to_string();
    assert!(!text.contains('\n') && text.len() < 300, "{text}");
    text
}

fn compressed(format: &str) -> Value {
    json!({"quant_method": "compressed-tensors", "format": format})
}

#[test]
fn integers_of_compressed_tensors_are_affine() {
    let config = compressed("pack-quantized");
    for bits in [2, 3, 4, 5, 6, 8usize] {
        for (group, n_groups) in [(32, 4), (64, 2), (128, 1)] {
            let (words, groups) = ([64, 4 * bits], [64, n_groups]);
            let tensors: Tensors<'_> = &[
                ("a.weight_packed", "I32", &words),
                ("a.weight_scale", "BF16", &groups),
                ("a.weight_shape", "I64", &[2]),
            ];
            let got = claim(config.clone(), tensors).unwrap();
            let want = Affine::symmetric(bits as u8, group, Float::BF16);
            assert_eq!(got, MatrixFormat::Affine(want), "{bits} {group}");
            let zeros = [64 * bits / 32, n_groups];
            let tensors: Tensors<'_> = &[
                ("a.weight_packed", "I32", &words),
                ("a.weight_scale", "F16", &groups),
                ("a.weight_zero_point", "I32", &zeros),
            ];
            let want = Affine::new(bits as u8, group, Float::F32);
            assert_eq!(claim(config.clone(), tensors).unwrap(), MatrixFormat::Affine(want));
        }
    }
    let signed: Tensors<'_> =
        &[("a.weight", "I8", &[64, 128]), ("a.weight_scale", "BF16", &[64, 1])];
    let want = MatrixFormat::Affine(Affine::symmetric(8, 128, Float::BF16));
    assert_eq!(claim(compressed("int-quantized"), signed).unwrap(), want);
    let sevens: Tensors<'_> =
        &[("a.weight_packed", "I32", &[64, 28]), ("a.weight_scale", "BF16", &[64, 4])];
    assert_eq!(claim(config.clone(), sevens).unwrap(), MatrixFormat::Dense(Float::F32));
    let ten_to_a_word: Tensors<'_> =
        &[("a.weight_packed", "I32", &[64, 13]), ("a.weight_scale", "BF16", &[64, 1])];
    assert_eq!(
        refused(config, ten_to_a_word).split(": ").last().unwrap(),
        "tensor a.weight_packed has shape [64, 13], the config asks for [64, columns × bits / 32]"
    );
}

#[test]
fn gptq_and_awq_are_told_apart() {
    let gptq = |sym: bool| json!({"quant_method": "gptq", "bits": 4, "sym": sym});
    let codes: Tensors<'_> = &[
        ("a.qweight", "I32", &[16, 64]),
        ("a.qzeros", "I32", &[2, 8]),
        ("a.scales", "F16", &[2, 64]),
        ("a.g_idx", "I32", &[128]),
    ];
    let symmetric = Affine::symmetric(4, 64, Float::F32);
    let stored = Affine::new(4, 64, Float::F32);
    // A symmetric matrix needs no zero points, but the tensor may be there.
    for (config, want) in [
        (gptq(true), symmetric),
        (gptq(false), stored),
        (json!({"quant_method": "auto-round", "sym": false}), stored),
    ] {
        assert_eq!(claim(config, codes).unwrap(), MatrixFormat::Affine(want));
    }
    let reordered = json!({"quant_method": "gptq", "bits": 4, "desc_act": true});
    assert_eq!(claim(reordered, codes).unwrap(), MatrixFormat::Dense(Float::F32));
    let awq: Tensors<'_> = &[
        ("a.qweight", "I32", &[128, 8]),
        ("a.qzeros", "I32", &[4, 8]),
        ("a.scales", "F16", &[4, 64]),
    ];
    let want = MatrixFormat::Affine(Affine::new(4, 32, Float::F32));
    for config in [json!({"quant_method": "awq", "version": "GEMM"}), gptq(true)] {
        assert_eq!(claim(config, awq).unwrap(), want);
    }
    let odd: Tensors<'_> = &[("a.qweight", "I32", &[9, 9]), ("a.scales", "F16", &[2, 64])];
    let text = refused(gptq(true), odd);
    assert!(text.ends_with("[128 × bits / 32, 64] or [128, 64 / 8]"), "{text}");
    for version in ["gemv", "gemv_fast", "marlin"] {
        let text = refused(json!({"quant_method": "awq", "version": version}), awq);
        let want = format!("version {version:?} of AWQ (only \"gemm\") is not supported");
        assert!(text.ends_with(&want), "{text}");
    }
}

/// Versions of the format store other zero points.
#[test]
fn gptq_without_a_declaration_or_zero_points_is_refused() {
    let codes: Tensors<'_> = &[("a.qweight", "I32", &[16, 64]), ("a.scales", "F16", &[2, 64])];
    let text = refused(json!({}), codes);
    assert!(text.contains("copy quantize_config.json"), "{text}");
    let text = refused(json!({"quant_method": "gptq", "sym": false}), codes);
    assert!(text.contains("tensor a.qzeros is missing"), "{text}");
    let stored = Affine::new(4, 64, Float::F32);
    let with_zeros = [codes, &[("a.qzeros", "I32", &[2, 8])]].concat();
    let got = claim(json!({"quant_method": "gptq"}), &with_zeros).unwrap();
    assert_eq!(got, MatrixFormat::Affine(stored));
}

#[test]
fn tensors_that_say_less_than_a_matrix_needs_are_refused() {
    let index: Tensors<'_> = &[
        ("a.weight_packed", "I32", &[64, 16]),
        ("a.weight_scale", "BF16", &[64, 4]),
        ("a.weight_g_idx", "I32", &[64]),
    ];
    let text = refused(compressed("pack-quantized"), index);
    assert!(text.contains("a.weight_g_idx has shape [64], the config asks for [128]"), "{text}");
    // Zero points of ten outputs take one word and a quarter.
    let config = json!({"quantization_config": {"quant_method": "gptq", "sym": false}});
    let tensors: Tensors<'_> = &[
        ("a.qweight", "I32", &[16, 10]),
        ("a.qzeros", "I32", &[2, 1]),
        ("a.scales", "F16", &[2, 10]),
    ];
    let dir = small(config, tensors);
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let text = Claims::new(&checkpoint).matrix(&decl("a", 10, 128)).unwrap_err().to_string();
    assert!(text.ends_with("a with zero points of 10 outputs, no whole words, is not supported"));
}

fn groups(weights: &[Value]) -> Value {
    let groups = (0..).zip(weights).map(|(nth, weights)| {
        (format!("group_{nth}"), json!({"targets": ["Linear"], "weights": weights}))
    });
    let groups = Value::Object(groups.collect());
    json!({"quant_method": "compressed-tensors", "config_groups": groups})
}

#[test]
fn the_width_of_codes_is_a_declared_one_that_fits() {
    let claim_cols = |config: &Value, cols: usize, words: usize| {
        let tensors: Tensors<'_> =
            &[("a.weight_packed", "I32", &[64, words]), ("a.weight_scale", "BF16", &[64, 1])];
        let dir = small(json!({"quantization_config": config}), tensors);
        let checkpoint = open_checkpoint(dir.path()).unwrap();
        let source = Claims::new(&checkpoint).matrix(&decl("a", 64, cols));
        source.map(|_| ()).map_err(|err| err.to_string())
    };
    let integers = |bits: u64| json!({"num_bits": bits, "type": "int"});
    let (fours, mixed) = (groups(&[integers(4)]), groups(&[integers(4), integers(8)]));
    // Without a declaration, sixteen columns in two words may have three bits or four.
    assert!(claim_cols(&fours, 16, 2).is_ok());
    assert!(claim_cols(&mixed, 16, 2).is_ok());
    let err = claim_cols(&compressed("pack-quantized"), 16, 2).unwrap_err();
    assert!(err.ends_with("a with 16 columns of 3 or 4 bits is not supported"), "{err}");
    // Seven bits in whole bytes, an older layout, would fit eight.
    let err = claim_cols(&groups(&[integers(7)]), 128, 32).unwrap_err();
    assert!(err.contains("has shape [64, 32]"), "{err}");
    let floats = json!({"num_bits": 8, "type": "float"});
    assert!(claim_cols(&groups(&[integers(4), floats]), 128, 16).is_ok());
    let preset =
        json!({"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}});
    assert!(claim_cols(&preset, 128, 16).is_ok());
}

#[test]
fn zero_points_in_the_order_of_another_layout_are_refused() {
    let tensors: Tensors<'_> = &[
        ("a.weight_packed", "I32", &[64, 16]),
        ("a.weight_scale", "BF16", &[64, 4]),
        ("a.weight_zero_point", "I32", &[4, 8]),
    ];
    let text = refused(compressed("pack-quantized"), tensors);
    assert!(text.contains("a.weight_zero_point has shape [4, 8]"), "{text}");
}

#[test]
fn groups_of_gptq_have_the_declared_size_where_it_fits() {
    let codes: Tensors<'_> = &[("a.qweight", "I32", &[16, 64]), ("a.scales", "F16", &[2, 64])];
    // Two groups of 128 columns: of 64, or of 96 and 32.
    for (size, group) in [(96, 32), (64, 64), (128, 64), (-1, 64)] {
        let config = json!({"quant_method": "gptq", "sym": true, "group_size": size});
        let want = Affine::symmetric(4, group, Float::F32);
        assert_eq!(claim(config, codes).unwrap(), MatrixFormat::Affine(want), "{size}");
    }
    let three: Tensors<'_> = &[("a.qweight", "I32", &[16, 64]), ("a.scales", "F16", &[3, 64])];
    let text = refused(json!({"quant_method": "gptq", "sym": true, "group_size": 32}), three);
    assert!(text.contains("a.scales has shape [3, 64]"), "{text}");
    let config = json!({"quant_method": "gptq", "sym": true,
        "dynamic": {"-:.*gate$": {}, "+:.*a$": {"bits": 8, "sym": false}}});
    let text = refused(config, codes);
    assert!(
        text.ends_with("dynamic with another \"sym\" for \"+:.*a$\" is not supported"),
        "{text}"
    );
}

#[test]
fn blocks_of_fp8_have_the_declared_size_that_fits() {
    let structure = |structure: Value| json!({"num_bits": 8, "block_structure": structure});
    let claim_scales = |config: Value, scales: [usize; 2]| {
        let tensors: Tensors<'_> =
            &[("a.weight", "F8_E4M3", &[64, 128]), ("a.weight_scale", "BF16", &scales)];
        claim(config, tensors).map_err(|err| err.to_string())
    };
    let blocks = |rows, cols| MatrixFormat::Blocks(ScaledBlocks::new(rows, cols, Float::BF16));
    let two = groups(&[structure(json!([16, 32])), structure(json!("128x64")), json!({})]);
    assert_eq!(claim_scales(two.clone(), [4, 4]), Ok(blocks(16, 32)));
    assert_eq!(claim_scales(two.clone(), [1, 2]), Ok(blocks(128, 64)));
    assert_eq!(claim_scales(two.clone(), [64, 1]), Ok(blocks(1, 128)));
    let err = claim_scales(two, [2, 1]).unwrap_err();
    assert!(err.ends_with("has shape [2, 1], the config asks for [4, 4]"), "{err}");
    let alike = |cols| groups(&[structure(json!([64, 100])), structure(json!([128, cols]))]);
    assert_eq!(claim_scales(alike(100), [1, 2]), Ok(blocks(64, 100)));
    let err = claim_scales(alike(120), [1, 2]).unwrap_err();
    let want = "a with scales for blocks of 64 × 100 or 128 × 120 is not supported";
    assert!(err.ends_with(want), "{err}");
    // A grid that is turned.
    let turned: Tensors<'_> =
        &[("a.weight", "F8_E4M3", &[64, 128]), ("a.weight_scale", "F32", &[2, 1])];
    let config = json!({"quant_method": "fp8", "weight_block_size": [64, 64]});
    assert!(refused(config, turned).contains("[2, 1], the config asks for [1, 2]"));
}

/// Modules that are read, each with its declaration.
const MODULES: [(&str, Tensors<'_>); 6] = [
    (
        r#"{"quant_method": "compressed-tensors"}"#,
        &[
            ("a.weight_packed", "I32", &[64, 16]),
            ("a.weight_scale", "BF16", &[64, 4]),
            ("a.weight_zero_point", "I32", &[8, 4]),
            ("a.weight_g_idx", "I32", &[128]),
        ],
    ),
    (
        r#"{"quant_method": "gptq", "desc_act": true}"#,
        &[
            ("a.qweight", "I32", &[16, 64]),
            ("a.qzeros", "I32", &[2, 8]),
            ("a.scales", "F16", &[2, 64]),
            ("a.g_idx", "I32", &[128]),
        ],
    ),
    (
        r#"{"quant_method": "awq"}"#,
        &[
            ("a.qweight", "I32", &[128, 8]),
            ("a.qzeros", "I32", &[4, 8]),
            ("a.scales", "F16", &[4, 64]),
        ],
    ),
    (
        r#"{"quant_method": "modelopt"}"#,
        &[
            ("a.weight", "U8", &[64, 64]),
            ("a.weight_scale", "F8_E4M3", &[64, 8]),
            ("a.weight_scale_2", "F32", &[]),
        ],
    ),
    (
        r#"{"quant_method": "bitsandbytes"}"#,
        &[
            ("a.weight", "U8", &[4096, 1]),
            ("a.weight.absmax", "U8", &[128]),
            ("a.weight.quant_map", "F32", &[16]),
            ("a.weight.nested_absmax", "F32", &[1]),
            ("a.weight.nested_quant_map", "F32", &[256]),
            ("a.weight.quant_state.bitsandbytes__nf4", "U8", &[160]),
        ],
    ),
    (
        r#"{"quant_method": "fp8"}"#,
        &[("a.weight", "F8_E4M3", &[64, 128]), ("a.weight_scale_inv", "F8_E8M0", &[1, 1])],
    ),
];
const DTYPES: [&str; 9] = ["I32", "U8", "I8", "F8_E4M3", "F8_E8M0", "BF16", "F16", "F32", "U32"];
const LENGTHS: [usize; 14] = [0, 1, 2, 3, 4, 8, 12, 16, 32, 63, 64, 65, 127, 128];

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

    /// A module with one tensor of another type or shape, or without it, is read or refused in a
    /// line.
    #[test]
    fn no_change_of_a_published_tensor_panics(
        module in 0..MODULES.len(),
        changed in 0..6usize,
        dtype in proptest::option::of(0..DTYPES.len()),
        shape in proptest::option::of(proptest::collection::vec(0..LENGTHS.len(), 0..4)),
        method in 0..MODULES.len(),
    ) {
        let mut tensors = MODULES[module].1.to_vec();
        let changed = changed % tensors.len();
        let shape: Option<Vec<usize>> =
            shape.map(|shape| shape.into_iter().map(|idx| LENGTHS[idx]).collect());
        match (dtype, &shape) {
            (None, None) => drop(tensors.remove(changed)),
            _ => {
                let (name, old_dtype, old_shape) = tensors[changed];
                let dtype = dtype.map_or(old_dtype, |dtype| DTYPES[dtype]);
                tensors[changed] = (name, dtype, shape.as_deref().unwrap_or(old_shape));
            }
        }
        let config = serde_json::from_str(MODULES[method].0).unwrap();
        if let Err(err) = claim(config, &tensors) {
            proptest::prop_assert!(!err.to_string().contains('\n'), "{err}");
        }
    }
}

#[test]
fn floats_of_four_bits_are_told_apart_by_their_scales() {
    let nvfp4 = |name,
                 scale: &'static str,
                 shape: &'static [usize]|
     -> [(&str, &str, &[usize]); 3] {
        [(name, "U8", &[64, 64]), ("a.weight_scale", "F8_E4M3", &[64, 8]), (scale, "F32", shape)]
    };
    let want = MatrixFormat::Micro(MicroScaled::NVFP4_GLOBAL);
    for algorithm in ["NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"] {
        let config = json!({"quant_method": "modelopt", "quant_algo": algorithm});
        let err = refused(config, &nvfp4("a.weight", "a.weight_scale_2", &[2]));
        assert!(err.contains("a.weight_scale_2 has shape [2]"), "{err}");
    }
    let mxfp4: Tensors<'_> =
        &[("a.weight_packed", "U8", &[64, 64]), ("a.weight_scale", "U8", &[64, 4])];
    let got = claim(compressed("mxfp4-pack-quantized"), mxfp4).unwrap();
    assert_eq!(got, MatrixFormat::Micro(MicroScaled::MXFP4));
    // Files of zeros have a scale of zero, which no divisor may be.
    let config = compressed("nvfp4-pack-quantized");
    let zero = nvfp4("a.weight_packed", "a.weight_global_scale", &[1]);
    let text = refused(config, &zero);
    assert!(text.ends_with("the scale of a whole matrix is 0"), "{text}");
    let config = json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
    for shape in [&[][..], &[1][..]] {
        assert_eq!(
            claim(config.clone(), &nvfp4("a.weight", "a.weight_scale_2", shape)).unwrap(),
            want
        );
    }
    // One of the two kinds of scales alone is no format that is published.
    let alone = nvfp4("a.weight", "a.weight_scale_2", &[]);
    let text = refused(config.clone(), &alone[..2]);
    assert!(text.contains("tensor a.weight_scale_2 is missing"), "{text}");
    let packed = nvfp4("a.weight_packed", "a.weight_global_scale", &[1]);
    let text = refused(compressed("nvfp4-pack-quantized"), &packed[..2]);
    assert!(text.contains("tensor a.weight_global_scale is missing"), "{text}");
    // Halves of rows: another layout, which has been published.
    let turned: Tensors<'_> = &[
        ("a.weight", "U8", &[32, 128]),
        ("a.weight_scale", "F8_E4M3", &[64, 8]),
        ("a.weight_scale_2", "F32", &[]),
    ];
    assert!(refused(config, turned).contains("the config asks for [64, 64]"));
}

#[test]
fn every_published_form_of_scales_of_fp8_is_read() {
    let config = json!({"quant_method": "modelopt", "quant_algo": "FP8"});
    let blocks = |rows, cols| MatrixFormat::Blocks(ScaledBlocks::new(rows, cols, Float::F32));
    let forms: [(&str, &str, &[usize], MatrixFormat); 9] = [
        ("weight_scale", "F32", &[], blocks(64, 128)),
        ("weight_scale", "F32", &[64], blocks(1, 128)),
        ("weight_scale", "F32", &[64, 1], blocks(1, 128)),
        ("weight_scale", "F32", &[64, 2], blocks(1, 64)),
        ("weight_scale", "U8", &[64, 4], MatrixFormat::Micro(MicroScaled::MXFP8)),
        ("weight_scale_inv", "F32", &[1, 1], blocks(128, 128)),
        ("weight_scale", "F32", &[1, 1, 1, 1], blocks(128, 128)),
        ("weight_scale_inv", "F8_E8M0", &[1, 1], blocks(128, 128)),
        ("scale", "F8_E8M0", &[1, 1], blocks(128, 128)),
    ];
    for (name, dtype, shape, want) in forms {
        let scale = format!("a.{name}");
        let tensors: Tensors<'_> = &[("a.weight", "F8_E4M3", &[64, 128]), (&scale, dtype, shape)];
        assert_eq!(claim(config.clone(), tensors).unwrap(), want, "{name} {dtype} {shape:?}");
    }
}

#[test]
fn declarations_that_change_what_is_computed_are_refused() {
    let tensors: Tensors<'_> = &[("a.weight", "BF16", &[64, 128])];
    let cases = [
        (
            json!({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}),
            "quant_algo \"NVFP4_AWQ\", which scales the inputs of weights, is not supported",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "marlin-24"}),
            "format \"marlin-24\" of compressed-tensors is not supported",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
                "transform_config": {"config_groups": {"u": 1}}}),
            "transform_config, which rotates the inputs of weights, is not supported",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
                "sparsity_config": {"format": "sparse-24-bitmask"}}),
            "sparsity_config with format \"sparse-24-bitmask\" is not supported",
        ),
        (
            json!({"quant_method": "gptq", "checkpoint_format": "marlin"}),
            "checkpoint_format \"marlin\" of GPTQ (only \"gptq\", \"gptq_v2\") is not supported",
        ),
        (json!({"quant_method": "awq", "bits": 3}), "AWQ with 3 bits is not supported"),
        (
            json!({"quant_method": "auto-round", "packing_format": "auto_round", "sym": false}),
            "packing_format \"auto_round\" of auto-round is not supported",
        ),
        (
            json!({"quant_method": "bitsandbytes", "load_in_8bit": true}),
            "load_in_8bit of bitsandbytes (only 4 bits, nf4) is not supported",
        ),
        (json!({"quant_method": "hqq"}), "quant_method \"hqq\" is not supported"),
        (json!({"quant_method": 4}), "quant_method 4 is not supported"),
    ];
    for (config, want) in cases {
        let text = refused(config, tensors);
        assert!(text.ends_with(&format!("config.json: {want}")), "{text}");
    }
    let factor: Tensors<'_> =
        &[("a.weight", "BF16", &[64, 128]), ("a.pre_quant_scale", "BF16", &[128])];
    let text = refused(json!({"quant_method": "modelopt"}), factor);
    assert!(text.contains("a.pre_quant_scale"), "{text}");
}

#[test]
fn a_declaration_may_be_in_a_file_of_its_own() {
    let tensors: Tensors<'_> = &[("a.weight", "BF16", &[64, 128])];
    let files = [
        ("hf_quant_config.json", json!({"quantization": {"quant_algo": "NVFP4_SVD"}}), "NVFP4_SVD"),
        ("quantize_config.json", json!({"checkpoint_format": "marlin"}), "marlin"),
        ("quant_config.json", json!({"w_bit": 3}), "AWQ with 3 bits"),
        ("hf_quant_config.json", json!({"quantization": 3}), "quantization is not an object"),
    ];
    for (name, content, want) in files {
        let dir = small(json!({}), tensors);
        fs::write(dir.path().join(name), content.to_string()).unwrap();
        let text = open_checkpoint(dir.path()).unwrap_err().to_string();
        assert!(text.contains(name) && text.contains(want), "{text}");
    }
}

#[test]
fn experts_of_a_layer_together_are_named_with_or_without_their_weight() {
    let decl = ExpertsDecl {
        layer: LayerIdx(0),
        prefix: "layers.0".into(),
        matrices: ExpertMatrices::Three {
            parts: ["gate_proj", "up_proj", "down_proj"],
            fused: FusedOrder::GateThenUp,
        },
        n_experts: 3,
        hidden: 64,
        intermediate: 96,
    };
    for (word, shape) in [("", "shape"), ("weight_", "weight_shape")] {
        let name = |part: &str| format!("model.language_model.layers.0.experts.{part}");
        let names = ["gate_up_proj", "down_proj"].map(|projection| {
            [format!("{word}packed"), format!("{word}scale"), shape.into()]
                .map(|part| name(&format!("{projection}_{part}")))
        });
        let tensors: [(&str, &str, &[usize]); 6] = [
            (&names[0][0], "I32", &[3, 192, 8]),
            (&names[0][1], "BF16", &[3, 192, 2]),
            (&names[0][2], "I64", &[2]),
            (&names[1][0], "I32", &[3, 64, 12]),
            (&names[1][1], "BF16", &[3, 64, 3]),
            (&names[1][2], "I64", &[2]),
        ];
        let dir = small(json!({"quantization_config": compressed("pack-quantized")}), &tensors);
        let checkpoint = open_checkpoint(dir.path()).unwrap();
        let mut claims = Claims::new(&checkpoint);
        let layer = claims.experts(&decl).unwrap();
        claims.finish().unwrap();
        for matrix in layer.layout.matrices() {
            assert_eq!(matrix.format, MatrixFormat::Affine(Affine::symmetric(4, 32, Float::BF16)));
        }
    }
}

#[test]
fn experts_of_every_form_have_a_place_each() {
    let decl = ExpertsDecl {
        layer: LayerIdx(0),
        prefix: "layers.0.mlp".into(),
        matrices: ExpertMatrices::Three {
            parts: ["gate_proj", "up_proj", "down_proj"],
            fused: FusedOrder::GateThenUp,
        },
        n_experts: 3,
        hidden: 64,
        intermediate: 96,
    };
    // Shapes by rows and columns of a projection.
    type Shape = fn(usize, usize) -> Vec<usize>;
    let nvfp4: &[(&str, &str, Shape)] = &[
        ("weight", "U8", |rows, cols| vec![rows, cols / 2]),
        ("weight_scale", "F8_E4M3", |rows, cols| vec![rows, cols / 16]),
        ("weight_scale_2", "F32", |_, _| vec![]),
    ];
    let gptq: &[(&str, &str, Shape)] = &[
        ("qweight", "I32", |rows, cols| vec![cols / 8, rows]),
        ("qzeros", "I32", |rows, cols| vec![cols / 32, rows / 8]),
        ("scales", "F16", |rows, cols| vec![cols / 32, rows]),
    ];
    let int4: &[(&str, &str, Shape)] = &[
        ("weight_packed", "I32", |rows, cols| vec![rows, cols / 8]),
        ("weight_scale", "BF16", |rows, cols| vec![rows, cols / 32]),
    ];
    let methods = [
        (json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), nvfp4),
        (json!({"quant_method": "gptq", "bits": 4}), gptq),
        (compressed("pack-quantized"), int4),
    ];
    for (method, parts) in methods {
        let mut tensors: Vec<(String, &str, Vec<usize>)> = Vec::new();
        for expert in 0..3 {
            for (projection, rows, cols) in
                [("gate_proj", 96, 64), ("up_proj", 96, 64), ("down_proj", 64, 96)]
            {
                for (part, dtype, shape) in parts {
                    let name = format!("model.layers.0.mlp.experts.{expert}.{projection}.{part}");
                    tensors.push((name, dtype, shape(rows, cols)));
                }
            }
        }
        let tensors: Vec<(&str, &str, &[usize])> =
            tensors.iter().map(|(name, dtype, shape)| (&name[..], *dtype, &shape[..])).collect();
        let dir = small(json!({"quantization_config": method}), &tensors);
        let checkpoint = open_checkpoint(dir.path()).unwrap();
        let mut claims = Claims::new(&checkpoint);
        let layer = claims.experts(&decl).unwrap();
        claims.finish().unwrap();
        let bank = claims.into_bank();
        let reader = FileReader::new(&bank.files);
        for expert in (0..3).map(ExpertId) {
            for (source, len) in layer.sources.iter().zip(&layer.layout.extents) {
                let (file, offset) = source.locate(expert);
                reader.read(Extent { file, offset, len: *len }).unwrap();
            }
        }
        for matrix in layer.layout.matrices() {
            let want = matrix.format.matrix_bytes(matrix.rows, matrix.cols);
            assert_eq!(matrix.weight.len + matrix.scales.len + matrix.biases.len, want);
        }
    }
}

#[test]
fn matrices_of_bitsandbytes_are_nf4() {
    let config = json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
    let tensors = |n_blocks: &'static [usize], state| -> [(&str, &str, &[usize]); 4] {
        [
            ("a.weight", "U8", &[4096, 1]),
            ("a.weight.absmax", "F32", n_blocks),
            ("a.weight.quant_map", "F32", &[16]),
            (state, "U8", &[90]),
        ]
    };
    let state = "a.weight.quant_state.bitsandbytes__nf4";
    for n_blocks in [&[128][..], &[64]] {
        // The shapes fit; the levels in the file are zeros.
        let text = refused(config.clone(), &tensors(n_blocks, state));
        assert!(text.ends_with("quant_map has 0 for code 0, where NF4 has -1"), "{text}");
    }
    for (n_blocks, block) in [(&[256][..], 32), (&[32], 256)] {
        let text = refused(config.clone(), &tensors(n_blocks, state));
        let want = format!("a with 128 columns in blocks of {block} elements is not supported");
        assert!(text.ends_with(&want), "{text}");
    }
    let state = "a.weight.quant_state.bitsandbytes__fp4";
    let text = refused(config, &tensors(&[128], state));
    assert!(text.ends_with("a in fp4 of bitsandbytes (only nf4) is not supported"), "{text}");
}
