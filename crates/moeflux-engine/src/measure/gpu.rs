//! The products of a model on a GPU, one by one.

use crate::device::{Device, GpuProduct, gpu_products, products};
use crate::engine::Engine;
use crate::error::EngineError;

/// Times every product of a token on a GPU, on weights that mean nothing: those
/// of routed experts with one row, all others with each of some numbers of
/// rows. Nothing for the processor, and where the engine was not opened with
/// [`EngineOptions::timed`](crate::EngineOptions::timed).
///
/// # Errors
/// Where the device fails.
pub fn gpu_kernels(
    engine: &Engine,
    device: Device,
    rows: &[usize],
) -> Result<Vec<GpuProduct>, EngineError> {
    let (Device::Gpu(index), Some(meter)) = (device, engine.meter()) else {
        return Ok(Vec::new());
    };
    let top_k = engine.shape().top_k;
    let all = products(&meter.weights(), engine.core().experts.bank(), top_k, meter.inputs);
    let dense: Vec<_> = all.iter().copied().filter(|product| !product.is_routed).collect();
    let mut times = Vec::new();
    for n in rows {
        let products = if *n == 1 { &all } else { &dense };
        times.extend(gpu_products(index, products, &[*n])?);
    }
    Ok(times)
}
