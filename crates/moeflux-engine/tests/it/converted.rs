//! Golden checkpoints as the GGUF files that llama.cpp's converter makes of them: they give the logits of
//! the checkpoints.

mod convert;
mod keys;
mod names;
mod tensors;
#[path = "../../../moeflux-core/src/gguf/tests/writer.rs"]
#[expect(dead_code, reason = "tests of damaged files use the rest")]
pub(crate) mod writer;

use std::fs;
use std::path::Path;

use moeflux_engine::{Activations, Engine, EngineOptions};
use serde_json::Value;

use crate::common::{Golden, golden_dir, logits_by_chunk};
use convert::convert;
use tensors::{Tensors, read};

/// Largest difference of a logit: the same numbers in another type.
const MAX_DIFFERENCE: f32 = 1e-4;

/// A checkpoint and the architecture that its files have.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) golden: &'static str,
    pub(crate) architecture: &'static str,
}

const fn case(golden: &'static str, architecture: &'static str) -> Case {
    Case { golden, architecture }
}

/// Architectures without a golden file of their own, or with another family in it.
pub(crate) const CASES: &[Case] = &[
    case("bailing_moe-hf", "bailingmoe"),
    case("bailing_moe_v2-hf", "bailingmoe2"),
    case("deepseek_v2-hf", "deepseek2"),
    case("deepseek_v2-lite", "deepseek2"),
    case("deepseek_v4-hf", "deepseek4"),
    case("ernie4_5_moe-hf", "ernie4_5-moe"),
    case("exaone_moe-hf", "exaone-moe"),
    case("glm4_moe-hf", "glm4moe"),
    case("glm4_moe_lite-hf", "deepseek2"),
    case("glm4v_moe-hf", "glm4moe"),
    case("glm5_next-hf", "glm5-next"),
    case("glm_moe_dsa-hf", "glm-dsa"),
    case("hy_v3-hf", "hy_v3"),
    case("kimi_k25-hf", "deepseek2"),
    case("qwen2_moe-hf", "qwen2moe"),
    case("qwen3_vl_moe-hf", "qwen3vlmoe"),
    case("qwen4_exp-hf", "qwen4exp"),
    case("solar_open-hf", "glm4moe"),
];

/// A golden checkpoint: its config, and its tensors under canonical names.
pub(crate) struct Source {
    pub(crate) config: Value,
    pub(crate) tensors: Tensors,
}

fn logits(path: &Path, golden: &Golden) -> Vec<Vec<f32>> {
    let options = EngineOptions::default().activations(Activations::Full);
    let engine = Engine::open(path, &options).unwrap_or_else(|err| panic!("{err}"));
    let sequences = golden.sequences.iter();
    sequences.map(|sequence| logits_by_chunk(&engine, &sequence.tokens, usize::MAX)).collect()
}

#[track_caller]
fn check(case: Case) {
    let dir = tempfile::tempdir().unwrap();
    let (published, gguf) = (dir.path().join("published"), dir.path().join("m.gguf"));
    let folder = golden_dir().join(case.golden);
    let mut source = read(&folder);
    // Files have one table of n-grams.
    let of_tables = source.with_one_table();
    fs::create_dir(&published).unwrap();
    source.write(&folder, &published, of_tables);
    convert(&source, case.architecture).write(&gguf);
    let golden = Golden::read(&folder);
    let (want, got) = (logits(&published, &golden), logits(&gguf, &golden));
    for (i, (want, got)) in want.iter().zip(&got).enumerate() {
        let differences = want.iter().zip(got).map(|(a, b)| (a - b).abs());
        let worst = differences.fold(0.0, f32::max);
        assert!(worst <= MAX_DIFFERENCE, "{} as {}, {i}: {worst}", case.golden, case.architecture);
        assert_eq!(want.len(), got.len());
    }
}

#[test]
fn files_of_every_architecture_give_the_logits_of_the_checkpoint() {
    for case in CASES {
        check(*case);
    }
}
