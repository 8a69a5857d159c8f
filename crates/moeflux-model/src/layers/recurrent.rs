//! How checkpoints store the short convolutions and the rates of decay of recurrent layers.

use crate::layers::builder::Builder;
use crate::load::LoadError;

/// The convolution of the layer called `name`.
pub(super) fn conv_name(name: &str) -> String {
    format!("{name}.conv1d.weight")
}

/// PyTorch's shape, MLX's, that of the original system's converter, and of some GGUF files.
pub(super) fn conv_shapes(channels: usize, kernel: usize) -> [Vec<usize>; 4] {
    let flat = vec![channels, kernel];
    [vec![channels, 1, kernel], vec![channels, kernel, 1], flat, vec![1, channels, 1, kernel]]
}

/// `(channels, kernel)` as `(kernel, channels)`.
pub(super) fn by_taps(weight: &[f32], channels: usize, kernel: usize) -> Vec<f32> {
    (0..kernel * channels).map(|i| weight[i % channels * kernel + i / channels]).collect()
}

/// The logarithms of the rates of decay, of some models in four dimensions. GGUF files hold the rates
/// themselves, below zero, some as a matrix of one column.
pub(super) fn a_log(
    name: &str,
    n: usize,
    builder: &mut Builder<'_, '_>,
) -> Result<Vec<f32>, LoadError> {
    let (logarithms, rates) = (format!("{name}.A_log"), format!("{name}.A"));
    let weights = &mut *builder.build.weights;
    let whole = vec![1, 1, n, 1];
    if weights.holds(&logarithms) || !weights.holds(&rates) {
        return Ok(weights.vector(&logarithms, &[vec![n], whole])?.values);
    }
    let mut values = weights.vector(&rates, &[vec![n], vec![n, 1], whole])?.values;
    if let Some(rate) = values.iter().find(|rate| **rate > 0.0) {
        return Err(weights.refuse(&rates, &format!("{rate} is not a rate of decay, below 0")));
    }
    for value in &mut values {
        *value = (-*value).ln();
    }
    Ok(values)
}
