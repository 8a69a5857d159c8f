//! The rate at which a decode step reads weights: products of one row with a matrix of the model's
//! own format, on all threads.

use std::time::{Duration, Instant};

use moeflux_backend::{ActivationPrecision, Cols, HostMatrix, Projection};
use moeflux_core::HostBuf;
use moeflux_core::quant::MatrixFormat;

use crate::device::{self, Device, Opening};
use crate::inspect::Inspection;
use crate::memory_probe::last_cache_bytes;
use crate::options::{EngineOptions, precision, threads};

/// Bytes of the matrix; more than caches hold.
const MATRIX_BYTES: usize = 96 << 20;

/// How long products are measured.
const TIME: Duration = Duration::from_millis(100);

/// GB/s of such products, with a matrix of no more than `most_bytes`; `None` where that stays in
/// caches, or the model has no experts.
pub(crate) fn product_gb_s(
    facts: &Inspection,
    options: &EngineOptions,
    most_bytes: usize,
) -> Option<f64> {
    let layer = facts.bank.layers.iter().flatten().next()?;
    let matrix = *layer.layout.matrices().next()?;
    let bytes = MATRIX_BYTES.min(most_bytes);
    if bytes < last_cache_bytes().unwrap_or(0).min(MATRIX_BYTES / 2) {
        return None;
    }
    let rows = bytes / matrix.format.matrix_bytes(1, matrix.cols).max(1);
    let mut backend = device::open(&Opening {
        device: Device::Cpu,
        n_threads: threads(options).ok()?,
        isa: options.compute.isa.as_deref(),
        expert_bytes: None,
        record_bytes: 0,
        n_experts: 0,
    })
    .ok()?;
    let inputs = precision(options.compute.activations);
    let weight = backend.load_matrix(host_matrix(matrix.format, rows, matrix.cols, inputs));
    let x = backend.alloc(1, matrix.cols);
    let out = backend.alloc(1, rows);
    let all = |buf, len| Cols { buf, start: 0, len };
    backend.write(x, &vec![0.5; matrix.cols]);
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || start.elapsed() < TIME {
        let begin = Instant::now();
        let projection = Projection { weight, out: all(out, rows) };
        backend.project(1, all(x, matrix.cols), &[projection]);
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    let n_bytes = matrix.format.matrix_bytes(rows, matrix.cols) as f64;
    Some(n_bytes / times[times.len() / 2].as_nanos().max(1) as f64)
}

/// A matrix whose values are harmless in every format: neither tiny nor huge.
fn host_matrix(
    format: MatrixFormat,
    rows: usize,
    cols: usize,
    inputs: ActivationPrecision,
) -> HostMatrix {
    const BYTE: u8 = 0x3c;
    let filled = |len: usize| {
        let mut buf = HostBuf::zeroed(len);
        buf.fill(BYTE);
        buf
    };
    let params = |len: usize| (len > 0).then(|| filled(len));
    HostMatrix {
        rows,
        cols,
        format,
        inputs,
        weight: filled(rows * format.row_bytes(cols)),
        scales: params(format.scale_bytes(rows, cols)),
        biases: params(format.bias_bytes(rows, cols)),
    }
}
