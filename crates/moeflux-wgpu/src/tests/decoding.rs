//! What a decoded token saves: logits that stay on the device.

use std::sync::Arc;

use moeflux_backend::{Backend, Cols, HostMatrix, Inputs, Weight};
use moeflux_core::quant::{Float, MatrixFormat};
use moeflux_core::{HostBuf, TokenId};

use super::context;
use crate::Wgpu;

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
        inputs: Inputs::Full,
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

#[test]
fn the_device_finds_the_first_of_the_highest_logits_wherever_it_stands() {
    let Some(context) = context() else { return };
    let mut b = Wgpu::new(Arc::clone(&context), None);
    let x = row(&mut b);
    let n = 5003;
    for at in [0, 1, 15, 16, 511, 512, 2048, n - 1] {
        let mut logits: Vec<f32> = (0..n).map(|i| -1.0 - (i as f32 * 0.37).sin().abs()).collect();
        logits[at] = -0.5;
        logits[n - 1] = -0.5;
        let head = head(&mut b, &logits);
        let token = b.likeliest(0, x, head).expect("the device works");
        assert_eq!(token, Some(TokenId(u32::try_from(at).unwrap())));
    }
    let lowest = [f32::MIN, f32::NEG_INFINITY, f32::MIN];
    let head = head(&mut b, &lowest);
    assert_eq!(b.likeliest(0, x, head).expect("the device works"), Some(TokenId(0)));
}

#[test]
fn logits_of_which_none_may_be_chosen_are_left_to_who_reads_them() {
    let Some(context) = context() else { return };
    let mut b = Wgpu::new(Arc::clone(&context), None);
    let x = row(&mut b);
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        for at in [0, 700, 999] {
            let mut logits = vec![1.0; 1000];
            logits[at] = bad;
            let head = head(&mut b, &logits);
            assert_eq!(b.likeliest(0, x, head).expect("the device works"), None, "{bad} at {at}");
        }
    }
    let head = head(&mut b, &[f32::NEG_INFINITY; 1000]);
    assert_eq!(b.likeliest(0, x, head).expect("the device works"), None);
}
