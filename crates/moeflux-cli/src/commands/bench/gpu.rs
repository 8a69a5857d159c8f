//! What `bench` says of a GPU.

use std::fmt::Write as _;

use anyhow::Result;
use moeflux_engine::measure::{self, Machine};
use moeflux_engine::{DeviceTuning, Engine, EngineOptions, GpuLimits, GpuProduct};
use serde_json::{Value, json};

use crate::args::BenchArgs;
use crate::commands::print;

/// Rows of activations that are measured in addition to those of a prompt's chunk.
const ROWS: [usize; 3] = [1, 4, 8];

/// `bench --kernels` on a GPU: every product of the model against how fast the
/// GPU copies.
pub(super) fn kernels(
    args: &BenchArgs,
    engine: &Engine,
    machine: Machine,
    options: &EngineOptions,
) -> Result<()> {
    let chunk = args.prompt_tokens.min(engine.plan().chunk);
    let mut rows = ROWS.to_vec();
    rows.extend((!rows.contains(&chunk)).then_some(chunk));
    let all = measure::gpu_kernels(engine, options.compute.device, &rows)?;
    let machine = machine.or_awake(options);
    let Some(limits) = &machine.gpu else { return Ok(()) };
    let text = if args.json {
        let kernels: Vec<Value> = all.iter().map(|product| kernel(product, limits)).collect();
        let object = json!({
            "device": limits_to_json(limits),
            "tuning": engine.tuning().map(tuning_to_json),
            "kernels": kernels,
        });
        serde_json::to_string_pretty(&object)? + "\n"
    } else {
        table(&rows, &all, limits, engine.tuning())
    };
    print(&text)?;
    Ok(())
}

fn kernel(product: &GpuProduct, limits: &GpuLimits) -> Value {
    json!({
        "rows": product.rows,
        "matrices": product.n,
        "outputs": product.shape[0],
        "inputs": product.shape[1],
        "format": product.format_name(),
        "layers": product.n_layers,
        "routed": product.is_routed,
        "us": product.us,
        "gb_s": product.gb_s,
        "copy_share": product.gb_s / limits.copy_gb_s,
        "tflop_s": product.tflop_s,
        "layout": product.layout,
    })
}

fn table(
    rows: &[usize],
    all: &[GpuProduct],
    limits: &GpuLimits,
    tuning: Option<&DeviceTuning>,
) -> String {
    let mut text = String::new();
    for (name, value) in lines(limits, tuning) {
        writeln!(text, "{name:<17} {value}").expect("a string takes any text");
    }
    for n in rows {
        let title = if *n == 1 { String::from("1 row") } else { format!("{n} rows") };
        writeln!(
            text,
            "\n{title:<28} {:>9} {:>7} {:>8} {:>8}  format; layers; layout",
            "us", "GB/s", "of copy", "TFLOP/s"
        )
        .expect("a string takes any text");
        for product in all.iter().filter(|product| product.rows == *n) {
            row(&mut text, product, limits);
        }
    }
    text
}

fn row(text: &mut String, product: &GpuProduct, limits: &GpuLimits) {
    let what = if product.is_routed { ", experts" } else { "" };
    let shape = format!("{} x {} x {}{what}", product.n, product.shape[0], product.shape[1]);
    let share = 100.0 * product.gb_s / limits.copy_gb_s;
    writeln!(
        text,
        "{shape:<28} {:>9.1} {:>7.0} {share:>6.1} % {:>8.2}  {}; {}; {}",
        product.us,
        product.gb_s,
        product.tflop_s,
        product.format_name(),
        product.n_layers,
        product.layout.as_deref().unwrap_or("tiles"),
    )
    .expect("a string takes any text");
}

/// The limits of a GPU, line by line.
pub(super) fn lines(
    limits: &GpuLimits,
    tuning: Option<&DeviceTuning>,
) -> Vec<(&'static str, String)> {
    let [rows, outputs, inputs] = limits.product_shape;
    let [one, several] = limits.upload_gb_s;
    let [two_digits, one_digit] = limits.product_tflop_s;
    let units = if limits.has_matrix_units { "cooperative matrices" } else { "plain kernels" };
    let mut all = vec![
        ("gpu", limits.name.clone()),
        (
            "device memory",
            format!(
                "{:.1} GB/s copied, {:.1} GB/s read, both by kernels",
                limits.copy_gb_s, limits.read_gb_s
            ),
        ),
        (
            "upload",
            format!("{several:.1} GB/s with {} threads, {one:.1} with one", limits.upload_threads),
        ),
        (
            "products",
            format!(
                "{two_digits:.3} TFLOP/s with 4-bit weights ({one_digit:.3} with 8-bit inputs), \
                 {rows} x {outputs} x {inputs}, {units}"
            ),
        ),
    ];
    if let Some(DeviceTuning { n_known, n_measured, n_left, time, .. }) = tuning {
        let seconds = time.as_secs_f64();
        let value = format!(
            "{n_known} known, {n_measured} measured now in {seconds:.2} s, {n_left} left for later runs"
        );
        all.push(("layouts", value));
    }
    all
}

pub(super) fn limits_to_json(limits: &GpuLimits) -> Value {
    json!({
        "name": limits.name,
        "copy_gb_s": limits.copy_gb_s,
        "read_gb_s": limits.read_gb_s,
        "upload_gb_s": limits.upload_gb_s[1],
        "upload_gb_s_one_thread": limits.upload_gb_s[0],
        "upload_threads": limits.upload_threads,
        "product_tflop_s": limits.product_tflop_s[0],
        "product_tflop_s_int8": limits.product_tflop_s[1],
        "product_shape": limits.product_shape,
        "matrix_units": limits.has_matrix_units,
    })
}

pub(super) fn tuning_to_json(tuning: &DeviceTuning) -> Value {
    json!({
        "known": tuning.n_known,
        "measured": tuning.n_measured,
        "left": tuning.n_left,
        "seconds": tuning.time.as_secs_f64(),
    })
}
