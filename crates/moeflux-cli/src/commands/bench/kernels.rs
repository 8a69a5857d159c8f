//! `bench --kernels`: every kernel's share of its limit.

use std::fmt::Write as _;

use anyhow::Result;
use moeflux_engine::measure::{self, Kernel, KernelSteps, Machine, MemoryProbe, Quantise, Spread};
use moeflux_engine::{Engine, EngineOptions};
use serde_json::{Map, Value, json};

use super::json::put;
use super::prompt::Prompts;
use crate::args::BenchArgs;
use crate::commands::print;
use crate::error::UsageError;

/// Rows of a step that are measured in addition to those of the prompt.
const ROWS: [usize; 3] = [128, 16, 1];

pub(super) fn run(
    args: &BenchArgs,
    engine: &Engine,
    prompts: &Prompts,
    machine: &Machine,
    options: &EngineOptions,
) -> Result<()> {
    let steps = steps(args, engine)?;
    let kernels = measure::kernels(engine, prompts.get(0), &steps, machine)?.unwrap_or_default();
    let rows: Vec<usize> = steps.iter().map(|step| step.rows).collect();
    let quantise = measure::quantise(engine, &MemoryProbe::new(options)?, &rows);
    let text = if args.json {
        let all = object(machine, &kernels, &quantise);
        serde_json::to_string_pretty(&Value::Object(all))? + "\n"
    } else {
        table(machine, &steps, &kernels, &quantise)
    };
    print(&text)?;
    Ok(())
}

/// The most rows first; those that come last see a context as deep as all
/// before.
fn steps(args: &BenchArgs, engine: &Engine) -> Result<Vec<KernelSteps>> {
    let plan = engine.plan();
    let most = args.prompt_tokens.min(plan.chunk);
    let mut rows = vec![most];
    rows.extend(ROWS.into_iter().filter(|n| *n < most));
    let n_steps = |rows: usize| match rows {
        1 => args.gen_tokens,
        2..=32 => args.repeat.saturating_mul(2),
        _ => args.repeat,
    };
    let steps: Vec<KernelSteps> =
        rows.into_iter().map(|n| KernelSteps { rows: n, n_steps: n_steps(n) }).collect();
    let needed = steps.iter().fold(0usize, |sum, steps| {
        sum.saturating_add(steps.rows.saturating_mul(steps.n_steps.saturating_add(1)))
    });
    if needed > plan.ctx {
        let message = format!(
            "--kernels needs {needed} positions and {} are planned: lower --prompt-tokens or --repeat, or raise --ctx",
            plan.ctx
        );
        return Err(UsageError(message).into());
    }
    Ok(steps)
}

fn object(machine: &Machine, kernels: &[Kernel], quantise: &[Quantise]) -> Map<String, Value> {
    let kernel = |kernel: &Kernel| {
        let mut all = Map::new();
        all.insert("name".into(), json!(kernel.name));
        all.insert("shape".into(), json!(kernel.shape));
        all.insert("rows".into(), json!(kernel.rows));
        all.insert("calls".into(), json!(kernel.n_calls));
        put(&mut all, "us", Some(kernel.us));
        all.insert("gb_s".into(), json!(kernel.gb_s));
        all.insert("memory_share".into(), json!(kernel.memory_share));
        all.insert("gop_s".into(), json!(kernel.gop_s));
        all.insert("arithmetic_share".into(), json!(kernel.arithmetic_share));
        Value::Object(all)
    };
    let rounding = |quantise: &Quantise| json!({"rows": quantise.rows, "cols": quantise.cols, "gb_s": quantise.gb_s});
    let mut all = Map::new();
    all.insert("isa".into(), json!(machine.isa));
    all.insert("threads".into(), json!(machine.n_threads));
    all.insert("memory_gb_s".into(), json!(machine.memory_gb_s[1]));
    all.insert("integer_gop_s".into(), json!(machine.integer_gop_s[1]));
    all.insert("float_gop_s".into(), json!(machine.float_gop_s[1]));
    all.insert("kernels".into(), kernels.iter().map(kernel).collect());
    all.insert("quantise".into(), quantise.iter().map(rounding).collect());
    all
}

fn table(
    machine: &Machine,
    steps: &[KernelSteps],
    kernels: &[Kernel],
    quantise: &[Quantise],
) -> String {
    let mut text = format!(
        "{}, {} threads; limits: memory {:.1} GB/s, {:.0} GOP/s int8, {:.0} f32\n",
        machine.isa,
        machine.n_threads,
        machine.memory_gb_s[1],
        machine.integer_gop_s[1],
        machine.float_gop_s[1],
    );
    let widest =
        kernels.iter().map(|kernel| kernel.name.chars().count()).max().unwrap_or(0).clamp(10, 60);
    for KernelSteps { rows, .. } in steps {
        let title = if *rows == 1 { String::from("1 row") } else { format!("{rows} rows") };
        let (us, gb, gop) = ("us (min to max)", "GB/s  of limit", "GOP/s  of limit");
        writeln!(text, "\n{title:<widest$} {us:>32} {gb:>16} {gop:>17}  shape")
            .expect("a string takes any text");
        for kernel in kernels.iter().filter(|kernel| kernel.rows == *rows) {
            row(&mut text, widest, kernel);
        }
        for quantise in quantise.iter().filter(|one| one.rows == *rows) {
            writeln!(
                text,
                "{:<widest$} {:>32} {:>7.1}           {:>17}  {} columns, from a cache",
                "quantising of inputs", "", quantise.gb_s, "", quantise.cols
            )
            .expect("a string takes any text");
        }
    }
    text
}

fn row(text: &mut String, widest: usize, kernel: &Kernel) {
    let Spread { median, min, max } = kernel.us;
    let us = format!("{median:.1} ({min:.1} to {max:.1})");
    let rate = |rate: Option<f64>, share: Option<f64>| match (rate, share) {
        (Some(rate), Some(share)) => format!("{rate:.1}  {:5.1} %", 100.0 * share),
        _ => String::new(),
    };
    let memory = rate(kernel.gb_s, kernel.memory_share);
    let arithmetic = rate(kernel.gop_s, kernel.arithmetic_share);
    let name = &kernel.name;
    writeln!(text, "{name:<widest$} {us:>32} {memory:>16} {arithmetic:>17}  {}", kernel.shape)
        .expect("a string takes any text");
}
