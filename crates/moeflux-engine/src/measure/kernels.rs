//! Every kernel of a model, timed where it runs: its own shapes, its own
//! weights, and between two calls everything else that a token needs, so that
//! caches hold what they hold in earnest.

use std::collections::BTreeMap;

use moeflux_backend::ActivationPrecision;
use moeflux_backend::profiling::{OpKey, OpSample, WeightFacts};
use moeflux_core::TokenId;
use moeflux_core::quant::MatrixFormat;

use super::bound::Products;
use super::run::step;
use super::{Machine, Spread};
use crate::engine::Engine;
use crate::engine::meter::Meter;
use crate::error::EngineError;
use crate::format_name::format_name;
use crate::memory_probe::MemoryProbe;
use crate::sampler::likeliest_token;

/// How many steps a model runs with a number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSteps {
    /// Rows of a step.
    pub rows: usize,
    /// Steps.
    pub n_steps: usize,
}

/// A kernel with one number of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// What it computes: the names of its weights, or of the op.
    pub name: String,
    /// Outputs and inputs of its matrices, and how these are stored.
    pub shape: String,
    /// Rows of the step.
    pub rows: usize,
    /// Calls that were timed.
    pub n_calls: usize,
    /// Microseconds of a call.
    pub us: Spread,
    /// Thousand million bytes a second, of weights, caches and states; the
    /// median. `None` where the bytes are not counted.
    pub gb_s: Option<f64>,
    /// Thousand million operations a second, two for each product; the median.
    pub gop_s: Option<f64>,
    /// Share of the time that the memory's limit alone would take.
    pub memory_share: Option<f64>,
    /// Share of the time that the limit of the arithmetic units alone would
    /// take, products of two-digit inputs counted twice.
    pub arithmetic_share: Option<f64>,
}

/// The rounding of activations to integers, which is part of the products.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantise {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Thousand million bytes of activations a second.
    pub gb_s: f64,
}

/// Runs a model with every number of rows, one behind the other in one session,
/// so that those that come last attend to all before. `None` where the engine
/// was not opened with [`EngineOptions::timed`](crate::EngineOptions::timed).
///
/// # Errors
/// Where the context or a chunk is too small, or a step fails.
pub fn kernels(
    engine: &Engine,
    tokens: &[TokenId],
    steps: &[KernelSteps],
    machine: &Machine,
) -> Result<Option<Vec<Kernel>>, EngineError> {
    let Some(meter) = engine.meter() else { return Ok(None) };
    let down = {
        let core = engine.core();
        let layer = core.experts.bank().layers.iter().flatten().next();
        layer.map(|layer| layer.layout.down)
    };
    let expert_shape = down.map_or(String::new(), |matrix| {
        format!("3 × {} × {}, {}", matrix.rows, matrix.cols, format_name(matrix.format))
    });
    let expert_format = down.map(|matrix| matrix.format);
    let weights = meter.weights();
    let work = Kernels { meter, weights, machine, expert_shape, expert_format };
    let mut session = engine.session();
    let mut tokens = tokens.iter().copied().cycle();
    let mut all = Vec::new();
    for KernelSteps { rows, n_steps } in steps {
        let mut chunk = || tokens.by_ref().take(*rows).collect::<Vec<TokenId>>();
        // The first step finds experts and caches as others left them.
        let mut next = likeliest_token(&session.eval_prompt(&chunk())?);
        meter.stopwatch.start();
        for _ in 0..*n_steps {
            if *rows == 1 {
                next = step(&mut session, next)?;
            } else {
                session.eval_prompt(&chunk())?;
            }
        }
        all.extend(work.lines(*rows, meter.stopwatch.stop().ops));
    }
    Ok(Some(all))
}

/// Rounding a model's hidden state.
pub fn quantise(engine: &Engine, probe: &MemoryProbe, rows: &[usize]) -> Vec<Quantise> {
    let cols = engine.shape().hidden.next_multiple_of(64);
    let digits = match engine.meter().map(|meter| meter.inputs) {
        Some(ActivationPrecision::Int8) => 1,
        _ => 2,
    };
    let one = |rows: &usize| {
        let gb_s = probe.limits().quantise_gb_s(*rows, cols, digits);
        Quantise { rows: *rows, cols, gb_s }
    };
    rows.iter().map(one).collect()
}

struct Kernels<'a> {
    meter: &'a Meter,
    weights: Vec<WeightFacts>,
    machine: &'a Machine,
    /// Of the first layer that has experts.
    expert_shape: String,
    expert_format: Option<MatrixFormat>,
}

/// A call, and the nanoseconds that it would take if only arithmetic took time.
type Call = (OpSample, f64);

impl Kernels<'_> {
    fn lines(
        &self,
        rows: usize,
        ops: impl IntoIterator<Item = (OpKey, Vec<OpSample>)>,
    ) -> Vec<Kernel> {
        let mut groups: BTreeMap<(usize, String, String), Vec<Call>> = BTreeMap::new();
        for (key, samples) in ops {
            let order = ORDER.iter().position(|order| *order == key.op).unwrap_or(ORDER.len());
            for sample in samples {
                let shape = self.shape(&key, &sample);
                let group = groups.entry((order, self.name(&key), shape)).or_default();
                group.push((sample, self.ideal(&key, &sample)));
            }
        }
        let line =
            |((_, name, shape), samples): (_, Vec<_>)| self.line(rows, name, shape, &samples);
        groups.into_iter().map(line).collect()
    }

    fn line(&self, rows: usize, name: String, shape: String, calls: &[Call]) -> Kernel {
        let rate = |part: &dyn Fn(&Call) -> f64| {
            let per_call = calls.iter().map(|call| part(call) / call.0.nanoseconds.max(1) as f64);
            Spread::of(per_call).map(|call| call.median).filter(|call| *call > 0.0)
        };
        let gb_s = rate(&|call| call.0.bytes as f64);
        let memory = self.machine.memory_gb_s[1].max(f64::MIN_POSITIVE);
        Kernel {
            name,
            shape,
            rows,
            n_calls: calls.len(),
            us: Spread::of(calls.iter().map(|call| call.0.nanoseconds as f64 / 1e3))
                .unwrap_or_default(),
            gb_s,
            gop_s: rate(&|call| 2.0 * call.0.macs as f64),
            memory_share: gb_s.map(|rate| rate / memory),
            arithmetic_share: rate(&|call| call.1),
        }
    }

    /// The names of an op's weights, without their layer and what they share.
    fn name(&self, key: &OpKey) -> String {
        let mut parts: Vec<&str> = Vec::new();
        let mut module = "";
        for weight in &key.weights {
            let name = self.meter.names.get(weight.0 as usize).map_or("", String::as_str);
            let name = without_layer(name);
            let (prefix, last) = name.rsplit_once('.').unwrap_or(("", name));
            let part = if prefix == module && !parts.is_empty() { last } else { name };
            module = prefix;
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        match (key.op, parts.is_empty()) {
            ("experts", _) => String::from("routed experts"),
            ("project" | "logits", false) => parts.join(" + "),
            (op, true) => op.replace('_', " "),
            (op, false) => format!("{} {}", op.replace('_', " "), parts.join(" + ")),
        }
    }

    fn shape(&self, key: &OpKey, sample: &OpSample) -> String {
        let facts = |weight: &moeflux_backend::Weight| self.weights.get(weight.0 as usize);
        let all: Vec<&WeightFacts> = key.weights.iter().filter_map(facts).collect();
        match (key.op, all.as_slice()) {
            ("experts", _) => self.expert_shape.clone(),
            ("embed", _) => String::new(),
            ("attention", _) | ("select_positions", _) => String::new(),
            (_, []) => format!("{} KiB", sample.bytes.div_ceil(1024)),
            (_, [first, ..]) => {
                let outputs: usize = all.iter().map(|weight| weight.rows).sum();
                let mut formats: Vec<String> =
                    all.iter().map(|weight| format_name(weight.format)).collect();
                formats.dedup();
                format!("{outputs} × {}, {}", first.cols, formats.join(" and "))
            }
        }
    }

    /// Nanoseconds of a call if only arithmetic took time.
    fn ideal(&self, key: &OpKey, sample: &OpSample) -> f64 {
        let facts = |weight: &moeflux_backend::Weight| self.weights.get(weight.0 as usize);
        let all: Vec<&WeightFacts> = key.weights.iter().filter_map(facts).collect();
        let elements = |weight: &WeightFacts| (weight.rows * weight.cols) as f64;
        let total: f64 = all.iter().copied().map(elements).sum();
        let macs = sample.macs as f64;
        let products =
            |macs, format, inputs| Products { macs, format, inputs }.nanoseconds(self.machine);
        if key.op == "experts" {
            return products(macs, self.expert_format, self.meter.inputs);
        }
        if total == 0.0 {
            return products(macs, None, ActivationPrecision::F32);
        }
        let part = |weight: &&WeightFacts| {
            products(macs * elements(weight) / total, Some(weight.format), weight.inputs)
        };
        all.iter().map(part).sum()
    }
}

/// Ops in the order in which they are listed; others follow.
const ORDER: [&str; 8] = [
    "project",
    "head_product",
    "experts",
    "logits",
    "attention",
    "delta_rule",
    "causal_conv",
    "rms_norm",
];

/// A name of a layer's tensor, without the layer.
fn without_layer(name: &str) -> &str {
    let Some(rest) = name.strip_prefix("layers.") else { return name };
    rest.split_once('.').map_or(name, |parts| parts.1)
}
