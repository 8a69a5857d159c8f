//! Projections: one input, several matrices.

use crate::ops::matmul::kernel::BothJobs;

use crate::ops::matmul::kernel::Kernel;
use crate::ops::matmul::kernel::TakenBy;
use crate::ops::matmul::products::Products;
use crate::ops::matmul::products::run;
use moeflux_backend::{ActivationPrecision, Cols, Projection};

use crate::ops::matmul::jobs::{FEW_ROWS, Job, holds_rows, jobs_of};
use crate::ops::matmul::layouts::{ProductKind, layout, measured_as};
use crate::ops::matmul::source::Source;
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::{ActivationQuant, activation_quant};

pub(crate) fn project(b: &mut Wgpu, rows: usize, x: Cols, outputs: &[Projection]) {
    b.encoder.begin();
    let source = Source::of(b, x, rows);
    // Same format, same inputs and same output buffer: one set of products.
    let mut rest: Vec<&Projection> = outputs.iter().collect();
    while let Some(first) = rest.first() {
        let of = |b: &Wgpu, output: &Projection| {
            let matrix = b.matrix(output.weight);
            (matrix.decoder, matrix.inputs, output.out.buf)
        };
        let common = of(b, first);
        let (now, later) = rest.iter().partition(|output| of(b, output) == common);
        rest = later;
        let (decoder, inputs, buf) = common;
        let out = b.written(buf);
        let lists = [(0..rows).map(|row| (row, row * out.width)).collect()];
        let mut jobs = Vec::new();
        let now: Vec<&Projection> = now;
        let add = |b: &Wgpu, jobs: &mut Vec<Job>, output: &Projection| {
            let matrix = b.matrix(output.weight);
            assert_eq!(
                (matrix.rows, matrix.cols),
                (output.out.len, x.len),
                "shape of a projection"
            );
            assert!(
                output.out.start + output.out.len <= out.width,
                "columns are inside their buffer"
            );
            jobs.extend(jobs_of(matrix, 0, output.out.start));
        };
        now.into_iter().for_each(|output| add(b, &mut jobs, output));
        let quant = activation_quant(decoder, inputs);
        let y = out.mem.clone();
        let (chosen, most_few) = (None, FEW_ROWS);
        let products = Products { decoder, quant, lists: &lists, jobs, y, chosen, most_few };
        if ActivationQuant::of_kernel(quant, false).is_none() || !holds_rows(rows) || !b.fuses {
            run(b, &source, products);
            continue;
        }
        // Those of inputs as they are go along.
        let (plain, later) = rest
            .iter()
            .partition(|output| of(b, output) == (decoder, ActivationPrecision::F32, buf));
        rest = later;
        let (mut jobs, plain): (Vec<Job>, Vec<&Projection>) = (Vec::new(), plain);
        plain.into_iter().for_each(|output| add(b, &mut jobs, output));
        run_both(b, &source, products, jobs);
    }
}

/// Computes products with few rows of activations, and `plain` ones in the same
/// format whose inputs are as they are.
fn run_both(b: &mut Wgpu, source: &Source, products: Products<'_>, mut plain: Vec<Job>) {
    let Products { decoder, quant, lists, mut jobs, y, chosen, most_few } = products;
    let id = jobs[0].mem.id;
    let is_together = jobs.iter().chain(&plain).all(|job| job.mem.id == id);
    if is_together && !plain.is_empty() {
        let kind = ProductKind { decoder, quant, cols: source.cols };
        let layout = layout(b, kind, measured_as(&jobs), source.n_rows);
        let kernel = Kernel { decoder, quant, cols: source.cols, lists, y: &y, chosen };
        let input = kernel.take(b, source, TakenBy::MATVEC, layout);
        let as_is = Kernel { quant: None, ..kernel }.take(b, source, TakenBy::MATVEC, layout);
        let both = BothJobs {
            quantized: std::mem::take(&mut jobs),
            quantized_input: &input,
            plain: std::mem::take(&mut plain),
            plain_input: &as_is,
        };
        kernel.matvec_both(b, both, layout);
    }
    let rounded = Products { decoder, quant, lists, jobs, y, chosen, most_few };
    let y = rounded.y.clone();
    run(b, source, rounded);
    let quant = None;
    run(b, source, Products { decoder, quant, lists, jobs: plain, y, chosen, most_few });
}
