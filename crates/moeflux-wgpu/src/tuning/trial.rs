//! Products tried out on weights that mean nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moeflux_backend::{Buf, Cols, DeviceError, Ops};
use moeflux_core::SplitMix64;

use crate::commands::read::wait;
use crate::device::buffer::Mem;
use crate::device::context::Context;
use crate::layouts::product::{Form, Layout, Tiles};
use crate::layouts::table::{Choice, Key, ProductShape};
use crate::ops::matmul::repeated::{
    Repeated, RepeatedRows, current_layout, effective_layout, plain_layout, project_repeated,
};
use crate::self_test::coop_matrix::best_tiles;
use crate::state::gpu::Wgpu;

/// Weights that measurements go round, so that no cache keeps them.
const BYTES: u64 = 256 << 20;

/// Bytes of such weights on a software device, which memory does not hold back.
const FEW_BYTES: u64 = 8 << 20;

/// Of these, drawn by chance.
const PATTERN: u64 = 4 << 20;

/// How long a device works before anything counts: the clocks of one that
/// waited are low at first.
const WARM: Duration = Duration::from_millis(60);

/// Seconds of kernels between two looks at the device's clock, and at the
/// host's, of which a wait takes some.
const SECONDS: f64 = 0.4e-3;
const SECONDS_BY_HOST: f64 = 3e-3;

/// Most kernels between two looks.
const MAX_RUNS: f64 = 64.0;

/// Rounds of all candidates in turns, the best of which counts.
const ROUNDS: usize = 3;

/// A layout has to be so much faster than the plain one.
const GAIN: f64 = 0.97;

/// A backend with a buffer of weights.
pub(crate) struct Trials {
    b: Wgpu,
    weights: Mem,
    /// By rows and width: whether it is written, and what was made before.
    bufs: HashMap<(bool, usize, usize), Buf>,
}

/// A product whose weights are taken from all over the buffer.
pub(crate) struct Trial {
    repeated: Repeated,
    x: Cols,
    out: Buf,
    x_rows: usize,
    n_runs: usize,
}

impl Trial {
    fn run(&self, b: &mut Wgpu, nth: usize) {
        let rows = RepeatedRows { x: self.x, out: self.out, x_rows: self.x_rows };
        project_repeated(b, &self.repeated, nth, rows);
    }
}

impl Trials {
    /// `None` where there is no memory for it.
    pub(crate) fn new(context: &Arc<Context>, tiles: Tiles) -> Result<Option<Trials>, DeviceError> {
        let is_software = context.facts().is_software();
        let bytes = if is_software { FEW_BYTES } else { BYTES };
        let bytes = bytes.min(context.max_binding_bytes());
        let Some(weights) = context.try_storage(bytes, "trial") else { return Ok(None) };
        let weights = Mem::new(weights);
        let mut b = Wgpu::with_tiles(Arc::clone(context), Some(0), tiles);
        let Some(pattern) = context.try_storage(PATTERN, "pattern") else { return Ok(None) };
        let pattern = Mem::new(pattern);
        b.encoder.write(&pattern, 0, &pattern_bytes());
        for at in (0..bytes).step_by(PATTERN as usize) {
            b.encoder.copy(pattern.at(0), weights.at(at), PATTERN.min(bytes - at));
        }
        wait(&mut b.encoder)?;
        Ok(Some(Trials { b, weights, bufs: HashMap::new() }))
    }

    /// Prepares a product with this many rows of activations; one that is larger than the buffer
    /// has fewer rows of its matrices. `None` where not even one row fits.
    pub(crate) fn prepare(&mut self, shape: &ProductShape, x_rows: usize) -> Option<Trial> {
        let repeated = Repeated::fit(shape, &self.weights)?;
        let shape = repeated.shape;
        let x = self.buf(false, x_rows, shape.cols);
        let out = self.buf(true, x_rows, shape.n * shape.rows);
        let x = Cols { buf: x, start: 0, len: shape.cols };
        Some(Trial { repeated, x, out, x_rows, n_runs: 1 })
    }

    /// A buffer of that size; activations have values.
    fn buf(&mut self, is_out: bool, rows: usize, width: usize) -> Buf {
        if let Some(buf) = self.bufs.get(&(is_out, rows, width)) {
            return *buf;
        }
        let buf = self.b.alloc(rows, width);
        if !is_out {
            let values: Vec<f32> = (0..rows * width).map(|i| (i as f32 * 0.37).sin()).collect();
            self.b.write(buf, &values);
        }
        self.bufs.insert((is_out, rows, width), buf);
        buf
    }

    /// Seconds of a product in a layout, or in the one that it has anyway.
    pub(crate) fn seconds(
        &mut self,
        trial: &Trial,
        layout: Option<Layout>,
    ) -> Result<f64, DeviceError> {
        self.b.fix_layout(layout);
        let run = &mut |b: &mut Wgpu| (0..trial.n_runs).for_each(|i| trial.run(b, i));
        Ok(self.b.seconds(run)? / trial.n_runs as f64)
    }

    /// Chooses how often the product runs between two looks at the clock.
    pub(crate) fn calibrate(&mut self, trial: &mut Trial) -> Result<(), DeviceError> {
        let has_clock = self.b.encoder.context().has_clock;
        let wanted = if has_clock { SECONDS } else { SECONDS_BY_HOST };
        trial.n_runs = 1;
        // Compiled first.
        self.seconds(trial, None)?;
        let mut one = self.seconds(trial, None)?;
        if one < wanted {
            trial.n_runs = 4;
            one = self.seconds(trial, None)?.max(1e-7);
        }
        trial.n_runs = (wanted / one).clamp(1.0, MAX_RUNS) as usize;
        Ok(())
    }

    /// Seconds of each of some layouts, in turns.
    fn compare(&mut self, trial: &Trial, layouts: &[Layout]) -> Result<Vec<f64>, DeviceError> {
        let mut best = vec![f64::INFINITY; layouts.len()];
        for _ in 0..ROUNDS {
            for (best, layout) in best.iter_mut().zip(layouts) {
                *best = best.min(self.seconds(trial, Some(*layout))?);
            }
        }
        Ok(best)
    }

    /// Compiles what layouts need, as far as time allows; false where it does
    /// not.
    fn compile(
        &mut self,
        trial: &Trial,
        layouts: &[Layout],
        deadline: Option<Instant>,
    ) -> Result<bool, DeviceError> {
        for layout in layouts {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            self.b.fix_layout(Some(*layout));
            trial.run(&mut self.b, 0);
        }
        wait(&mut self.b.encoder)?;
        Ok(true)
    }

    fn warm(&mut self, shape: &ProductShape) -> Result<(), DeviceError> {
        let Some(mut trial) = self.prepare(shape, 1) else { return Ok(()) };
        self.calibrate(&mut trial)?;
        let start = Instant::now();
        while start.elapsed() < WARM {
            self.seconds(&trial, None)?;
        }
        Ok(())
    }

    /// The best layout of a product; `None` where time does not suffice.
    fn choose(
        &mut self,
        shape: &ProductShape,
        deadline: Option<Instant>,
    ) -> Result<Option<Choice>, DeviceError> {
        let Some(mut trial) = self.prepare(shape, 1) else { return Ok(None) };
        let plain = self.effective(shape, plain_layout(shape));
        let first = self.distinct(shape, plain, candidates());
        if !self.compile(&trial, &first, deadline)? {
            return Ok(None);
        }
        self.b.fix_layout(Some(plain));
        self.calibrate(&mut trial)?;
        let times = self.compare(&trial, &first)?;
        let best = first[lowest(&times)];
        // What is around the best, and the plain one again.
        let second = self.distinct(shape, plain, std::iter::once(best).chain(around(best)));
        if !self.compile(&trial, &second, deadline)? {
            return Ok(None);
        }
        let times = self.compare(&trial, &second)?;
        let at = lowest(&times);
        let at = if times[at] < GAIN * times[0] { at } else { 0 };
        Ok(Some(Choice { layout: second[at], us: times[at] * 1e6, plain_us: times[0] * 1e6 }))
    }

    fn effective(&self, shape: &ProductShape, layout: Layout) -> Layout {
        effective_layout(self.b.encoder.context(), shape, layout)
    }

    /// The plain layout first, then all others, each once.
    fn distinct(
        &self,
        shape: &ProductShape,
        plain: Layout,
        more: impl Iterator<Item = Layout>,
    ) -> Vec<Layout> {
        let mut all = vec![plain];
        for layout in more.map(|layout| self.effective(shape, layout)) {
            if !all.contains(&layout) {
                all.push(layout);
            }
        }
        all
    }
}

/// Times products as models have them, on weights that mean nothing.
pub struct ProductProbe(Trials);

/// How long a product takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductTime {
    /// What was computed: fewer rows than asked for where these did not fit.
    pub shape: ProductShape,
    /// Of its kernel, once its inputs are rounded; the best.
    pub seconds: f64,
    /// How the kernel is laid out, where there are few rows of activations.
    pub layout: Option<Layout>,
}

impl ProductTime {
    /// Operations with this many rows of activations, two for each product.
    pub fn flop(&self, x_rows: usize) -> f64 {
        let ProductShape { rows, cols, n, .. } = self.shape;
        2.0 * (x_rows * n * rows * cols) as f64
    }
}

/// Seconds of kernels of which the best counts: until none was better by such a share for this
/// many, as clocks of a device that waited for a kernel to be compiled are low at first, and no
/// more than this many more by the clock of the host.
const PROBED: f64 = 0.03;
const BETTER: f64 = 0.02;
const MAX_PROBED: Duration = Duration::from_millis(500);

impl ProductProbe {
    /// `None` where the device has no memory for it.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn new(context: &Arc<Context>) -> Result<Option<ProductProbe>, DeviceError> {
        Ok(Trials::new(context, best_tiles(context))?.map(ProductProbe))
    }

    /// Times a product with this many rows of activations; `None` for matrices without an
    /// element.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn time(
        &mut self,
        shape: &ProductShape,
        x_rows: usize,
    ) -> Result<Option<ProductTime>, DeviceError> {
        let trials = &mut self.0;
        let Some(mut trial) = trials.prepare(shape, x_rows) else { return Ok(None) };
        trials.calibrate(&mut trial)?;
        let (start, mut steady, mut best) = (Instant::now(), 0.0, f64::INFINITY);
        while best.is_infinite() || (steady < PROBED && start.elapsed() < MAX_PROBED) {
            let seconds = trials.seconds(&trial, None)?;
            let all = seconds * trial.n_runs as f64;
            steady = if seconds < best * (1.0 - BETTER) { 0.0 } else { steady + all };
            best = best.min(seconds);
        }
        let shape = trial.repeated.shape;
        let layout = current_layout(&trials.b, &shape, x_rows);
        Ok(Some(ProductTime { shape, seconds: best.max(1e-9), layout }))
    }
}

fn pattern_bytes() -> Vec<u8> {
    let mut random = SplitMix64::new(1);
    (0..PATTERN / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

fn lowest(times: &[f64]) -> usize {
    (0..times.len()).min_by(|a, b| times[*a].total_cmp(&times[*b])).unwrap_or(0)
}

/// Rows and depths in both forms.
fn candidates() -> impl Iterator<Item = Layout> {
    let bytes = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1)];
    let floats = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)];
    let bytes = bytes.into_iter().map(|layout| (Form::Bytes, layout));
    let floats = floats.into_iter().map(|layout| (Form::Floats, layout));
    let layout =
        |(form, (rows, depth))| Layout { form, lanes: 32, rows, depth, threads: 128, groups: 2112 };
    bytes.chain(floats).map(layout)
}

/// Other workgroups, and lanes that share a row by half as many.
fn around(best: Layout) -> impl Iterator<Item = Layout> {
    [
        Layout { groups: u32::MAX, ..best },
        Layout { groups: 1056, ..best },
        Layout { threads: 2 * best.threads, ..best },
        Layout { threads: 2 * best.threads, groups: u32::MAX, ..best },
        Layout { lanes: best.lanes / 2, ..best },
    ]
    .into_iter()
}

/// Measures products until the deadline, those that come first first.
pub(super) fn measure(
    context: &Arc<Context>,
    wanted: &[(Key, ProductShape)],
    deadline: Instant,
) -> Result<Vec<(Key, Choice)>, DeviceError> {
    let mut all = Vec::new();
    let Some(mut trials) = Trials::new(context, best_tiles(context))? else { return Ok(all) };
    if let Some((_, shape)) = wanted.first() {
        trials.warm(shape)?;
    }
    for (key, shape) in wanted {
        // The first is not given up, so that something is known the next time, however long
        // kernels take to compile.
        if !all.is_empty() && Instant::now() >= deadline {
            break;
        }
        let deadline = (!all.is_empty()).then_some(deadline);
        if let Some(choice) = trials.choose(shape, deadline)? {
            all.push((*key, choice));
        }
    }
    Ok(all)
}
