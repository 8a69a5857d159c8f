//! What is checked of every golden case: a test for each check of each case, so that one that fails is named. Tests run
//! in the order of their names: those of a GPU, which take turns, are among others that run meanwhile.

use std::path::{Path, PathBuf};

use crate::common::{folders_of, golden_dir};

/// Calls a macro with all golden cases, each as the name of a module and a folder, behind what is in braces here.
macro_rules! with_golden_cases {
    ([$($macro:tt)*] { $($args:tt)* }) => {
        $($macro)*! {
            { $($args)* }
            awq_gemm "awq-gemm",
            bailing_moe_biases "bailing_moe-biases",
            bailing_moe_hf "bailing_moe-hf",
            bailing_moe_v2_hf "bailing_moe_v2-hf",
            bnb_nf4 "bnb-nf4",
            ct_floats "ct-floats",
            ct_integers "ct-integers",
            deepseek_v2_hf "deepseek_v2-hf",
            deepseek_v2_lite "deepseek_v2-lite",
            deepseek_v3_fp8 "deepseek_v3-fp8",
            deepseek_v3_hf "deepseek_v3-hf",
            deepseek_v3_mlx_joined "deepseek_v3-mlx-joined",
            deepseek_v3_mlx_q4 "deepseek_v3-mlx-q4",
            deepseek_v3_mtp "deepseek_v3-mtp",
            deepseek_v3_plain "deepseek_v3-plain",
            deepseek_v32_hf "deepseek_v32-hf",
            deepseek_v32_mlx_q4 "deepseek_v32-mlx-q4",
            deepseek_v4_fp4 "deepseek_v4-fp4",
            deepseek_v4_hf "deepseek_v4-hf",
            deepseek_v4_mtp "deepseek_v4-mtp",
            deepseek_v4_typed "deepseek_v4-typed",
            ernie4_5_moe_hf "ernie4_5_moe-hf",
            exaone_moe_hf "exaone_moe-hf",
            gemma4_ct_fused "gemma4-ct-fused",
            gemma4_fp8 "gemma4-fp8",
            gemma4_hf "gemma4-hf",
            gemma4_mlx_q4 "gemma4-mlx-q4",
            gemma4_nvfp4 "gemma4-nvfp4",
            gemma4_text "gemma4-text",
            gguf_deepseek2 "gguf-deepseek2",
            gguf_deepseek32 "gguf-deepseek32",
            gguf_gemma4 "gguf-gemma4",
            gguf_glm4moe "gguf-glm4moe",
            gguf_gpt_oss "gguf-gpt-oss",
            gguf_granitemoe "gguf-granitemoe",
            gguf_kimi_linear "gguf-kimi-linear",
            gguf_minimax_m2 "gguf-minimax-m2",
            gguf_mixtral "gguf-mixtral",
            gguf_nemotron_h "gguf-nemotron-h",
            gguf_olmoe "gguf-olmoe",
            gguf_qwen35moe "gguf-qwen35moe",
            gguf_qwen3moe "gguf-qwen3moe",
            gguf_qwen3next "gguf-qwen3next",
            glm4_moe_air "glm4_moe-air",
            glm4_moe_hf "glm4_moe-hf",
            glm4_moe_mlx_q4 "glm4_moe-mlx-q4",
            glm4_moe_mtp "glm4_moe-mtp",
            glm4_moe_lite_hf "glm4_moe_lite-hf",
            glm4_moe_lite_mlx_q4 "glm4_moe_lite-mlx-q4",
            glm4v_moe_hf "glm4v_moe-hf",
            glm5_next_hf "glm5_next-hf",
            glm5_next_shared "glm5_next-shared",
            glm_moe_dsa_hf "glm_moe_dsa-hf",
            glm_moe_dsa_mlx_q4 "glm_moe_dsa-mlx-q4",
            glm_moe_dsa_shared "glm_moe_dsa-shared",
            gpt_oss_hf "gpt_oss-hf",
            gpt_oss_mlx_mxfp4 "gpt_oss-mlx-mxfp4",
            gpt_oss_mlx_q4 "gpt_oss-mlx-q4",
            gpt_oss_mxfp4 "gpt_oss-mxfp4",
            gptq_desc_act "gptq-desc-act",
            gptq_v1 "gptq-v1",
            granitemoe_hf "granitemoe-hf",
            hf_bf16 "hf-bf16",
            hf_f16 "hf-f16",
            hf_text_per_expert "hf-text-per-expert",
            hy_v3_hf "hy_v3-hf",
            hy_v3_mtp "hy_v3-mtp",
            kimi_k25_hf "kimi_k25-hf",
            kimi_linear_hf "kimi_linear-hf",
            kimi_linear_mlx_q4 "kimi_linear-mlx-q4",
            kimi_linear_typed "kimi_linear-typed",
            minimax_m2_hf "minimax_m2-hf",
            minimax_m2_mlx_q4 "minimax_m2-mlx-q4",
            mixtral_hf "mixtral-hf",
            mixtral_mlx_q4 "mixtral-mlx-q4",
            mlx_q2 "mlx-q2",
            mlx_q3 "mlx-q3",
            mlx_q4 "mlx-q4",
            mlx_q4_g128 "mlx-q4-g128",
            mlx_q4_g32 "mlx-q4-g32",
            mlx_q5 "mlx-q5",
            mlx_q6 "mlx-q6",
            mlx_q8 "mlx-q8",
            modelopt_mixed "modelopt-mixed",
            nemotron_h_hf "nemotron_h-hf",
            nemotron_h_latent "nemotron_h-latent",
            nemotron_h_nvfp4 "nemotron_h-nvfp4",
            olmoe_hf "olmoe-hf",
            qwen2_moe_dense "qwen2_moe-dense",
            qwen2_moe_hf "qwen2_moe-hf",
            qwen3_5_moe_mtp "qwen3_5_moe-mtp",
            qwen3_moe_hf "qwen3_moe-hf",
            qwen3_moe_mlx_mxfp4 "qwen3_moe-mlx-mxfp4",
            qwen3_moe_mlx_mxfp8 "qwen3_moe-mlx-mxfp8",
            qwen3_moe_mlx_nvfp4 "qwen3_moe-mlx-nvfp4",
            qwen3_moe_mlx_q4 "qwen3_moe-mlx-q4",
            qwen3_next_hf "qwen3_next-hf",
            qwen3_next_mlx_q4 "qwen3_next-mlx-q4",
            qwen3_next_mtp "qwen3_next-mtp",
            qwen3_vl_moe_hf "qwen3_vl_moe-hf",
            qwen4_exp_fp8 "qwen4_exp-fp8",
            qwen4_exp_fp8_mtp "qwen4_exp-fp8-mtp",
            qwen4_exp_hf "qwen4_exp-hf",
            qwen4_exp_mtp "qwen4_exp-mtp",
            qwen4_exp_nvfp4 "qwen4_exp-nvfp4",
            solar_open_hf "solar_open-hf",
        }
    };
}

/// A module for each golden case, with a test for each check, which is called with the case's folder. One more module
/// is for the folders of `MOEFLUX_GOLDEN` that are none of these.
macro_rules! each_case {
    ($checks:tt $($module:ident $case:literal,)*) => {
        $(mod $module {
            each_check! { |check| super::run($case, check), $checks }
        })*

        mod other_cases {
            each_check! { |check| super::run_others(check), $checks }
        }
    };
}

macro_rules! each_check {
    (|$check:ident| $run:expr, { $($(#[$meta:meta])* $test:ident: $path:path,)* }) => {
        $(
            $(#[$meta])*
            #[test]
            fn $test() {
                let $check = $path;
                $run;
            }
        )*
    };
}

with_golden_cases! {
    [each_case] {
        logits: crate::golden::check,
        #[cfg(feature = "gpu")]
        on_a_gpu: crate::gpu::check,
        packed: crate::packing::check,
        sessions_together: crate::together::check,
        spelled: crate::spelled::check,
        streamed: crate::same_bits::check,
    }
}

macro_rules! case_names {
    ({} $($test:ident $case:literal,)*) => { &[$($case),*] };
}

pub(crate) use case_names;

const NAMES: &[&str] = with_golden_cases!([case_names] {});

/// Another folder of cases than the repository's.
fn other_dir() -> Option<PathBuf> {
    std::env::var_os("MOEFLUX_GOLDEN").map(PathBuf::from)
}

/// Checks the case of a name, which only another folder may lack.
fn run(name: &str, check: fn(&Path)) {
    let case = other_dir().unwrap_or_else(golden_dir).join(name);
    if case.join("expected.json").exists() || other_dir().is_none() {
        check(&case);
    }
}

#[expect(clippy::print_stdout, reason = "the last that was printed is the one that failed")]
fn run_others(check: fn(&Path)) {
    let cases = other_dir().map_or_else(Vec::new, |dir| folders_of(&dir));
    let is_other = |case: &&PathBuf| !NAMES.iter().any(|name| case.ends_with(name));
    for case in cases.iter().filter(is_other) {
        println!("{}", case.display());
        check(case);
    }
}

#[test]
fn no_golden_case_is_left_out() {
    let folders = folders_of(&golden_dir());
    let folders: Vec<_> = folders.iter().map(|case| case.file_name().unwrap()).collect();
    assert_eq!(folders, NAMES, "with_golden_cases lists the folders of tests/golden");
}
