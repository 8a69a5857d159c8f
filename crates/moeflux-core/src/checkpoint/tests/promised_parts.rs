//! Parts of quantised matrices that the declaration promises: an error where they are missing.

use super::published::{Tensors, claim, refused};
use super::*;

/// Refused without the last of the tensors, and accepted with it.
#[track_caller]
fn needs_the_last(config: &Value, tensors: Tensors<'_>) {
    claim(config.clone(), tensors).unwrap();
    let (last, others) = tensors.split_last().unwrap();
    let text = refused(config.clone(), others);
    assert!(text.contains(&format!("tensor {} is missing", last.0)), "{text}");
}

#[test]
fn zero_points_of_awq() {
    let tensors: Tensors<'_> = &[
        ("a.qweight", "I32", &[128, 8]),
        ("a.scales", "F16", &[4, 64]),
        ("a.qzeros", "I32", &[4, 8]),
    ];
    needs_the_last(&json!({"quant_method": "awq", "zero_point": true}), tensors);
    let of_gptqmodel = json!({"quant_method": "gptq", "checkpoint_format": "gemm", "sym": false});
    needs_the_last(&of_gptqmodel, tensors);
    claim(json!({"quant_method": "awq", "zero_point": false}), &tensors[..2]).unwrap();
}

#[test]
fn groups_of_the_columns_of_gptq() {
    let tensors: Tensors<'_> = &[
        ("a.qweight", "I32", &[16, 64]),
        ("a.scales", "F16", &[2, 64]),
        ("a.g_idx", "I32", &[128]),
    ];
    let config = json!({"quant_method": "gptq", "bits": 4, "sym": true, "desc_act": true});
    needs_the_last(&config, tensors);
    claim(json!({"quant_method": "gptq", "bits": 4, "sym": true}), &tensors[..2]).unwrap();
}

fn compressed(weights: &[Value]) -> Value {
    let groups = weights.iter().enumerate();
    let groups: serde_json::Map<_, _> =
        groups.map(|(i, weights)| (format!("group_{i}"), json!({"weights": weights}))).collect();
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups})
}

#[test]
fn zero_points_and_groups_of_compressed_tensors() {
    let codes = [("a.weight_packed", "I32", &[64, 16][..]), ("a.weight_scale", "BF16", &[64, 4])];
    let zeros = ("a.weight_zero_point", "I32", &[8, 4][..]);
    let index = ("a.weight_g_idx", "I32", &[128][..]);
    let asymmetric = json!({"num_bits": 4, "type": "int", "symmetric": false});
    let reordered = json!({"num_bits": 4, "type": "int", "symmetric": true, "actorder": "group"});
    let in_order = json!({"num_bits": 4, "type": "int", "symmetric": true, "actorder": "static"});
    let float = json!({"num_bits": 8, "type": "float", "symmetric": true});
    let with = |last| [codes[0], codes[1], last];
    needs_the_last(&compressed(std::slice::from_ref(&asymmetric)), &with(zeros));
    needs_the_last(&compressed(&[float, asymmetric.clone()]), &with(zeros));
    needs_the_last(&compressed(&[reordered]), &with(index));
    // Which modules are in which group is not read.
    claim(compressed(&[asymmetric, in_order.clone()]), &codes).unwrap();
    claim(compressed(&[in_order]), &codes).unwrap();
}
