//! Measures the kernels of a GPU against how fast it reads and copies:
//! `speed [--gpu N] [--small] [--tuned] [--tune] [--many] [--blocks [TYPE...]]`. `--small` is for
//! software devices; `--tuned` has the device tuned before, `--tune` tries every
//! layout of the matrix-vector kernel, `--many` measures products with many rows
//! of activations alone, `--blocks` those with types of ggml, all or those named.
#![expect(clippy::print_stdout, reason = "an example that prints tables")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use moeflux_backend::{
    ActivationPrecision, Buf, Cols, ExpertCall, ExpertFunction, ExpertRow, Experts, HostMatrix,
    Ops, Projection, Route, Scoring, Weight,
};
use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat};
use moeflux_core::{
    Expert, ExpertId, ExpertKey, ExpertLayout, ExpertMemory, GateUp, HostBuf, LayerIdx,
    MatrixLayout, PartSpan, SplitMix64,
};
use moeflux_wgpu::{
    BandwidthProbe, Context, Form, Layout, ProductShape, Tiles, TuneOptions, Wgpu, new_backend,
    tune, uses_coop_matrix,
};

const FORMAT: MatrixFormat = MatrixFormat::Affine(Affine::new(4, 64, Float::BF16));
const DENSE: MatrixFormat = MatrixFormat::Dense(Float::BF16);

/// Runs of which the best counts, where no clock of the device does.
const ROUNDS: usize = 5;

/// Bytes of weights that measurements go round, so that no cache keeps them.
const CYCLED: usize = 256 << 20;

/// Bytes that are drawn by chance, then repeated.
const PATTERN: usize = 1 << 20;

/// How long all shapes may be tuned for.
const TUNING: Duration = Duration::from_secs(60);

/// Most kernels that are recorded before the device begins.
const RECORDED: usize = 192;

/// A product of decode: `n` matrices of a shape in one kernel.
struct Case {
    name: &'static str,
    n: usize,
    rows: usize,
    cols: usize,
}

const fn case(name: &'static str, n: usize, rows: usize, cols: usize) -> Case {
    Case { name, n, rows, cols }
}

/// Large matrices of all widths, then what the models have.
const CASES: [Case; 20] = [
    case("large", 1, 524_288, 512),
    case("large", 1, 262_144, 1024),
    case("large", 1, 131_072, 2048),
    case("large", 1, 65_536, 4096),
    case("large", 1, 37_376, 7168),
    case("A3B gate+up x8", 16, 512, 2048),
    case("A3B down x8", 8, 2048, 512),
    case("A3B q and gate", 1, 8192, 2048),
    case("A3B o", 1, 2048, 4096),
    case("A3B head", 1, 248_320, 2048),
    case("A17B gate+up x10", 20, 1024, 4096),
    case("A17B down x10", 10, 4096, 1024),
    case("A17B q and gate", 1, 16_384, 4096),
    case("A17B o", 1, 4096, 8192),
    case("A17B head", 1, 248_320, 4096),
    case("Cogito gate+up x8", 16, 2048, 7168),
    case("Cogito down x8", 8, 7168, 2048),
    case("Cogito q_b", 1, 24_576, 1536),
    case("Cogito o", 1, 7168, 16_384),
    case("Cogito head", 1, 129_280, 7168),
];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|arg| arg == "--gpu");
    let index = at.and_then(|at| args.get(at + 1)).and_then(|index| index.parse().ok());
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let context = match Context::open(index) {
        Ok(context) => context,
        Err(err) => return println!("{err}"),
    };
    println!("{:?}", context.facts());
    let speed = Speed { context, scale: if has("--small") { 64 } else { 1 } };
    if has("--many") {
        return speed.matmul();
    }
    let limit = speed.streams();
    let types: Vec<BlockType> = args.iter().filter_map(|name| BlockType::by_name(name)).collect();
    if has("--blocks") {
        if has("--tuned") {
            speed.tuned(&block_formats(&types));
        }
        return speed.blocks(limit, &types);
    }
    if has("--tuned") {
        speed.tuned(&[FORMAT, DENSE]);
    }
    if has("--tune") {
        speed.tune(limit);
    } else {
        speed.matvec(limit);
        speed.rows(limit);
        speed.experts(limit);
        speed.matmul();
        speed.blocks(limit, &[]);
    }
}

/// Four bits, then these types of ggml, or all.
fn block_formats(types: &[BlockType]) -> Vec<MatrixFormat> {
    let is_wanted = |block_type: &BlockType| types.is_empty() || types.contains(block_type);
    let wanted = BlockType::all().filter(is_wanted).map(MatrixFormat::Ggml);
    std::iter::once(FORMAT).chain(wanted).collect()
}

fn name(format: MatrixFormat) -> &'static str {
    match format {
        MatrixFormat::Ggml(it) => it.name(),
        _ => "4 bits",
    }
}

struct Speed {
    context: Arc<Context>,
    /// By which everything is smaller.
    scale: usize,
}

impl Speed {
    fn backend(&self) -> Wgpu {
        new_backend(Arc::clone(&self.context), None)
    }

    /// What the device can do at all; gives GB/s of reading.
    fn streams(&self) -> f64 {
        let mut b = self.backend();
        let bytes = (1 << 30) / self.scale as u64;
        let mut gb_s = |stream| b.bandwidth_gb_s(stream, bytes).expect("the device works");
        let command = gb_s(BandwidthProbe::CopyCommand);
        let (copy, read) = (gb_s(BandwidthProbe::CopyKernel), gb_s(BandwidthProbe::ReadKernel));
        println!(
            "GB/s: command that copies {command:.0}, kernel that copies {copy:.0}, that reads {read:.0}"
        );
        round_trips(&mut b);
        read
    }

    /// Has the device find layouts for all products, and shows how long it takes.
    fn tuned(&self, formats: &[MatrixFormat]) {
        let mut shapes = Vec::new();
        let all_inputs =
            [ActivationPrecision::Int16, ActivationPrecision::Int8, ActivationPrecision::F32];
        let all = formats.iter().flat_map(|format| all_inputs.map(|inputs| (*format, inputs)));
        let is_rounded = |inputs| inputs != ActivationPrecision::F32;
        for (format, inputs) in
            all.filter(|(format, inputs)| *format != DENSE || !is_rounded(*inputs))
        {
            shapes.extend(CASES.iter().map(|case| {
                let rows = (case.rows / self.scale).max(8);
                ProductShape { format, inputs, rows, cols: case.cols, n: case.n }
            }));
        }
        let options = TuneOptions {
            cache: None,
            budget: TUNING,
            later_budget: TUNING,
            includes_software: self.scale > 1,
        };
        let tuning = tune(&self.context, &shapes, &options).expect("the device works");
        println!("{tuning:?}");
    }

    fn matvec(&self, limit: f64) {
        println!(
            "\nmatrix-vector, one row, GB/s of weights and share of reading; 4 bits but for the last"
        );
        println!(
            "  {:<18} {:>7} {:>6}  {:>7}  {:<13} {:<13} {:<13} {:<13} {:<13} bf16 x f32",
            "", "rows", "cols", "us", "2 digits", "2 as floats", "1 digit", "1 as floats", "f32"
        );
        for case in &CASES {
            let mut columns = Vec::new();
            let forms = [Some(Form::Bytes), Some(Form::Floats)];
            for (format, inputs, forms) in [
                (FORMAT, ActivationPrecision::Int16, &forms[..]),
                (FORMAT, ActivationPrecision::Int8, &forms[..]),
                (FORMAT, ActivationPrecision::F32, &forms[..1]),
                (DENSE, ActivationPrecision::F32, &forms[..1]),
            ] {
                let mut set = Set::new(self, case, format, inputs);
                for form in forms {
                    set.form = *form;
                    columns.push((set.bytes as f64, set.seconds(1)));
                }
            }
            let us = columns[0].1 * 1e6;
            let column = |(bytes, seconds): &(f64, f64)| share(bytes / seconds / 1e9, limit);
            let line: String = columns.iter().map(column).collect();
            let Case { name, n, rows, cols } = case;
            println!("  {name:<18} {:>7} {cols:>6}  {us:>7.1}  {line}", n * rows);
        }
    }

    /// Types of ggml next to four bits, at the shapes of A3B.
    fn blocks(&self, limit: f64, types: &[BlockType]) {
        let cases: Vec<&Case> =
            CASES.iter().filter(|case| case.name.starts_with("A3B") || case.cols == 2048).collect();
        println!("\nblocks of ggml, one row, GB/s of weights and share of reading");
        println!("  {:<8} {:<8}", "", "");
        for inputs in [ActivationPrecision::Int16, ActivationPrecision::Int8] {
            let names: String = cases.iter().map(|case| format!("{:<14}", case.name)).collect();
            println!(
                "  {:<9} {names}",
                if inputs == ActivationPrecision::Int8 { "1 digit" } else { "2 digits" }
            );
            for format in block_formats(types) {
                let time = |case: &&Case| {
                    let mut set = Set::new(self, case, format, inputs);
                    share(set.bytes as f64 / set.seconds(1) / 1e9, limit)
                };
                let line: String = cases.iter().map(time).collect();
                println!("  {:<9} {line}", name(format));
            }
        }
        println!(
            "\na layer of A3B's experts, 2 digits, one row, and 2,048 rows of 8,192 x 2,048, TFLOP/s"
        );
        println!("of 2 digits and of 1");
        for format in block_formats(types) {
            let mut b = self.backend();
            let n = if self.scale > 1 { 8 } else { 128 };
            let (seconds, bytes) = experts(&mut b, format, (2048, 512), (n, 8));
            let rows = 2048 / self.scale.min(16);
            let outputs = 8192 / self.scale.min(16);
            let of = |inputs| matmul(&mut self.backend(), format, (rows, outputs, 2048), inputs);
            let (two, one) = (of(ActivationPrecision::Int16), of(ActivationPrecision::Int8));
            let line = share(bytes / seconds / 1e9, limit);
            println!(
                "  {:<9} {:>7.1} us  {line}  {two:>7.2}  {one:>7.2}",
                name(format),
                seconds * 1e6
            );
        }
    }

    fn rows(&self, limit: f64) {
        println!("\nmatrix-vector, 2 digits, GB/s of weights at 1, 2, 4 and 8 rows of activations");
        for i in [0, 2, 3, 4, 7, 9, 15] {
            let case = &CASES[i];
            let mut set = Set::new(self, case, FORMAT, ActivationPrecision::Int16);
            let line: String = [1, 2, 4, 8]
                .map(|n| share(set.bytes as f64 / set.seconds(n) / 1e9, limit))
                .concat();
            println!("  {:<18} {:>7} {:>6}  {line}", case.name, case.n * case.rows, case.cols);
        }
    }

    fn experts(&self, limit: f64) {
        println!(
            "\na layer of experts, 2 digits, one row: K in one kernel, all kernels of the layer"
        );
        for (name, hidden, inner, k) in
            [("A3B", 2048, 512, 8), ("A17B", 4096, 1024, 10), ("Cogito", 7168, 2048, 8)]
        {
            let mut b = self.backend();
            let n = if self.scale > 1 { k } else { 16 * k };
            let (seconds, bytes) = experts(&mut b, FORMAT, (hidden, inner), (n, k));
            let line = share(bytes / seconds / 1e9, limit);
            println!("  {name:<10} K {k:>2}  {:>7.1} us  {line}", seconds * 1e6);
        }
    }

    fn matmul(&self) {
        println!("\nunits for matrices are used: {}", uses_coop_matrix(&self.context));
        println!("many rows of activations, 4 bits, TFLOP/s: 2 digits, 1 digit, f32");
        self.check_matmul();
        for (outputs, cols) in [(4096, 2048), (1024, 4096), (8192, 4096), (7168, 7168)] {
            let outputs = outputs / self.scale.min(16);
            for rows in [64, 256, 1024, 4096].map(|rows| rows / self.scale.min(16)) {
                let of =
                    |inputs| matmul(&mut self.backend(), FORMAT, (rows, outputs, cols), inputs);
                let (two, one) = (of(ActivationPrecision::Int16), of(ActivationPrecision::Int8));
                let full = if rows <= 1024 { of(ActivationPrecision::F32) } else { f64::NAN };
                println!(
                    "  {rows:>5} x {outputs:>5} x {cols:>5}  {two:>7.2}  {one:>7.2}  {full:>7.2}"
                );
            }
        }
    }

    /// What the kernel for many rows that the device has gives, against singles.
    fn check_matmul(&self) {
        for inputs in [ActivationPrecision::Int16, ActivationPrecision::Int8] {
            let outs = [None, Some(Tiles::F32)].map(|tiles| {
                let mut b = self.backend();
                b.fix_tiles(Tiles::CoopMatrix);
                if let Some(tiles) = tiles {
                    b.fix_tiles(tiles);
                }
                let weight = matrix(&mut b, 300, 2048, FORMAT, inputs);
                let (x, out) = (filled(&mut b, 200, 2048), filled(&mut b, 200, 300));
                b.project(200, x, &[Projection { weight, out }]);
                b.read(out.buf, 200).expect("the device works")
            });
            let largest = outs[1].iter().fold(0.0f32, |max, value| max.max(value.abs()));
            let differences = outs[0].iter().zip(&outs[1]).map(|(a, b)| (a - b).abs());
            let worst = differences.fold(0.0f32, f32::max);
            println!("  {inputs:?}: differs by {worst:e} where the largest is {largest:e}");
        }
    }

    fn tune(&self, limit: f64) {
        println!(
            "\nlayouts, the plain one and the best four: lanes, rows, depth, threads, workgroups"
        );
        for (inputs, name) in
            [(ActivationPrecision::Int16, "2 digits"), (ActivationPrecision::Int8, "1 digit")]
        {
            for case in &CASES {
                let mut set = Set::new(self, case, FORMAT, inputs);
                for layout in layouts() {
                    // Compiled before anything is measured.
                    set.layout = Some(layout);
                    set.run(1, 1);
                }
                set.layout = None;
                let plain = set.seconds(1);
                let mut all = Vec::new();
                let try_out = |set: &mut Set, all: &mut Vec<(f64, Layout)>, layout| {
                    set.layout = Some(layout);
                    all.push((set.seconds(1), layout));
                    all.sort_by(|a, b| a.0.total_cmp(&b.0));
                };
                for layout in layouts() {
                    try_out(&mut set, &mut all, layout);
                }
                for best in [all[0].1, all[1].1] {
                    for groups in [528, 1056, 2112, 4224] {
                        try_out(&mut set, &mut all, Layout { groups, ..best });
                    }
                }
                let gb_s = |seconds: f64| share(set.bytes as f64 / seconds / 1e9, limit);
                let mut line = format!("plain {}", gb_s(plain));
                for (seconds, layout) in &all[..4] {
                    let Layout { form: _, lanes, rows, depth, threads, groups } = layout;
                    let groups = if *groups == u32::MAX { 0 } else { *groups };
                    line +=
                        &format!("| {lanes} {rows} {depth} {threads} {groups} {}", gb_s(*seconds));
                }
                let n_rows = case.n * case.rows;
                println!("  {name} {:<18} {n_rows:>7} {:>6}  {line}", case.name, case.cols);
            }
        }
    }
}

fn layouts() -> Vec<Layout> {
    let mut all = Vec::new();
    for threads in [128, 256] {
        for (rows, depth) in [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (1, 4)] {
            let (form, lanes, groups) = (Form::Bytes, 32, u32::MAX);
            all.push(Layout { form, lanes, rows, depth, threads, groups });
        }
    }
    all
}

fn share(gb_s: f64, limit: f64) -> String {
    format!("{gb_s:>5.0} {:>4.0} %  ", 100.0 * gb_s / limit)
}

/// Copies of the matrices of a case, and what they are multiplied with.
struct Set {
    b: Wgpu,
    copies: Vec<Vec<Projection>>,
    x: Cols,
    /// Of one copy.
    bytes: usize,
    form: Option<Form>,
    layout: Option<Layout>,
}

impl Set {
    fn new(speed: &Speed, case: &Case, format: MatrixFormat, inputs: ActivationPrecision) -> Set {
        let mut b = speed.backend();
        let rows = (case.rows / speed.scale).max(8);
        let bytes = case.n * format.matrix_bytes(rows, case.cols);
        let n_copies = (CYCLED / speed.scale).div_ceil(bytes).clamp(1, RECORDED);
        let x = filled(&mut b, 8, case.cols);
        let y = b.alloc(8, case.n * rows);
        let mut copy = || {
            let one = |i: usize| Projection {
                weight: matrix(&mut b, rows, case.cols, format, inputs),
                out: Cols { buf: y, start: i * rows, len: rows },
            };
            (0..case.n).map(one).collect()
        };
        let copies = (0..n_copies).map(|_| copy()).collect();
        Set { b, copies, x, bytes, form: None, layout: None }
    }

    /// The time of a product with `n_rows` rows of activations.
    fn seconds(&mut self, n_rows: usize) -> f64 {
        let Set { b, copies, x, form, layout, .. } = self;
        b.fix_form(*form);
        b.fix_layout(*layout);
        let n = copies.len().next_multiple_of(2).max(4);
        let run = &mut |b: &mut Wgpu, i: usize| b.project(n_rows, *x, &copies[i % copies.len()]);
        b.best_seconds(n, run).expect("the device works")
    }

    fn run(&mut self, n: usize, n_rows: usize) {
        self.b.fix_layout(self.layout);
        for i in 0..n {
            self.b.project(n_rows, self.x, &self.copies[i % self.copies.len()]);
        }
        wait(&mut self.b, self.x.buf);
    }
}

/// What a layer's read-back costs, and a kernel in a row of many.
fn round_trips(b: &mut Wgpu) {
    let logits = filled(b, 1, 256);
    let scoring = Scoring::softmax(true);
    let route = Route { logits, top_k: 8, scoring };
    let us = best(&mut || {
        for _ in 0..50 {
            b.route(1, route).expect("the device works");
        }
    }) * 1e6;
    println!("route and read back: {:.1} µs", us / 50.0);
    let (x, y) = (filled(b, 1, 2048), filled(b, 1, 2048));
    let us = best(&mut || {
        for _ in 0..1000 {
            b.add(1, y, x);
        }
        wait(b, y.buf);
    }) * 1e6;
    println!("a small kernel among many: {:.2} µs", us / 1000.0);
}

fn wait(b: &mut Wgpu, buf: Buf) {
    b.read(buf, 1).expect("the device works");
}

/// Seconds of the fastest run, after one that does not count.
fn best(run: &mut dyn FnMut()) -> f64 {
    run();
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

fn filled(b: &mut Wgpu, rows: usize, width: usize) -> Cols {
    let buf = b.alloc(rows, width);
    let values: Vec<f32> = (0..rows * width).map(|i| (i as f32 * 0.37).sin()).collect();
    b.write(buf, &values);
    Cols { buf, start: 0, len: width }
}

/// Bytes of a pattern; parameters that are small.
fn bytes(len: usize, is_param: bool) -> HostBuf {
    let mut buf = HostBuf::zeroed(len);
    let mut random = SplitMix64::new(1);
    let drawn = len.min(PATTERN);
    for bytes in buf[..drawn].as_chunks_mut::<8>().0 {
        // 0x3c is the upper half of a BF16 near 0.01.
        let bits = random.next_u64();
        let word =
            if is_param { 0x3c00_3c00_3c00_3c00 | bits & 0x00ff_00ff_00ff_00ff } else { bits };
        *bytes = word.to_le_bytes();
    }
    let mut done = drawn;
    while done < len {
        let more = done.min(len - done);
        buf.copy_within(..more, done);
        done += more;
    }
    buf
}

fn matrix(
    b: &mut Wgpu,
    rows: usize,
    cols: usize,
    format: MatrixFormat,
    inputs: ActivationPrecision,
) -> Weight {
    let n = format.scale_bytes(rows, cols);
    let params = || (n > 0).then(|| bytes(n, true));
    let weight = bytes(rows * format.row_bytes(cols), format == DENSE);
    b.load_matrix(HostMatrix {
        rows,
        cols,
        format,
        inputs,
        weight,
        scales: params(),
        biases: params(),
    })
}

fn matmul(
    b: &mut Wgpu,
    format: MatrixFormat,
    (rows, outputs, cols): (usize, usize, usize),
    inputs: ActivationPrecision,
) -> f64 {
    let weight = matrix(b, outputs, cols, format, inputs);
    let (x, out) = (filled(b, rows, cols), filled(b, rows, outputs));
    let run = &mut |b: &mut Wgpu, _: usize| b.project(rows, x, &[Projection { weight, out }]);
    let seconds = b.best_seconds(4, run).expect("the device works");
    2.0 * (rows * outputs * cols) as f64 / seconds / 1e12
}

fn expert(id: usize, layout: &Arc<ExpertLayout>) -> Arc<Expert> {
    let memory = ExpertMemory::Owned { buf: bytes(layout.record_bytes(), true), starts: vec![0] };
    let id = u16::try_from(id).expect("few experts");
    let key = ExpertKey { layer: LayerIdx(0), expert: ExpertId(id) };
    Arc::new(Expert { key, layout: Arc::clone(layout), memory })
}

fn layout(format: MatrixFormat, hidden: usize, inner: usize) -> ExpertLayout {
    let mut at = 0;
    let mut part = |len| {
        let span = PartSpan { extent: 0, offset: at, len };
        at += len;
        span
    };
    let mut matrix = |rows, cols| MatrixLayout {
        rows,
        cols,
        format,
        weight: part(rows * format.row_bytes(cols)),
        scales: part(format.scale_bytes(rows, cols)),
        biases: part(format.bias_bytes(rows, cols)),
    };
    let (gate, up) = (matrix(inner, hidden), matrix(inner, hidden));
    let down = matrix(hidden, inner);
    ExpertLayout { extents: vec![at], gate_up: GateUp::Split { gate, up }, down }
}

/// Seconds of a layer of `k` of `n` experts that the device holds, and the bytes read.
fn experts(
    b: &mut Wgpu,
    format: MatrixFormat,
    (hidden, inner): (usize, usize),
    (n, k): (usize, usize),
) -> (f64, f64) {
    let layout = Arc::new(layout(format, hidden, inner));
    let all: Vec<Arc<Expert>> = (0..n).map(|id| expert(id, &layout)).collect();
    let (x, out) = (filled(b, 1, hidden), filled(b, k, hidden));
    let row = |slot| ExpertRow { row: 0, slot };
    let layers: Vec<Vec<ExpertCall>> = all
        .chunks(k)
        .map(|experts| {
            let calls = experts.iter().zip(0..);
            calls
                .map(|(expert, i)| ExpertCall { expert: Arc::clone(expert), rows: vec![row(i)] })
                .collect()
        })
        .collect();
    let run = &mut |b: &mut Wgpu, i: usize| {
        let (inputs, function, calls) =
            (ActivationPrecision::Int16, ExpertFunction::SWIGLU, &layers[i % layers.len()]);
        b.experts(Experts { out: out.buf, x, rows: 1, inputs, function, calls });
    };
    let seconds = b.best_seconds(2 * layers.len(), run).expect("the device works");
    (seconds, (k * layout.record_bytes()) as f64)
}
