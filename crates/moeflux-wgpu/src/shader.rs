//! The sources of the kernels and what is fixed when they are compiled.
//!
//! A kernel's text is `common.wgsl`, the decoders of weights where it uses
//! them, its constants, and its own file. Lines between `#if NAME` and `#end`
//! count where the constant of that name is not zero; `#else` turns that round.

use std::fmt::Write as _;

/// A kernel, up to its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shader {
    Elementwise,
    Norm,
    Rope,
    Round,
    Matvec,
    Matmul,
    Embed,
    HeadTransposed,
    StoreKv,
    Attention,
    MergeAttention,
    ScoreIndex,
    ChooseIndex,
    Conv,
    ConvHistory,
    PrepareDelta,
    Delta,
    Route,
    PlaceJobs,
    Activate,
    AddRows,
    Combine,
}

/// How many constants a kernel may have.
pub(crate) const MAX_CONSTS: usize = 10;

/// A kernel with its constants, in the order of [`Shader::consts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub(crate) shader: Shader,
    consts: [u32; MAX_CONSTS],
}

/// Constants of the decoders, for every kernel that reads weights.
const FORMAT: [&str; 3] = ["FORMAT", "BITS", "FLOATS"];

/// What stands before a kernel's own text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Uses {
    Nothing,
    /// The decoders of weights, which have constants of their own.
    Weights,
    /// The decoders of keys and values.
    Caches,
}

struct Facts {
    name: &'static str,
    source: &'static str,
    /// One letter a binding behind the parameters: `r`ead, or `w`ritten too.
    bindings: &'static str,
    consts: &'static [&'static str],
    uses: Uses,
}

macro_rules! facts {
    ($name:literal, $uses:ident, $bindings:literal, $consts:expr) => {
        Facts {
            name: $name,
            source: include_str!(concat!("shaders/", $name, ".wgsl")),
            bindings: $bindings,
            consts: $consts,
            uses: Uses::$uses,
        }
    };
}

impl Shader {
    fn facts(self) -> Facts {
        match self {
            Shader::Elementwise => facts!("elementwise", Nothing, "wrr", &["OP"]),
            Shader::Norm => facts!("norm", Nothing, "wrrrr", &["KIND", "IN_PLACE", "THREADS"]),
            Shader::Rope => facts!("rope", Nothing, "wr", &["ADJACENT"]),
            Shader::Round => {
                facts!("round", Nothing, "rww", &["GROUP", "DIGITS", "ORDER", "FLOAT"])
            }
            Shader::Matvec => facts!(
                "matvec",
                Weights,
                "rrrrrw",
                &["DIGITS", "LANES", "ROWS", "X_ROWS", "THREADS"]
            ),
            Shader::Matmul => facts!("matmul", Weights, "rrrw", &["TILE"]),
            Shader::Embed => facts!("embed", Weights, "rrw", &[]),
            Shader::HeadTransposed => facts!("head_transposed", Weights, "rrrw", &["X_ROWS"]),
            Shader::StoreKv => facts!("store_kv", Nothing, "wr", &["KV"]),
            Shader::Attention => {
                facts!("attention", Caches, "rrrrw", &["KV", "COLS", "MASKED", "Q_DIM"])
            }
            Shader::MergeAttention => facts!("merge_attention", Nothing, "rrw", &["SINKS"]),
            Shader::ScoreIndex => facts!("score_index", Caches, "rrrw", &["KV"]),
            Shader::ChooseIndex => facts!("choose_index", Nothing, "rw", &[]),
            Shader::Conv => facts!("conv", Nothing, "wrrr", &[]),
            Shader::ConvHistory => facts!("conv_history", Nothing, "wr", &[]),
            Shader::PrepareDelta => facts!("prepare_delta", Nothing, "rrrrrrww", &[]),
            Shader::Delta => facts!("delta", Nothing, "wrrrw", &["LANES", "KEPT"]),
            Shader::Route => facts!("route", Nothing, "rrw", &["SCORING"]),
            Shader::PlaceJobs => facts!("place_jobs", Nothing, "rrrw", &[]),
            Shader::Activate => {
                facts!("activate", Nothing, "rrrrw", &["CLAMPED", "BIASED", "ALTERNATES"])
            }
            Shader::AddRows => facts!("add_rows", Nothing, "wrr", &["CHOSEN"]),
            Shader::Combine => facts!("combine", Nothing, "wrrrr", &["SHARED", "GATED"]),
        }
    }

    /// The name of its file.
    pub(crate) fn name(self) -> &'static str {
        self.facts().name
    }

    pub(crate) fn bindings(self) -> &'static str {
        self.facts().bindings
    }
}

impl Variant {
    /// A kernel with its own constants, behind those of its format where it
    /// has one.
    pub(crate) fn new(shader: Shader, consts: &[u32]) -> Variant {
        let facts = shader.facts();
        let n = facts.consts.len() + format_consts(facts.uses).len();
        assert_eq!(consts.len(), n, "constants of {}", facts.name);
        let mut all = [0; MAX_CONSTS];
        all[..n].copy_from_slice(consts);
        Variant { shader, consts: all }
    }

    /// The kernel's text.
    pub(crate) fn source(self) -> String {
        let facts = self.shader.facts();
        let names: Vec<&str> =
            format_consts(facts.uses).iter().chain(facts.consts).copied().collect();
        let value = |name: &str| {
            let at = names.iter().position(|it| *it == name);
            self.consts[at.expect("conditions name constants")]
        };
        let mut text = String::new();
        for (name, value) in names.iter().zip(self.consts) {
            writeln!(text, "const {name}: u32 = {value}u;").expect("a string takes any text");
        }
        text.push_str(include_str!("shaders/common.wgsl"));
        match facts.uses {
            Uses::Nothing => {}
            Uses::Weights => text.push_str(include_str!("shaders/formats.wgsl")),
            Uses::Caches => text.push_str(include_str!("shaders/kv.wgsl")),
        }
        text.push_str(&preprocess(facts.source, &value));
        text
    }
}

fn format_consts(uses: Uses) -> &'static [&'static str] {
    if uses == Uses::Weights { &FORMAT } else { &[] }
}

/// Drops the lines that do not count.
fn preprocess(source: &str, value: &dyn Fn(&str) -> u32) -> String {
    let mut counts = vec![true];
    let mut text = String::with_capacity(source.len());
    for line in source.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["#if", name] => counts.push(value(name) != 0),
            ["#else"] => {
                let last = counts.last_mut().expect("there is one");
                *last = !*last;
            }
            ["#end"] => {
                counts.pop();
            }
            _ if counts.iter().all(|it| *it) => {
                text.push_str(line);
                text.push('\n');
            }
            _ => {}
        }
    }
    assert_eq!(counts.len(), 1, "every #if has its #end");
    text
}
