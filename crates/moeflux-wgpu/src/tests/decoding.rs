//! What a decoded token saves: logits that stay on the device, and commands that
//! were encoded before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moeflux_backend::{
    ActivationPrecision, Cols, HostMatrix, LogitsExtras, Ops, TokenLogit, Weight,
};
use moeflux_core::quant::{Float, MatrixFormat};
use moeflux_core::{HostBuf, TokenId};

use super::context;
use crate::backend::new_backend;
use crate::state::gpu::Wgpu;

const COLS: usize = 32;

/// A head whose logits of [`row`] are these.
fn head(b: &mut Wgpu, logits: &[f32]) -> Weight {
    let rows = logits.len();
    let mut weight = HostBuf::zeroed(4 * rows * COLS);
    for (bytes, logit) in weight.chunks_exact_mut(4 * COLS).zip(logits) {
        bytes[..4].copy_from_slice(&logit.to_le_bytes());
    }
    let format = MatrixFormat::Dense(Float::F32);
    let (scales, biases) = (None, None);
    b.load_matrix(HostMatrix {
        rows,
        cols: COLS,
        format,
        inputs: ActivationPrecision::F32,
        weight,
        scales,
        biases,
    })
}

/// The first column is one, all others zero.
fn row(b: &mut Wgpu) -> Cols {
    let buf = b.alloc(1, COLS);
    let mut values = [0.0; COLS];
    values[0] = 1.0;
    b.write(buf, &values);
    Cols { buf, start: 0, len: COLS }
}

/// The highest logits of the row, as the device finds them.
fn highest(b: &mut Wgpu, x: Cols, head: Weight, n: usize) -> Option<Vec<TokenLogit>> {
    let top = b.top_logits(&[0], n, x, head, LogitsExtras::default()).expect("the device works");
    top.map(|mut rows| rows.pop().expect("one row"))
}

/// The highest logits, out of all of them in order.
fn sorted(logits: &[f32], n: usize) -> Vec<TokenLogit> {
    let all = (0..).zip(logits).map(|(id, &logit)| TokenLogit { token: TokenId(id), logit });
    let mut all: Vec<TokenLogit> = all.collect();
    all.sort_by(|a, b| b.logit.total_cmp(&a.logit));
    all.truncate(n);
    all
}

#[test]
fn the_device_finds_the_highest_logits_wherever_they_stand() {
    let Some(context) = context() else { return };
    let mut b = new_backend(Arc::clone(&context), None);
    let x = row(&mut b);
    let n = 5003;
    for at in [0, 1, 15, 16, 511, 512, 2048, n - 1] {
        let mut logits: Vec<f32> = (0..n).map(|i| -1.0 - (i as f32 * 0.37).sin().abs()).collect();
        logits[at] = -0.5;
        logits[n - 1] = -0.5;
        let head = head(&mut b, &logits);
        for n in [1, 7, 64] {
            assert_eq!(highest(&mut b, x, head, n), Some(sorted(&logits, n)), "{n} at {at}");
        }
    }
    let lowest = [f32::MIN, f32::NEG_INFINITY, f32::MIN];
    let head = head(&mut b, &lowest);
    for n in [1, 2, 3] {
        let want = sorted(&lowest, n.min(2));
        assert_eq!(highest(&mut b, x, head, n), Some(want));
    }
}

#[test]
fn logits_of_which_none_may_be_chosen_are_left_to_who_reads_them() {
    let Some(context) = context() else { return };
    let mut b = new_backend(Arc::clone(&context), None);
    let x = row(&mut b);
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        for at in [0, 700, 999] {
            let mut logits = vec![1.0; 1000];
            logits[at] = bad;
            let head = head(&mut b, &logits);
            for n in [1, 2, 64] {
                assert_eq!(highest(&mut b, x, head, n), None, "{bad} at {at}");
            }
        }
    }
    let head = head(&mut b, &[f32::NEG_INFINITY; 1000]);
    assert_eq!(highest(&mut b, x, head, 1), None);
    assert_eq!(highest(&mut b, x, head, 2), None);
}

fn n_ready(b: &Wgpu) -> usize {
    b.encoder.submitter.n_ready()
}

#[test]
fn commands_that_come_again_are_encoded_before_and_do_the_same() {
    let Some(context) = context() else { return };
    let mut b = new_backend(Arc::clone(&context), None);
    // Each op is a kernel.
    b.fuses = false;
    let [acc, other, x] = [0; 3].map(|_| Cols { buf: b.alloc(1, 100), start: 0, len: 100 });
    for (cols, value) in [(acc, 0.0), (other, 0.0), (x, 1.0)] {
        b.write(cols.buf, &[value; 100]);
    }
    let mut total = 0.0;
    let mut most_ready = 0;
    for _ in 0..6 {
        // Several batches.
        for _ in 0..50 {
            b.add(1, acc, x);
            b.add(1, other, acc);
            total += 1.0;
        }
        assert_eq!(b.read(acc.buf, 1).expect("the device works"), [total; 100]);
        let until = Instant::now() + Duration::from_secs(20);
        while n_ready(&b) == 0 && most_ready == 0 && total > 100.0 && Instant::now() < until {
            std::thread::yield_now();
        }
        most_ready = most_ready.max(n_ready(&b));
    }
    let has_threads = std::thread::available_parallelism().is_ok_and(|n_cores| n_cores.get() > 1);
    assert_eq!(most_ready > 0, has_threads);
    b.encoder.forget(&b.bufs[0].mem.clone());
    assert_eq!(n_ready(&b), 0);
}
