//! Memory that runs out.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moeflux_backend::{
    ActivationPrecision, DeviceError, ExpertCall, ExpertFunction, ExpertRow, Experts, Ops,
};
use moeflux_core::quant::{Float, MatrixFormat};
use moeflux_core::{
    Expert, ExpertId, ExpertKey, ExpertLayout, ExpertMemory, GateUp, HostBuf, LayerIdx,
    MatrixLayout, PartSpan,
};

use super::{context, doubled};
use crate::Context;
use crate::backend::new_backend;
use crate::device::adapter::enumerate;
use crate::state::gpu::Wgpu;

const WIDTH: usize = 32;

/// An expert whose matrices are square, of floats, and alike.
fn expert(id: u16) -> Arc<Expert> {
    let values = (0..WIDTH * WIDTH).map(|i| ((i + usize::from(id)) as f32 * 0.37).sin());
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let mut buf = HostBuf::zeroed(bytes.len());
    buf[..bytes.len()].copy_from_slice(&bytes);
    let nothing = PartSpan { extent: 0, offset: 0, len: 0 };
    let matrix = MatrixLayout {
        rows: WIDTH,
        cols: WIDTH,
        format: MatrixFormat::Dense(Float::F32),
        weight: PartSpan { len: bytes.len(), ..nothing },
        scales: nothing,
        biases: nothing,
    };
    let gate_up = GateUp::Split { gate: matrix, up: matrix };
    let layout = ExpertLayout { extents: vec![bytes.len()], gate_up, down: matrix };
    Arc::new(Expert {
        key: ExpertKey { layer: LayerIdx(0), expert: ExpertId(id) },
        layout: Arc::new(layout),
        memory: ExpertMemory::Owned { buf, starts: vec![0] },
    })
}

/// What one row gets from an expert.
struct Bench {
    backend: Wgpu,
    x: moeflux_backend::Buf,
    out: moeflux_backend::Buf,
}

impl Bench {
    fn new(context: &Arc<Context>) -> Bench {
        let mut backend = new_backend(Arc::clone(context), None);
        let (x, out) = (backend.alloc(1, WIDTH), backend.alloc(1, WIDTH));
        backend.write(x, &(0..WIDTH).map(|i| (i as f32).cos()).collect::<Vec<_>>());
        Bench { backend, x, out }
    }

    fn run(&mut self, id: u16) -> Result<Vec<u32>, DeviceError> {
        let x = moeflux_backend::Cols { buf: self.x, start: 0, len: WIDTH };
        let rows = vec![ExpertRow { row: 0, slot: 0 }];
        let calls = [ExpertCall { expert: expert(id), rows }];
        let (inputs, function) = (ActivationPrecision::F32, ExpertFunction::SWIGLU);
        let op = Experts { out: self.out, x, rows: 1, inputs, function, calls: &calls };
        self.backend.experts(op);
        let values = self.backend.read(self.out, 1)?;
        Ok(values.into_iter().map(f32::to_bits).collect())
    }
}

#[track_caller]
pub(super) fn check_is_out<T: std::fmt::Debug>(outcome: Result<T, DeviceError>) {
    let err = outcome.unwrap_err();
    assert!(matches!(err, DeviceError::OutOfMemory { .. }), "{err}");
}

#[test]
fn who_has_no_memory_for_experts_says_so_alone_and_goes_on_when_there_is_some() {
    if context().is_none() {
        return;
    }
    // One that no other test shares.
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    let [mut poor, mut rich] = [Bench::new(&context), Bench::new(&context)];
    let want = rich.run(0).unwrap();
    let other = rich.run(1).unwrap();
    assert_ne!(want, other);
    assert_eq!(poor.backend.read(poor.out, 1).unwrap(), [0.0; WIDTH]);
    context.refused.store(0, Ordering::Relaxed);
    for _ in 0..2 {
        check_is_out(poor.run(0));
        assert_eq!(rich.run(0).unwrap(), want);
    }
    context.refused.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(poor.run(0).unwrap(), want);
    assert_eq!(poor.run(1).unwrap(), other);
}

#[test]
fn who_has_no_memory_for_what_stays_never_works_and_harms_nobody() {
    if context().is_none() {
        return;
    }
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    let mut rich = new_backend(Arc::clone(&context), None);
    let mut poor = new_backend(Arc::clone(&context), None);
    context.refused.store(0, Ordering::Relaxed);
    poor.load_vector(&[1.0; 64]);
    context.refused.store(u64::MAX, Ordering::Relaxed);
    check_is_out(poor.encoder.buffers.check());
    for _ in 0..2 {
        check_is_out(doubled(&mut poor));
        assert_eq!(doubled(&mut rich).unwrap(), [2.0, 4.0, 6.0]);
    }
    // Not even its first buffers.
    context.refused.store(0, Ordering::Relaxed);
    let mut poorest = new_backend(Arc::clone(&context), None);
    context.refused.store(u64::MAX, Ordering::Relaxed);
    check_is_out(doubled(&mut poorest));
    assert_eq!(doubled(&mut rich).unwrap(), [2.0, 4.0, 6.0]);
}
