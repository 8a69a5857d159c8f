//! Whether a device computes what the processor does: a few ops of each kind that a model spends its
//! time in, for those who choose a device without being asked to.

pub(crate) mod coop_matrix;

use std::sync::Arc;

use moeflux_backend::cpu::{Cpu, Isa};
use moeflux_backend::{
    ActivationPrecision, Backend, Cols, ExpertCall, ExpertFunction, ExpertRow, Experts, RmsNorm,
};
use moeflux_core::quant::{Float, MatrixFormat, MicroScaled};
use moeflux_core::{
    Expert, ExpertId, ExpertKey, ExpertLayout, ExpertMemory, GateUp, HostBuf, LayerIdx,
    MatrixLayout, PartSpan, SplitMix64,
};

use crate::device::context::Context;
use crate::self_test::coop_matrix::{
    TestMatrix, affine, are_close, attention, best_tiles, product,
};
use crate::state::gpu::Wgpu;

/// Share of the largest result by which results may differ. Inputs rounded to sixteen bits, sums in
/// another order and halves move results by less than 1e-4 of it; a kernel that a driver compiles
/// wrongly, or memory that is not what was written, by far more.
const TOLERANCE: f32 = 1e-3;

/// Rows of a decode step, and of a prompt: other kernels take these.
const ROWS: [usize; 2] = [1, 150];

const MATRICES: [TestMatrix; 4] = [
    TestMatrix { format: affine(4, 64), cols: 512 },
    TestMatrix { format: affine(8, 64), cols: 512 },
    TestMatrix { format: MatrixFormat::Micro(MicroScaled::MXFP4), cols: 512 },
    TestMatrix { format: MatrixFormat::Dense(Float::BF16), cols: 512 },
];

/// Why a device is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelfTestError {
    /// It stopped answering.
    #[error("the device failed in its self-test")]
    Failed,
    /// It computes something else.
    #[error("its driver computes other numbers than the processor ({what})")]
    Differs {
        /// What.
        what: String,
    },
}

/// Compares products of several formats, attention, a norm and experts with the processor's.
///
/// # Errors
/// Where the device fails, or with the first op whose results differ.
pub fn self_test(context: &Arc<Context>) -> Result<(), SelfTestError> {
    let inputs = ActivationPrecision::Int16;
    for (matrix, rows) in MATRICES.iter().flat_map(|matrix| ROWS.map(|rows| (*matrix, rows))) {
        let name = format!("{rows} rows times a matrix in {:?}", matrix.format);
        compare(context, &name, &|b| product(b, matrix, inputs, rows))?;
    }
    compare(context, "attention", &attention)?;
    for rows in ROWS {
        compare(context, &format!("a norm of {rows} rows"), &|b| norm(b, rows))?;
        compare(context, &format!("experts of {rows} rows"), &|b| experts(b, rows))?;
    }
    Ok(())
}

fn compare(
    context: &Arc<Context>,
    name: &str,
    run: &dyn Fn(&mut dyn Backend) -> Option<Vec<f32>>,
) -> Result<(), SelfTestError> {
    let want = run(&mut Cpu::new(1, Isa::detect())).ok_or(SelfTestError::Failed)?;
    let got = run(&mut Wgpu::with_tiles(Arc::clone(context), None, best_tiles(context)))
        .ok_or(SelfTestError::Failed)?;
    if got.len() == want.len() && are_close(&got, &want, TOLERANCE) {
        Ok(())
    } else {
        Err(SelfTestError::Differs { what: name.to_owned() })
    }
}

/// Numbers between -1 and 1, as many as `rows` rows of `width`.
fn filled(b: &mut dyn Backend, rows: usize, width: usize) -> Cols {
    let buf = b.alloc(rows, width);
    let values: Vec<f32> = (0..rows * width).map(|i| (i as f32 * 0.37).sin()).collect();
    b.write(buf, &values);
    Cols { buf, start: 0, len: width }
}

fn norm(b: &mut dyn Backend, rows: usize) -> Option<Vec<f32>> {
    const WIDTH: usize = 640;
    let x = filled(b, rows, WIDTH);
    let out = filled(b, rows, WIDTH);
    let weights: Vec<f32> = (0..WIDTH).map(|i| 1.0 + (i as f32 * 0.11).sin()).collect();
    let weight = b.load_vector(&weights);
    b.rms_norm(rows, RmsNorm { out: out.heads(1), x: x.heads(1), weight, eps: 1e-6 });
    b.read(out.buf, rows).ok()
}

const HIDDEN: usize = 256;
const INTERMEDIATE: usize = 192;
const TOP_K: usize = 2;

/// Two experts, of which each row gets both.
fn experts(b: &mut dyn Backend, rows: usize) -> Option<Vec<f32>> {
    let x = filled(b, rows, HIDDEN);
    let out = b.alloc(rows * TOP_K, HIDDEN);
    let calls: Vec<ExpertCall> = (0..TOP_K)
        .map(|rank| ExpertCall {
            expert: expert(rank as u16),
            rows: (0..rows as u32)
                .map(|row| ExpertRow { row, slot: row * TOP_K as u32 + rank as u32 })
                .collect(),
        })
        .collect();
    b.experts(Experts {
        out,
        x,
        rows,
        inputs: ActivationPrecision::Int16,
        function: ExpertFunction::SWIGLU,
        calls: &calls,
    });
    b.read(out, rows * TOP_K).ok()
}

/// An expert of random weights near zero, in 4 bits.
fn expert(id: u16) -> Arc<Expert> {
    let format = affine(4, 64);
    let mut random = SplitMix64::new(1 + u64::from(id));
    let mut bytes: Vec<u8> = Vec::new();
    // 0x3c00 begins the numbers near 0.01 in BF16, 0xbd80 those below -0.06.
    let mut part = |len: usize, word_of: fn(u16) -> u16| {
        let span = PartSpan { extent: 0, offset: bytes.len(), len };
        let words = (0..len / 2).map(|_| word_of((random.next_u64() >> 48) as u16));
        bytes.extend(words.flat_map(u16::to_le_bytes));
        span
    };
    let mut layout = |rows: usize, cols: usize| {
        let weight = part(rows * format.row_bytes(cols), |bits| bits);
        let scales = part(format.scale_bytes(rows, cols), |bits| 0x3c00 | bits & 0xff);
        let biases = part(format.bias_bytes(rows, cols), |bits| 0xbd80 | bits & 0x7f);
        MatrixLayout { rows, cols, format, weight, scales, biases }
    };
    let gate = layout(INTERMEDIATE, HIDDEN);
    let gate_up = GateUp::Split { gate, up: layout(INTERMEDIATE, HIDDEN) };
    let down = layout(HIDDEN, INTERMEDIATE);
    let mut buf = HostBuf::zeroed(bytes.len());
    buf[..bytes.len()].copy_from_slice(&bytes);
    Arc::new(Expert {
        key: ExpertKey { layer: LayerIdx(0), expert: ExpertId(id) },
        layout: Arc::new(ExpertLayout { extents: vec![bytes.len()], gate_up, down }),
        memory: ExpertMemory::Owned { buf, starts: vec![0] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::context;

    #[test]
    fn a_working_device_passes_and_a_wrong_one_is_named() {
        let Some(context) = context() else { return };
        assert_eq!(self_test(&context), Ok(()));
        let wrong = compare(&context, "a product", &|b| {
            let is_cpu = b.residency().is_none();
            let mut values = product(b, MATRICES[0], ActivationPrecision::Int16, 1)?;
            if !is_cpu {
                values[70] *= 1.1;
            }
            Some(values)
        });
        assert_eq!(wrong, Err(SelfTestError::Differs { what: String::from("a product") }));
    }
}
