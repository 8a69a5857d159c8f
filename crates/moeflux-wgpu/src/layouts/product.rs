//! How kernels share out the work of a product: which lanes, which rows, in
//! what form. Nothing in it changes a bit of the result.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kernels::matmul::{CoopMatmul, Matmul};
use crate::kernels::shared::WeightFormat;
use crate::layouts::format::F16Operand;

/// By what dots of integers are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Dots of four bytes.
    Bytes,
    /// Multiplications of floats, in which the integers are exact: for devices
    /// without an instruction for dots of bytes.
    Floats,
}

/// By what products with many rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiles {
    /// `f32`, whatever the format.
    F32,
    /// Cooperative matrices of halves, inputs and weights as sums of these.
    CoopMatrix,
    /// The kernel of cooperative matrices by plain loops: for tests on devices without them.
    Emulated,
}

/// How `matmul/matmul.wgsl` is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct F32Tiles {
    /// Rows of activations in a tile.
    pub(crate) x_tile: u32,
    /// Rows of the matrix.
    pub(crate) w_tile: u32,
    /// Fours of rows of activations that a thread has.
    x_fours: u32,
    /// Blocks of columns that are in workgroup memory at once.
    step: u32,
}

impl F32Tiles {
    pub(crate) const WIDE: F32Tiles = F32Tiles { x_tile: 64, w_tile: 64, x_fours: 1, step: 1 };

    /// For matrices of few rows, whose tiles are few: eight threads share an output.
    pub(crate) const NARROW: F32Tiles = F32Tiles { x_tile: 32, w_tile: 32, x_fours: 2, step: 2 };

    /// Constants of the kernel.
    pub(crate) fn kernel(&self, format: WeightFormat, is_aligned: bool) -> Matmul {
        let F32Tiles { x_tile, w_tile, x_fours, step } = *self;
        Matmul { format, x_tile, w_tile, x_fours, step, is_aligned }
    }
}

/// How `coop_matmul.wgsl` is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct F16Tiles {
    /// Rows of activations in a tile.
    pub(crate) x_tile: u32,
    /// Rows of the matrix.
    pub(crate) w_tile: u32,
    /// Squares of 16 by 16 that a subgroup has, along both.
    squares: [u32; 2],
    /// Blocks of columns that are in workgroup memory at once.
    step: u32,
}

/// Products that go through tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductSize {
    pub(crate) n_matrices: usize,
    /// Rows of activations of each matrix.
    pub(crate) x_rows: usize,
    /// Rows of each matrix.
    pub(crate) w_rows: usize,
}

/// Tiles that fill large devices: one for nearly all of their multiprocessors.
const TILES: usize = 128;

/// Rows of activations in the smallest tiles for any number of them.
const COMMON_TILE: usize = 64;

impl F16Tiles {
    const fn new(x_tile: u32, w_tile: u32, squares: [u32; 2], step: u32) -> F16Tiles {
        F16Tiles { x_tile, w_tile, squares, step }
    }

    /// All that there are for such a matrix, the largest first: those were fastest on an H200. What
    /// decodes elements lacks the registers, and workgroups the memory, for more.
    pub(crate) fn all(of: F16Operand) -> &'static [F16Tiles] {
        const UNPACKED: [F16Tiles; 6] = [
            F16Tiles::new(128, 256, [4, 4], 1),
            F16Tiles::new(128, 128, [4, 4], 2),
            F16Tiles::new(64, 128, [2, 4], 2),
            F16Tiles::new(64, 64, [2, 2], 2),
            F16Tiles::new(32, 64, [2, 2], 2),
            F16Tiles::new(16, 64, [1, 2], 2),
        ];
        const DECODED: [F16Tiles; 5] = [
            F16Tiles::new(128, 128, [2, 4], 1),
            F16Tiles::new(64, 128, [2, 4], 1),
            F16Tiles::new(64, 64, [2, 2], 1),
            F16Tiles::new(32, 64, [2, 2], 1),
            F16Tiles::new(16, 64, [1, 2], 1),
        ];
        match of {
            F16Operand::Sums(_) => &DECODED,
            _ => &UNPACKED,
        }
    }

    /// Which of these suit products: the largest tiles that are full enough and fill a device: more
    /// than half, the largest more than three quarters. Tiles of fewer rows than there are cost more
    /// than they fill.
    pub(crate) fn of(all: &[F16Tiles], size: ProductSize) -> F16Tiles {
        let ProductSize { n_matrices, x_rows, w_rows } = size;
        let suits = |tiles: &F16Tiles| {
            let (x_tile, w_tile) = (tiles.x_tile as usize, tiles.w_tile as usize);
            let n_tiles = n_matrices * x_rows.div_ceil(x_tile) * w_rows.div_ceil(w_tile);
            let enough = if x_tile > COMMON_TILE { x_tile * 3 / 4 } else { x_tile / 2 };
            x_rows > enough && n_tiles >= TILES
        };
        let holds = |tiles: &F16Tiles| tiles.x_tile as usize >= x_rows.min(COMMON_TILE);
        let mut all = all.iter().copied().filter(holds);
        let best = all.clone().find(suits).or_else(|| all.next_back());
        best.expect("common tiles are among them")
    }

    /// Constants of the kernel.
    pub(crate) fn kernel(
        &self,
        format: WeightFormat,
        of: F16Operand,
        parts: u32,
        is_emulated: bool,
    ) -> CoopMatmul {
        let F16Tiles { x_tile, w_tile, squares: [x_fragments, w_fragments], step } = *self;
        let summands = of.summands();
        CoopMatmul {
            format,
            parts,
            is_emulated,
            x_tile,
            w_tile,
            x_fragments,
            w_fragments,
            step,
            summands,
        }
    }
}

/// How `matmul/matvec.wgsl` is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Where inputs are integers.
    pub form: Form,
    /// Lanes that share a row of the matrix, as far as there is work for them.
    pub lanes: u32,
    /// Rows of the matrix that they have at once.
    pub rows: u32,
    /// Units of each row that are on their way at once.
    pub depth: u32,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Most workgroups, which then take more rows, one after the other.
    pub groups: u32,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { form, lanes, rows, depth, threads, groups } = self;
        let form = match form {
            Form::Bytes => "bytes",
            Form::Floats => "floats",
        };
        write!(f, "{form}, {lanes} lanes, {rows} rows, depth {depth}, {threads} threads")?;
        if *groups < u32::MAX { write!(f, ", {groups} groups") } else { Ok(()) }
    }
}

/// Most lanes that share a row.
const MAX_LANES: u32 = 32;

/// Fewest: fewer kernels to compile.
const MIN_LANES: u32 = 16;

/// Threads of `matmul/matvec.wgsl`: a multiple of all sizes of subgroups.
const THREADS: u32 = 128;

/// Rows of all matrices of a dispatch for which two at once leave enough
/// subgroups, then four, then eight.
const ROWS_FOR_TWO: usize = 6144;
const ROWS_FOR_FOUR: usize = 16_384;
const ROWS_FOR_EIGHT: usize = 131_072;

/// Rows of all matrices for which two at once leave enough workgroups, where each meets
/// several rows of activations.
pub(crate) const ROWS_FOR_SEVERAL: usize = 2048;

/// Workgroups that fill large devices several times.
const GROUPS: u32 = 2112;

/// Words of activations that a lane keeps.
const MAX_KEPT: u32 = 32;

/// Lanes over which a row of this many units is summed, whatever the device.
pub(crate) fn virtual_lanes(n_units: usize) -> u32 {
    let n = u32::try_from(n_units.next_power_of_two()).unwrap_or(MAX_LANES);
    n.clamp(MIN_LANES, MAX_LANES)
}

impl Layout {
    /// What suits more than two rows of activations: on an H200, 12 to 22 % faster than what
    /// suits one.
    pub(crate) const SEVERAL: Layout = Layout {
        form: Form::Bytes,
        lanes: MAX_LANES,
        rows: 2,
        depth: 1,
        threads: THREADS,
        groups: u32::MAX,
    };

    /// What suits rows of this many units where nothing was measured.
    pub(crate) fn plain(n_units: usize, n_rows: usize) -> Layout {
        let steps = n_units.div_ceil(MAX_LANES as usize);
        let comes_out_even = n_units.is_multiple_of(2 * MAX_LANES as usize) || steps > 4;
        let (rows, depth, groups) = match (n_rows, steps) {
            (..ROWS_FOR_TWO, _) => (1, 4, GROUPS),
            (ROWS_FOR_EIGHT.., 1) => (8, 1, GROUPS / 2),
            (_, 1) => (2, 1, GROUPS / 2),
            (ROWS_FOR_FOUR.., 3..) if comes_out_even => (4, 2, GROUPS),
            _ if comes_out_even => (2, 2, GROUPS),
            (ROWS_FOR_FOUR.., _) => (8, 1, GROUPS),
            _ => (4, 1, GROUPS),
        };
        Layout { form: Form::Bytes, lanes: MAX_LANES, rows, depth, threads: THREADS, groups }
    }

    /// Whether kernels know such a layout, as [`Layout::within`] fits it to them.
    pub(crate) fn is_known(&self) -> bool {
        let Layout { lanes, rows, depth, threads, groups, .. } = *self;
        [lanes, rows, depth, threads].iter().all(|n| n.is_power_of_two()) && groups > 0
    }

    /// Whether workgroups read activations once for all their rows.
    pub(crate) fn reads_once(&self, n_units: usize, n_limbs: u32, x_rows: u32) -> bool {
        let is_one_step = n_units <= (virtual_lanes(n_units) * self.depth) as usize;
        let words = 8 * n_limbs * x_rows * self.depth;
        self.form == Form::Bytes
            && is_one_step
            && self.lanes == virtual_lanes(n_units)
            && (1..=MAX_KEPT).contains(&words)
    }

    /// The nearest layout that the kernel has for rows of this many units on a device with
    /// subgroups of this many lanes.
    pub(crate) fn within(self, n_units: usize, subgroup: u32) -> Layout {
        let most = virtual_lanes(n_units);
        // Lanes stand for at most eight.
        let lanes = 1 << self.lanes.min(subgroup).clamp((most / 8).max(1), most).ilog2();
        let steps = u32::try_from(n_units.div_ceil(most as usize)).unwrap_or(1).max(1);
        let depth = self.depth.clamp(1, 4).min(steps);
        let rows = self.rows.clamp(1, 8);
        let threads = self.threads.clamp(THREADS, 2 * THREADS).next_power_of_two();
        Layout { form: self.form, lanes, rows, depth, threads, groups: self.groups.max(1) }
    }
}

/// Whether dots of integers of a unit with activations of this many digits are exact in floats:
/// products that add up to less than 2^24. `largest_sum` is that of the integers.
pub(crate) fn is_exact_in_floats(largest_sum: u32, n_limbs: u32) -> bool {
    let largest_activation = if n_limbs == 1 { 127 } else { 127 * 256 };
    u64::from(largest_sum) * largest_activation < 1 << 24
}
