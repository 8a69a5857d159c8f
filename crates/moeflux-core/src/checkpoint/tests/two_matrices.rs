//! Experts without a gate: where their matrices are, and what is said where they are not.

use super::small_floats::{Tensors, claim_experts};
use super::*;

fn decl() -> ExpertsDecl {
    ExpertsDecl {
        layer: LayerIdx(0),
        prefix: "layers.0.mixer".into(),
        matrices: ExpertMatrices::Two { parts: ["up_proj", "down_proj"] },
        n_experts: 2,
        hidden: 64,
        intermediate: 96,
    }
}

#[track_caller]
fn check(tensors: Tensors<'_>) {
    let bank = claim_experts(json!({}), tensors, &decl()).unwrap();
    let GateUp::Up(up) = bank.layout.gate_up else { panic!("{:?}", bank.layout.gate_up) };
    assert_eq!([(up.rows, up.cols)], [(96, 64)]);
    assert_eq!((bank.layout.down.rows, bank.layout.down.cols), (64, 96));
    assert_eq!(bank.layout.first_cols(), 96);
    assert_eq!(bank.layout.record_bytes(), 2 * 2 * 96 * 64);
}

#[test]
fn the_matrices_of_experts_without_a_gate_are_found_one_by_one_and_stacked() {
    check(&[
        ("model.layers.0.mixer.experts.0.up_proj.weight", "BF16", &[96, 64]),
        ("model.layers.0.mixer.experts.0.down_proj.weight", "BF16", &[64, 96]),
        ("model.layers.0.mixer.experts.1.up_proj.weight", "BF16", &[96, 64]),
        ("model.layers.0.mixer.experts.1.down_proj.weight", "BF16", &[64, 96]),
    ]);
    for [up, down] in [["up_proj", "down_proj"], ["fc1", "fc2"]] {
        check(&[
            (&format!("model.layers.0.mixer.switch_mlp.{up}.weight"), "BF16", &[2, 96, 64]),
            (&format!("model.layers.0.mixer.switch_mlp.{down}.weight"), "BF16", &[2, 64, 96]),
        ]);
    }
}

#[test]
fn experts_with_a_gate_are_not_taken_for_experts_without_one() {
    let err = claim_experts(
        json!({}),
        &[("model.layers.0.mixer.experts.gate_up_proj", "BF16", &[2, 192, 64])],
        &decl(),
    );
    let err = err.unwrap_err().to_string();
    let want =
        "layers.0.mixer.switch_mlp.up_proj.weight (or layers.0.mixer.experts.0.up_proj.weight)";
    assert!(err.contains(want), "{err}");
}

#[test]
fn records_without_a_gate_have_two_matrices() {
    let format = MatrixFormat::Dense(Float::BF16);
    let layout = record_layout(64, 96, ExpertParts { gate: None, up: format, down: format });
    assert_eq!(
        layout.matrices().map(|matrix| matrix.weight.offset).collect::<Vec<_>>(),
        [0, 12288]
    );
    assert_eq!(layout.record_bytes(), 24576);
}
