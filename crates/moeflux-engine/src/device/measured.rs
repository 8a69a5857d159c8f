//! What is measured of a GPU: how its products are laid out best, how fast they
//! are, and how fast the device lets them be.

use std::path::PathBuf;
use std::time::Duration;

use moeflux_backend::ActivationPrecision;
use moeflux_backend::profiling::WeightFacts;
use moeflux_core::quant::MatrixFormat;
use moeflux_core::{ExpertBank, GateUp, MatrixLayout};

use super::Device;
use crate::error::EngineError;
use crate::format_name::format_name;

/// What was measured of a GPU's products when a model was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTuning {
    /// Products whose best layout was known.
    pub n_known: usize,
    /// Products that were measured.
    pub n_measured: usize,
    /// Products that are left for the next time.
    pub n_left: usize,
    /// How long measuring took.
    pub time: Duration,
    pub(crate) warnings: Vec<String>,
}

/// The limits of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuLimits {
    /// What its maker calls it, and its driver.
    pub name: String,
    /// GB/s of a kernel that copies: bytes read and written.
    pub copy_gb_s: f64,
    /// GB/s of a kernel that reads.
    pub read_gb_s: f64,
    /// GB/s from the processor's memory to the device's: written by one thread,
    /// by several. Where both share their memory, a copy like any other.
    pub upload_gb_s: [f64; 2],
    /// Threads of the latter.
    pub upload_threads: usize,
    /// TFLOP/s of a dense product with a matrix of 4 bits, two for each
    /// product, inputs rounded to 16 bits and to 8.
    pub product_tflop_s: [f64; 2],
    /// Rows, outputs and inputs of it.
    pub product_shape: [usize; 3],
    /// Whether products with many rows go through units for matrices.
    pub has_matrix_units: bool,
}

/// Matrices of one shape that a GPU multiplies together with some rows.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuProduct {
    /// Rows of activations.
    pub rows: usize,
    /// How the matrices are stored.
    pub format: MatrixFormat,
    /// How many are multiplied together.
    pub n: usize,
    /// Outputs and inputs of each.
    pub shape: [usize; 2],
    /// In how many layers.
    pub n_layers: usize,
    /// Whether they belong to routed experts.
    pub is_routed: bool,
    /// Microseconds of the kernel.
    pub us: f64,
    /// GB/s of weights.
    pub gb_s: f64,
    /// TFLOP/s, two for each product.
    pub tflop_s: f64,
    /// How the kernel is laid out, where there are few rows.
    pub layout: Option<String>,
}

impl GpuProduct {
    /// How the matrices are stored, such as `4-bit, groups of 64`.
    pub fn format_name(&self) -> String {
        format_name(self.format)
    }
}

/// Matrices of one shape that a device multiplies together with one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DecodeProduct {
    pub(crate) format: MatrixFormat,
    pub(crate) inputs: ActivationPrecision,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// How many are multiplied together.
    pub(crate) n: usize,
    /// In how many layers.
    pub(crate) n_layers: usize,
    /// Whether they belong to routed experts.
    pub(crate) is_routed: bool,
}

impl DecodeProduct {
    /// Bytes of weights that a token reads there.
    fn bytes(&self) -> usize {
        self.n_layers * self.n * self.format.matrix_bytes(self.rows, self.cols)
    }
}

/// The products of a token, those that read most first.
pub(crate) fn products(
    weights: &[WeightFacts],
    bank: &ExpertBank,
    top_k: usize,
    inputs: ActivationPrecision,
) -> Vec<DecodeProduct> {
    let mut all: Vec<DecodeProduct> = Vec::new();
    let mut add = |new: DecodeProduct| {
        let alike = |product: &&mut DecodeProduct| {
            DecodeProduct { n_layers: product.n_layers, ..new } == **product
        };
        match all.iter_mut().find(alike) {
            Some(known) => known.n_layers += 1,
            None => all.push(new),
        }
    };
    for WeightFacts { rows, cols, format, inputs } in weights.iter().copied() {
        add(DecodeProduct { format, inputs, rows, cols, n: 1, n_layers: 1, is_routed: false });
    }
    let routed = |matrix: &MatrixLayout, n| {
        let MatrixLayout { rows, cols, format, .. } = *matrix;
        DecodeProduct { format, inputs, rows, cols, n, n_layers: 1, is_routed: true }
    };
    for layer in bank.layers.iter().flatten() {
        match &layer.layout.gate_up {
            GateUp::Split { gate, up } if gate.format == up.format => add(routed(gate, 2 * top_k)),
            GateUp::Split { gate, up } => {
                add(routed(gate, top_k));
                add(routed(up, top_k));
            }
            GateUp::Up(one) | GateUp::Alternating(one) | GateUp::Joined(one) => {
                add(routed(one, top_k))
            }
        }
        add(routed(&layer.layout.down, top_k));
    }
    all.sort_by_key(|product| std::cmp::Reverse(product.bytes()));
    all
}

/// How long products are measured when a model is opened.
pub(crate) const TUNING: Duration = Duration::from_secs(1);

/// Finds out how a device computes the products of a model fastest.
#[derive(Clone, Debug)]
pub(crate) struct Tuner {
    pub(crate) device: Device,
    pub(crate) products: Vec<DecodeProduct>,
    /// Where it is kept.
    pub(crate) dir: PathBuf,
}

impl Tuner {
    /// Measures what is not known yet, those products first that read most: for [`TUNING`] where none is
    /// known, else for `later`. Nothing for the processor.
    ///
    /// # Errors
    /// Where the device fails.
    pub(crate) fn tune(&self, later: Duration) -> Result<Option<DeviceTuning>, EngineError> {
        match self.device {
            Device::Cpu | Device::Auto => Ok(None),
            Device::Gpu(index) => gpu::tune(index, &self.products, &self.dir, later).map(Some),
        }
    }
}

/// Measures a GPU.
///
/// # Errors
/// Where there is none, or it fails.
pub(crate) fn gpu_limits(index: Option<usize>) -> Result<GpuLimits, EngineError> {
    gpu::limits(index)
}

/// Measures the products of a model, each with all those numbers of rows.
///
/// # Errors
/// Where the device fails.
pub(crate) fn gpu_products(
    index: Option<usize>,
    products: &[DecodeProduct],
    rows: &[usize],
) -> Result<Vec<GpuProduct>, EngineError> {
    gpu::products(index, products, rows)
}

#[cfg(feature = "gpu")]
mod gpu {
    use std::path::Path;
    use std::time::Duration;

    use moeflux_backend::ActivationPrecision;
    use moeflux_core::quant::{Affine, Float, MatrixFormat};
    use moeflux_wgpu::{
        BandwidthProbe, Context, ProductProbe, ProductShape, TuneOptions, Tuning, new_backend,
        uses_coop_matrix,
    };

    use crate::device::measured::{DecodeProduct, DeviceTuning, GpuLimits, GpuProduct, TUNING};
    use crate::error::EngineError;

    /// Bytes that are moved, and the product that is computed: as much as a
    /// large GPU needs, and what a processor that plays one bears.
    const BYTES: u64 = 1 << 30;
    const FEW_BYTES: u64 = 16 << 20;
    const PRODUCT: [usize; 3] = [4096, 8192, 4096];
    const SMALL_PRODUCT: [usize; 3] = [64, 256, 512];

    /// Threads that fill the processor's side of the bus.
    const UPLOAD_THREADS: usize = 8;

    fn shape(product: &DecodeProduct) -> ProductShape {
        let DecodeProduct { format, inputs, rows, cols, n, .. } = *product;
        ProductShape { format, inputs, rows, cols, n }
    }

    pub(super) fn tune(
        index: Option<usize>,
        products: &[DecodeProduct],
        dir: &Path,
        later: Duration,
    ) -> Result<DeviceTuning, EngineError> {
        let context = Context::open(index)?;
        let shapes: Vec<ProductShape> = products.iter().map(shape).collect();
        let options = TuneOptions {
            cache: Some(dir.to_owned()),
            budget: TUNING,
            later_budget: later,
            includes_software: false,
        };
        let Tuning { n_known, n_measured, n_left, time, warnings } =
            moeflux_wgpu::tune(&context, &shapes, &options)?;
        Ok(DeviceTuning { n_known, n_measured, n_left, time, warnings })
    }

    pub(super) fn limits(index: Option<usize>) -> Result<GpuLimits, EngineError> {
        let context = Context::open(index)?;
        let facts = context.facts().clone();
        let is_small = facts.is_software();
        let bytes = if is_small { FEW_BYTES } else { BYTES };
        let mut b = new_backend(context.clone(), Some(0));
        let copy_gb_s = b.bandwidth_gb_s(BandwidthProbe::CopyKernel, bytes)?;
        let read_gb_s = b.bandwidth_gb_s(BandwidthProbe::ReadKernel, bytes)?;
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let upload_threads = UPLOAD_THREADS.min(n_cores);
        let upload_gb_s = [b.upload_gb_s(bytes / 4, 1)?, b.upload_gb_s(bytes / 4, upload_threads)?];
        let product_shape = if is_small { SMALL_PRODUCT } else { PRODUCT };
        let [x_rows, rows, cols] = product_shape;
        let format = MatrixFormat::Affine(Affine::new(4, 64, Float::BF16));
        let mut probe = ProductProbe::new(&context)?;
        let mut tflop_s = |inputs| -> Result<f64, EngineError> {
            let shape = ProductShape { format, inputs, rows, cols, n: 1 };
            let time =
                probe.as_mut().map(|probe| probe.time(&shape, x_rows)).transpose()?.flatten();
            Ok(time.map_or(0.0, |time| time.flop(x_rows) / time.seconds / 1e12))
        };
        Ok(GpuLimits {
            name: format!("{}, {}", facts.name, facts.driver),
            copy_gb_s,
            read_gb_s,
            upload_gb_s,
            upload_threads,
            product_tflop_s: [
                tflop_s(ActivationPrecision::Int16)?,
                tflop_s(ActivationPrecision::Int8)?,
            ],
            product_shape,
            has_matrix_units: uses_coop_matrix(&context),
        })
    }

    pub(super) fn products(
        index: Option<usize>,
        products: &[DecodeProduct],
        rows: &[usize],
    ) -> Result<Vec<GpuProduct>, EngineError> {
        let context = Context::open(index)?;
        let mut all = Vec::new();
        let Some(mut probe) = ProductProbe::new(&context)? else { return Ok(all) };
        for x_rows in rows {
            for product in products {
                let Some(time) = probe.time(&shape(product), *x_rows)? else { continue };
                all.push(GpuProduct {
                    rows: *x_rows,
                    format: product.format,
                    n: product.n,
                    shape: [time.shape.rows, product.cols],
                    n_layers: product.n_layers,
                    is_routed: product.is_routed,
                    us: time.seconds * 1e6,
                    gb_s: time.shape.bytes() as f64 / time.seconds / 1e9,
                    tflop_s: time.flop(*x_rows) / time.seconds / 1e12,
                    layout: time.layout.map(|layout| layout.to_string()),
                });
            }
        }
        Ok(all)
    }
}

#[cfg(not(feature = "gpu"))]
mod gpu {
    use std::path::Path;
    use std::time::Duration;

    use crate::device::measured::{DecodeProduct, DeviceTuning, GpuLimits, GpuProduct};
    use crate::device::{NAMES, OptionId, refuse};
    use crate::error::EngineError;

    pub(super) fn tune(
        _: Option<usize>,
        _: &[DecodeProduct],
        _: &Path,
        _: Duration,
    ) -> Result<DeviceTuning, EngineError> {
        Err(refuse(OptionId::Device, "gpu", NAMES))
    }

    pub(super) fn limits(_: Option<usize>) -> Result<GpuLimits, EngineError> {
        Err(refuse(OptionId::Device, "gpu", NAMES))
    }

    pub(super) fn products(
        _: Option<usize>,
        _: &[DecodeProduct],
        _: &[usize],
    ) -> Result<Vec<GpuProduct>, EngineError> {
        Err(refuse(OptionId::Device, "gpu", NAMES))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moeflux_core::quant::Float;
    use moeflux_core::{ExpertLayout, LayerBank, PartSpan};

    use super::*;

    #[test]
    fn what_reads_most_comes_first_and_alike_layers_count_together() {
        let format = MatrixFormat::Dense(Float::BF16);
        let weight =
            |rows, cols| WeightFacts { rows, cols, format, inputs: ActivationPrecision::F32 };
        let matrix = |rows, cols| {
            let none = PartSpan { extent: 0, offset: 0, len: 0 };
            MatrixLayout { rows, cols, format, weight: none, scales: none, biases: none }
        };
        let layout = Arc::new(ExpertLayout {
            extents: vec![0],
            gate_up: GateUp::Split { gate: matrix(16, 64), up: matrix(16, 64) },
            down: matrix(64, 16),
        });
        let layer = LayerBank { n_experts: 8, layout, sources: Vec::new(), checksums: None };
        let layers = vec![Some(layer.clone()), None, Some(layer)];
        let bank = ExpertBank { files: Vec::new(), layers };
        let weights = [weight(8, 64), weight(64, 64), weight(8, 64)];
        let all = products(&weights, &bank, 2, ActivationPrecision::Int16);
        let seen: Vec<_> = all
            .iter()
            .map(|product| {
                (product.n, product.rows, product.cols, product.n_layers, product.is_routed)
            })
            .collect();
        let want = [
            (4, 16, 64, 2, true),
            (1, 64, 64, 1, false),
            (2, 64, 16, 2, true),
            (1, 8, 64, 2, false),
        ];
        assert_eq!(seen, want);
    }
}
