//! Random bytes with the statistics of weights: a counter and a mixer, so
//! that any chunk of any tensor is made by itself, as fast as a drive writes.

use std::sync::Arc;

use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat, MatrixView, MicroScaled};
use moeflux_core::{SplitMix64, fnv1a_64};

/// A source of random words: word `i` of key `k` is always the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    key: u64,
}

impl Noise {
    /// The words of one tensor.
    pub(super) fn of(seed: u64, name: &str) -> Noise {
        Noise { key: SplitMix64::mix(fnv1a_64(name.as_bytes()) ^ SplitMix64::mix(seed)) }
    }

    #[inline(always)]
    fn word(self, idx: u64) -> u64 {
        SplitMix64::mix(self.key.wrapping_add(idx.wrapping_mul(SplitMix64::STEP)))
    }

    /// Uniform in `0..1`.
    pub(super) fn unit(self, idx: u64) -> f32 {
        (self.word(idx) >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Normal, of mean 0 and standard deviation 1.
    fn normal(self, idx: u64) -> f32 {
        let radius = (-2.0 * (1.0 - self.unit(2 * idx)).max(1e-7).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.unit(2 * idx + 1)).cos()
    }
}

/// What a run of bytes is filled with.
#[derive(Clone, Debug)]
pub(super) enum Fill {
    /// Nothing: the file has a hole there.
    Hole,
    /// Every bit random: packed integers of any width.
    Bits,
    /// These bytes over and over.
    Cycle(Arc<[u8]>),
    /// Codes of E4M3 below two, none of which is NaN.
    SmallE4m3,
    /// Elements of two bytes, drawn from a table of 65536.
    Table(Vec<u8>),
    /// Normal elements in `F32` with this standard deviation.
    Floats(f32),
    /// Blocks of random bits but for their scales.
    Blocks(Blocks),
    /// Rows of whole numbers.
    Indices(Indices),
}

/// Rows of different whole numbers below a bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Indices {
    /// Numbers of a row.
    pub(super) cols: usize,
    /// What they are below.
    pub(super) below: u32,
    /// Bytes of a number: 4 or 8.
    pub(super) width: usize,
}

/// Blocks of a type of ggml.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    n_bytes: usize,
    /// Where in a block the bytes of its scales are.
    at: Vec<usize>,
    /// These bytes, block by block, over and over.
    scales: Vec<u8>,
}

/// The root of the mean square of the codes of E4M3 below two.
pub(super) const E4M3_STD: f32 = 0.6;

/// Entries of a cycle of scales: a prime, so that columns do not repeat.
const CYCLE: u64 = 4099;

impl Fill {
    /// These bytes over and over.
    pub(super) fn cycle(bytes: impl Into<Arc<[u8]>>) -> Fill {
        Fill::Cycle(bytes.into())
    }

    /// Fills of a matrix's weights, scales and biases, its elements having
    /// the standard deviation `std`.
    pub(super) fn matrix(format: MatrixFormat, std: f32, noise: Noise) -> [Fill; 3] {
        match format {
            MatrixFormat::Dense(Float::F32) => {
                [Fill::Floats(std), Fill::cycle([]), Fill::cycle([])]
            }
            MatrixFormat::Dense(float) => {
                assert_eq!(float.bytes(), 2, "tables have elements of two bytes");
                let mut table = Vec::with_capacity(2 << 16);
                (0..1 << 16).for_each(|i| float.append(noise.normal(i) * std, &mut table));
                [Fill::Table(table), Fill::cycle([]), Fill::cycle([])]
            }
            MatrixFormat::Affine(affine) => {
                let (scales, biases) = params(affine, std, noise);
                [Fill::Bits, Fill::cycle(scales), Fill::cycle(biases)]
            }
            MatrixFormat::Micro(MicroScaled::MXFP4) => {
                [Fill::Bits, Fill::cycle(powers(std, noise)), Fill::cycle([])]
            }
            MatrixFormat::Ggml(kind) => {
                let blocks = Fill::Blocks(Blocks::new(kind, std, noise));
                [blocks, Fill::cycle([]), Fill::cycle([])]
            }
            other => panic!("{other:?} is not made up"),
        }
    }

    /// Makes bytes `offset..` of the run; `offset` is a multiple of 8.
    pub(super) fn make(&self, noise: Noise, offset: u64, out: &mut [u8]) {
        let first = offset / 8;
        let words = (first..).map(|idx| noise.word(idx));
        match self {
            Fill::Hole => out.fill(0),
            Fill::Bits => {
                for (out, word) in out.chunks_mut(8).zip(words) {
                    out.copy_from_slice(&word.to_le_bytes()[..out.len()]);
                }
            }
            Fill::SmallE4m3 => {
                Fill::Bits.make(noise, offset, out);
                out.iter_mut().for_each(|code| *code &= 0xbf);
            }
            Fill::Cycle(cycle) => {
                let start = (offset % cycle.len() as u64) as usize;
                let first = out.len().min(cycle.len() - start);
                out[..first].copy_from_slice(&cycle[start..start + first]);
                for part in out[first..].chunks_mut(cycle.len()) {
                    part.copy_from_slice(&cycle[..part.len()]);
                }
            }
            Fill::Floats(std) => {
                for (out, i) in out.as_chunks_mut().0.iter_mut().zip(offset / 4..) {
                    *out = (noise.normal(i) * std).to_le_bytes();
                }
            }
            Fill::Blocks(blocks) => {
                Fill::Bits.make(noise, offset, out);
                blocks.put_scales(offset, out);
            }
            Fill::Indices(indices) => {
                let width = indices.width;
                for (out, i) in out.chunks_exact_mut(width).zip(offset / width as u64..) {
                    out.copy_from_slice(&indices.number(noise, i).to_le_bytes()[..width]);
                }
            }
            Fill::Table(table) => {
                for (out, word) in out.chunks_mut(8).zip(words) {
                    for (out, i) in out.chunks_exact_mut(2).zip(0..) {
                        let at = usize::from((word >> (16 * i)) as u16) * 2;
                        out.copy_from_slice(&table[at..at + 2]);
                    }
                }
            }
        }
    }
}

impl Indices {
    /// Number `idx` of a run of rows. Those of a row are as far from each other as they can be.
    fn number(self, noise: Noise, idx: u64) -> u64 {
        let (below, cols) = (u64::from(self.below.max(1)), self.cols.max(1) as u64);
        let step = (below / cols).max(1);
        (noise.word(idx / cols) % below + idx % cols * step) % below
    }
}

impl Blocks {
    /// Blocks whose elements have the standard deviation `std`.
    fn new(kind: BlockType, std: f32, noise: Noise) -> Blocks {
        let n_bytes = kind.block_bytes();
        if kind == BlockType::MXFP4 {
            return Blocks { n_bytes, at: vec![0], scales: powers(std, noise) };
        }
        let offsets = kind.scale_offsets();
        assert!(!offsets.is_empty(), "{kind:?} is not made up");
        let at = offsets.iter().flat_map(|at| [*at, at + 1]).collect();
        let mut blocks = Blocks { n_bytes, at, scales: halves(kind, [1.0].into_iter()) };
        let unit_std = blocks.std(kind, noise);
        // Scales of both signs make up for codes whose mean is not zero.
        let sign = |i| if noise.word(i) & 1 == 0 { 1.0 } else { -1.0 };
        let scale = |i| sign(i) * std / unit_std * (0.75 + 0.5 * noise.unit(i));
        blocks.scales = halves(kind, (0..CYCLE).map(scale));
        blocks
    }

    /// The standard deviation of the elements.
    fn std(&self, kind: BlockType, noise: Noise) -> f32 {
        const N_BLOCKS: usize = 512;
        let cols = N_BLOCKS * kind.block_cols();
        let mut weight = vec![0; N_BLOCKS * self.n_bytes];
        Fill::Blocks(self.clone()).make(noise, 0, &mut weight);
        let format = MatrixFormat::Ggml(kind);
        let view = MatrixView { rows: 1, cols, format, weight: &weight, scales: &[], biases: &[] };
        let mut elements = vec![0.0; cols];
        view.decode_row(0, &mut elements);
        (elements.iter().map(|element| element * element).sum::<f32>() / cols as f32).sqrt()
    }

    /// Overwrites the bytes of scales in bytes `offset..` of a run of blocks.
    fn put_scales(&self, offset: u64, out: &mut [u8]) {
        let n_cycle = (self.scales.len() / self.at.len()) as u64;
        let first = offset / self.n_bytes as u64;
        let n = out.len() / self.n_bytes + 2;
        for block in first..first + n as u64 {
            let start = block as i64 * self.n_bytes as i64 - offset as i64;
            let entry = (block % n_cycle) as usize * self.at.len();
            for (at, byte) in self.at.iter().zip(&self.scales[entry..]) {
                let place = usize::try_from(start + *at as i64).ok();
                if let Some(out) = place.and_then(|place| out.get_mut(place)) {
                    *out = *byte;
                }
            }
        }
    }
}

/// The bytes of the scales of blocks, each followed by the offset, if there is one, that centres
/// the elements of random codes on zero.
fn halves(kind: BlockType, scales: impl Iterator<Item = f32>) -> Vec<u8> {
    let offset = match kind {
        BlockType::Q4_1 => Some(-7.5),
        BlockType::Q5_1 => Some(-15.5),
        // Subtracted.
        BlockType::Q2_K => Some(1.5),
        BlockType::Q4_K => Some(7.5),
        BlockType::Q5_K => Some(15.5),
        _ => None,
    };
    let mut out = Vec::new();
    for scale in scales {
        Float::F16.append(scale, &mut out);
        if let Some(offset) = offset {
            Float::F16.append(scale * offset, &mut out);
        }
    }
    out
}

/// The scales of [`params`].
pub(super) fn affine_scales(affine: Affine, std: f32, noise: Noise) -> Vec<u8> {
    params(affine, std, noise).0
}

/// Scales around the one that gives uniform integers the standard deviation
/// `std`, and biases that centre each group on zero.
fn params(affine: Affine, std: f32, noise: Noise) -> (Vec<u8>, Vec<u8>) {
    let levels = (1u32 << affine.bits) as f32;
    let unit_std = ((levels * levels - 1.0) / 12.0).sqrt();
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for i in 0..CYCLE {
        let scale = affine.params.round(std / unit_std * (0.75 + 0.5 * noise.unit(i)));
        affine.params.append(scale, &mut scales);
        affine.params.append(-scale * (levels - 1.0) / 2.0, &mut biases);
    }
    (scales, biases)
}

/// Scales in E8M0 that give uniform codes of E2M1 the standard deviation `std`: two neighbouring
/// powers of two, each as often as it takes.
fn powers(std: f32, noise: Noise) -> Vec<u8> {
    /// The mean of the squares of 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
    const MEAN_SQUARE: f32 = 68.5 / 8.0;
    let square = std * std / MEAN_SQUARE;
    let lower = square.sqrt().log2().floor();
    // Of a share `p` of the upper ones: 1 - p + 4 p = square / lower^2.
    let p = ((square / (2.0 * lower).exp2()) - 1.0) / 3.0;
    let code = |i| lower as i32 + 127 + i32::from(noise.unit(i) < p);
    (0..CYCLE).map(|i| code(i).clamp(0, 254) as u8).collect()
}

/// The elements of a small tensor, by what its name says that it is.
pub(super) fn vector(name: &str, n: usize, float: Float, noise: Noise) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(n * float.bytes());
    for i in 0..n as u64 {
        let normal = noise.normal(i);
        let value = match name {
            // Decays as trained models have them: exp(A_log) from 0.5 to 16.
            _ if name.ends_with("A_log") => (0.5 + 15.5 * noise.unit(i)).ln(),
            _ if name.ends_with(".A") => -(0.5 + 15.5 * noise.unit(i)),
            _ if name.ends_with("dt_bias") => -3.0 + normal,
            _ if name.ends_with("mixer.D") => 1.0 + 0.3 * normal,
            _ if name.contains("conv1d") => 0.5 * normal,
            _ if name.contains("norm") => 1.0 + 0.1 * normal,
            _ if name.ends_with("scale") || name.ends_with("_scalar") => 1.0 + 0.1 * normal,
            _ => 0.02 * normal,
        };
        float.append(value, &mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn chunks_join_to_the_whole() {
        let noise = Noise::of(1, "x");
        let dense = MatrixFormat::Dense(Float::BF16);
        let [table, ..] = Fill::matrix(dense, 1.0, noise);
        let blocks = |kind| Fill::Blocks(Blocks::new(kind, 1.0, noise));
        let [q6_k, q4_0] = [BlockType::Q6_K, BlockType::Q4_0].map(blocks);
        let cycle = Fill::cycle((0..22).collect::<Vec<u8>>());
        let indices = |width| Fill::Indices(Indices { cols: 6, below: 256, width });
        let [wide, narrow] = [8, 4].map(indices);
        for fill in [Fill::Bits, cycle, table, Fill::Floats(1.0), q6_k, q4_0, wide, narrow] {
            let mut whole = vec![0; 1000];
            fill.make(noise, 0, &mut whole);
            let mut parts = vec![0; 1000];
            for (i, part) in parts.chunks_mut(104).enumerate() {
                fill.make(noise, i as u64 * 104, part);
            }
            assert_eq!(whole, parts);
        }
    }

    #[test]
    fn rows_of_indices_have_different_numbers_below_the_bound() {
        let noise = Noise::of(3, "t");
        for (cols, below) in [(6, 256), (6, 7), (3, 3), (6, 384)] {
            let mut bytes = vec![0; 8 * cols * 5000];
            Fill::Indices(Indices { cols, below, width: 8 }).make(noise, 0, &mut bytes);
            let all: Vec<u64> =
                bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
            for row in all.chunks(cols) {
                let distinct: BTreeSet<&u64> = row.iter().collect();
                assert_eq!(distinct.len(), cols, "{row:?}");
            }
            assert_eq!(all.iter().max(), Some(&u64::from(below - 1)));
        }
    }

    #[track_caller]
    fn check_statistics(format: MatrixFormat) {
        let (rows, cols, std) = (256, 512, 0.04);
        let noise = Noise::of(7, "w");
        let fills = Fill::matrix(format, std, noise);
        let lens = [
            rows * format.row_bytes(cols),
            format.scale_bytes(rows, cols),
            format.bias_bytes(rows, cols),
        ];
        let make = |(fill, len): (&Fill, usize)| {
            let mut out = vec![0; len];
            if !out.is_empty() {
                fill.make(noise, 0, &mut out);
            }
            out
        };
        let parts: Vec<Vec<u8>> = fills.iter().zip(lens).map(make).collect();
        let view = MatrixView {
            rows,
            cols,
            format,
            weight: &parts[0],
            scales: &parts[1],
            biases: &parts[2],
        };
        let mut all = vec![0.0; rows * cols];
        for (i, row) in all.chunks_exact_mut(cols).enumerate() {
            view.decode_row(i, row);
        }
        let mean = all.iter().sum::<f32>() / all.len() as f32;
        let var = all.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / all.len() as f32;
        assert!(mean.abs() < std * 0.02, "{format:?}: mean {mean}");
        assert!((var.sqrt() / std - 1.0).abs() < 0.03, "{format:?}: std {}", var.sqrt());
    }

    #[test]
    fn weights_have_the_standard_deviation_asked_for() {
        for bits in Affine::BITS {
            let affine = Affine::new(bits, 64, Float::BF16);
            check_statistics(MatrixFormat::Affine(affine));
        }
        check_statistics(MatrixFormat::Dense(Float::BF16));
        check_statistics(MatrixFormat::Dense(Float::F32));
        check_statistics(MatrixFormat::Micro(MicroScaled::MXFP4));
        let all = [
            BlockType::Q4_0,
            BlockType::Q5_0,
            BlockType::Q5_1,
            BlockType::Q8_0,
            BlockType::Q2_K,
            BlockType::Q3_K,
            BlockType::Q4_K,
            BlockType::Q5_K,
            BlockType::Q6_K,
            BlockType::IQ2_XXS,
            BlockType::IQ3_XXS,
            BlockType::IQ4_NL,
            BlockType::IQ4_XS,
            BlockType::MXFP4,
        ];
        all.into_iter().map(MatrixFormat::Ggml).for_each(check_statistics);
    }
}
