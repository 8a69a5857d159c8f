//! The sources of the kernels and what is fixed when they are compiled.
//!
//! A kernel's text is `common.wgsl`, the decoders of weights where it uses
//! them, its constants, and its own file, which `template` expands.

mod template;

use std::fmt::Write as _;

use self::template::{preprocess, value};

/// A kernel, up to its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shader {
    Elementwise,
    ElementwiseRounded,
    Norm,
    NormRounded,
    /// The same of a sum that is added up first.
    NormOfSum,
    Rope,
    Round,
    Matvec,
    /// The same of experts that the device chose.
    MatvecChosen,
    /// The same of activations that it computes itself.
    MatvecActivates,
    /// The same of inputs of which some are rounded.
    MatvecBoth,
    Matmul,
    Halves,
    MatmulHalves,
    Embed,
    HeadTransposed,
    StoreKv,
    Attention,
    AttentionRows,
    /// What the next one reads.
    HalveVectors,
    /// The same on units for matrices.
    AttentionHalves,
    MergeAttention,
    ScoreIndex,
    ChooseIndex,
    Conv,
    ConvHistory,
    ConvStep,
    CopyState,
    PrepareDelta,
    Delta,
    DeltaStep,
    /// The same with the convolution before it.
    DeltaMixer,
    Route,
    GroupRows,
    GroupJobs,
    Activate,
    ActivateRounded,
    AddRows,
    Combine,
    Stream,
    Place,
    Fetch,
    /// The same of experts that the device made room for.
    FetchChosen,
    Admit,
    Likeliest,
    Lead,
}

/// How many constants a kernel may have.
pub(crate) const MAX_CONSTS: usize = 21;

/// A kernel with its constants, in the order of [`Shader::consts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub(crate) shader: Shader,
    consts: [u32; MAX_CONSTS],
}

const MULTIPLY: &str = include_str!("shaders/multiply.wgsl");
const MULTIPLY_TILES: &str = include_str!("shaders/multiply_tiles.wgsl");
const ROUNDED: &str = include_str!("shaders/rounded.wgsl");
const ACTIVATION: &str = include_str!("shaders/activation.wgsl");
const SEEN: &str = include_str!("shaders/seen.wgsl");
const PRELUDE: &str = include_str!("shaders/prelude.wgsl");

/// Constants of the matrix-vector kernels.
const MATVEC: [&str; 11] = [
    "DIGITS", "FMA", "ALIGNED", "VLANES", "LANES", "ROWS", "X_ROWS", "DEPTH", "THREADS", "ONCE",
    "PACKED",
];

/// Constants of those that compute their activations.
const MATVEC_ACTIVATES: [&str; 18] = [
    "DIGITS",
    "FMA",
    "ALIGNED",
    "VLANES",
    "LANES",
    "ROWS",
    "X_ROWS",
    "DEPTH",
    "THREADS",
    "ONCE",
    "PACKED",
    "GROUP",
    "ORDER",
    "FLOAT",
    "COLS",
    "CLAMPED",
    "BIASED",
    "ALTERNATES",
];

/// Constants of a delta net in one kernel.
const DELTA_MIXER: [&str; 12] = [
    "WIDTH", "K_DIM", "KEPT", "V_DIM", "PASSES", "GROUP", "DIGITS", "ORDER", "FLOAT", "TAPS",
    "CHANNELS", "OWN",
];

/// Constants of a norm.
const NORM: [&str; 5] = ["KIND", "IN_PLACE", "THREADS", "PER", "ALIGNED"];

/// Constants of a norm that is rounded too.
const NORM_ROUNDED: [&str; 9] =
    ["KIND", "IN_PLACE", "THREADS", "PER", "ALIGNED", "GROUP", "DIGITS", "ORDER", "FLOAT"];

/// Constants of a norm of a sum.
const NORM_OF_SUM: [&str; 13] = [
    "KIND", "IN_PLACE", "THREADS", "PER", "ALIGNED", "GROUP", "DIGITS", "ORDER", "FLOAT", "SUM",
    "TOP_K", "SHARED", "GATED",
];

/// Constants of `matmul.wgsl`, see [`crate::layout::Singles`].
const SINGLES: [&str; 5] = ["X_TILE", "W_TILE", "X_FOURS", "STEP", "ALIGNED"];

/// Constants of `matmul_halves.wgsl`, see [`crate::layout::Halves`].
const HALVES: [&str; 8] =
    ["PARTS", "EMULATED", "X_TILE", "W_TILE", "X_FRAGS", "W_FRAGS", "STEP", "SUMMANDS"];

/// Constants of the decoders, for every kernel that reads weights.
const FORMAT: [&str; 3] = ["FORMAT", "BITS", "FLOATS"];

/// What stands before a kernel's own text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Uses {
    Nothing,
    /// How activations are rounded.
    Rounding,
    /// The same of what a workgroup has written.
    OwnRounding,
    /// The decoders of weights, which have constants of their own.
    Weights,
    /// The decoders of keys and values.
    Caches,
    /// These, what is attended to, and by whom.
    Attention,
    /// Who attends to what.
    Seen,
    /// The sums of the delta rule, and how activations are rounded.
    Quads,
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
            Shader::ElementwiseRounded => facts!(
                "elementwise",
                OwnRounding,
                "wrrww",
                &["OP", "GROUP", "DIGITS", "ORDER", "FLOAT"]
            ),
            Shader::Norm => facts!("norm", Nothing, "wrrrr", &NORM),
            Shader::NormRounded => facts!("norm", Rounding, "wrrrrww", &NORM_ROUNDED),
            Shader::NormOfSum => facts!("norm", Rounding, "wwrrrrrww", &NORM_OF_SUM),
            Shader::Rope => facts!("rope", Nothing, "wr", &["ADJACENT"]),
            Shader::Round => {
                facts!("round", Rounding, "rww", &["GROUP", "DIGITS", "ORDER", "FLOAT"])
            }
            Shader::Matvec => facts!("matvec", Weights, "rrrrrw", &MATVEC),
            Shader::MatvecChosen => facts!("matvec", Weights, "rrrrrwrr", &MATVEC),
            Shader::MatvecActivates => facts!("matvec", Weights, "rrrrrwrrr", &MATVEC_ACTIVATES),
            Shader::MatvecBoth => facts!("matvec", Weights, "rrrrrwr", &MATVEC),
            Shader::Matmul => facts!("matmul", Weights, "rrrw", &SINGLES),
            Shader::Halves => facts!("halves", Nothing, "rww", &["GROUP", "PARTS"]),
            Shader::MatmulHalves => facts!("matmul_halves", Weights, "rrrrrw", &HALVES),
            Shader::Embed => facts!("embed", Weights, "rrw", &[]),
            Shader::HeadTransposed => facts!("head_transposed", Weights, "rrrw", &["X_ROWS"]),
            Shader::StoreKv => facts!(
                "store_kv",
                Nothing,
                "wrrwrrr",
                &["KV", "K_DIM", "V_DIM", "DIM", "NORMED", "PAIRS", "ADJACENT", "ONE"]
            ),
            Shader::Attention => {
                facts!(
                    "attention",
                    Attention,
                    "rrrrrwwr",
                    &[
                        "KV", "WIDTH", "MASKED", "K_DIM", "V_DIM", "QUERIES", "STEPS", "LATER",
                        "FOURS", "PARTS", "COLS",
                    ]
                )
            }
            Shader::AttentionRows => {
                facts!(
                    "attention_rows",
                    Attention,
                    "rrrrrwwr",
                    &["KV", "WIDTH", "MASKED", "K_DIM", "V_DIM", "VC", "VP"]
                )
            }
            Shader::HalveVectors => {
                facts!("halve_vectors", Caches, "rrww", &["KV", "CACHED", "DIM", "PARTS"])
            }
            Shader::AttentionHalves => {
                facts!(
                    "attention_halves",
                    Seen,
                    "rrrrrwwr",
                    &["EMULATED", "MASKED", "K_DIM", "V_DIM", "PARTS", "SUBGROUPS"]
                )
            }
            Shader::MergeAttention => {
                facts!(
                    "merge_attention",
                    OwnRounding,
                    "rrwrrww",
                    &["SINKS", "GATED", "GROUP", "DIGITS", "ORDER", "FLOAT"]
                )
            }
            Shader::ScoreIndex => facts!("score_index", Caches, "rrrrw", &["KV"]),
            Shader::ChooseIndex => facts!("choose_index", Nothing, "rw", &[]),
            Shader::Conv => facts!("conv", Nothing, "wrrr", &[]),
            Shader::ConvHistory => facts!("conv_history", Nothing, "wr", &[]),
            Shader::ConvStep => facts!("conv_step", Nothing, "wrrw", &["KEPT"]),
            Shader::CopyState => facts!("copy_state", Nothing, "w", &[]),
            Shader::PrepareDelta => facts!("prepare_delta", Nothing, "rrrrrrww", &[]),
            Shader::Delta => {
                facts!("delta", Quads, "wrrrw", &["WIDTH", "K_DIM", "KEPT", "ROWS", "LOADS"])
            }
            Shader::DeltaStep => facts!(
                "delta_step",
                Quads,
                "wrrrrrrw",
                &["WIDTH", "K_DIM", "KEPT", "V_DIM", "PASSES"]
            ),
            Shader::DeltaMixer => facts!("delta_step", Quads, "wrrrrwrwww", &DELTA_MIXER),
            Shader::Route => facts!("route", Nothing, "rrw", &["SCORING", "PER", "GROUPED"]),
            Shader::GroupRows => facts!("group_rows", Nothing, "rw", &[]),
            Shader::GroupJobs => facts!("group_jobs", Nothing, "rrw", &["MOST_EXPERTS"]),
            Shader::Activate => {
                facts!("activate", Nothing, "rrrrw", &["CLAMPED", "BIASED", "ALTERNATES"])
            }
            Shader::ActivateRounded => facts!(
                "activate",
                OwnRounding,
                "rrrrwww",
                &["CLAMPED", "BIASED", "ALTERNATES", "GROUP", "DIGITS", "ORDER", "FLOAT"]
            ),
            Shader::AddRows => facts!("add_rows", Nothing, "wrr", &["CHOSEN"]),
            Shader::Combine => facts!("combine", Nothing, "wrrrr", &["SHARED", "GATED"]),
            Shader::Stream => facts!("stream", Nothing, "rw", &["COPIES"]),
            Shader::Place => facts!("place", Nothing, "rw", &[]),
            Shader::Fetch => facts!("fetch", Nothing, "rwr", &[]),
            Shader::FetchChosen => facts!("fetch", Nothing, "rwrrrrrr", &[]),
            Shader::Admit => facts!("admit", Nothing, "rrwwww", &["PER"]),
            Shader::Likeliest => facts!("likeliest", Nothing, "rw", &["PER_LANE"]),
            Shader::Lead => facts!("lead", Nothing, "rrw", &["MOST"]),
        }
    }

    /// The name of its file.
    pub(crate) fn name(self) -> &'static str {
        self.facts().name
    }

    pub(crate) fn bindings(self) -> &'static str {
        self.facts().bindings
    }

    /// Whether it writes all memory of its workgroups before it reads that.
    pub(crate) fn writes_first(self) -> bool {
        matches!(
            self,
            Shader::Matmul
                | Shader::MatmulHalves
                | Shader::MatvecActivates
                | Shader::AttentionHalves
                | Shader::Delta
        )
    }

    /// What `total.wgsl` sums, if the kernel does: the values' type, and the
    /// constant that says how many.
    fn summed(self) -> Option<(&'static str, &'static str)> {
        match self {
            Shader::Norm | Shader::NormRounded | Shader::NormOfSum => Some(("f32", "THREADS")),
            Shader::StoreKv => Some(("f32", "64")),
            Shader::PrepareDelta | Shader::DeltaStep | Shader::DeltaMixer => {
                Some(("vec2<f32>", "64"))
            }
            _ => None,
        }
    }
}

/// Tells versions of the matrix-vector kernels from each other.
pub(crate) fn fingerprint() -> String {
    let texts = [
        include_str!("shaders/common.wgsl"),
        include_str!("shaders/formats.wgsl"),
        Shader::Matvec.facts().source,
        MULTIPLY,
    ];
    format!("{:016x}", hash(texts.iter().flat_map(|it| it.bytes())))
}

/// FNV-1a.
pub(crate) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
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

    /// The kernel's text for devices whose subgroups have at least so many lanes.
    pub(crate) fn source(self, lanes: u32) -> String {
        let facts = self.shader.facts();
        let names: Vec<&str> =
            format_consts(facts.uses).iter().chain(facts.consts).copied().collect();
        let mut consts: Vec<(&str, u32)> = names.into_iter().zip(self.consts).collect();
        if facts.uses == Uses::Weights {
            let fours = unit_fours(self.consts[0]);
            // Small floats take too long to compile.
            let is_unrolled = fours <= 4 || self.consts[0] == 0;
            let unrolled = ("UNROLLED", u32::from(is_unrolled));
            let e2m1 = ("E2M1", u32::from(self.consts[0] == 4 && self.consts[2] == 1));
            consts.extend([("FOURS", fours), ("UNIT", 4 * fours), unrolled, e2m1]);
        }
        consts.push(("SUBGROUP", lanes));
        let summed = self.shader.summed();
        consts.extend(summed.map(|it| ("SUMMED", value(it.1, &consts))));
        match self.shader {
            Shader::MatmulHalves => consts.extend(derived(&consts)),
            Shader::AttentionHalves => consts.extend(derived_of_attention(&consts)),
            Shader::MatvecChosen | Shader::FetchChosen => consts.push(("CHOSEN", 1)),
            Shader::MatvecActivates => {
                let steps = value("COLS", &consts).div_ceil(4 * value("THREADS", &consts));
                consts.extend([("CHOSEN", 1), ("ACTIVATES", 1), ("STEPS", steps)]);
            }
            Shader::MatvecBoth => consts.push(("BOTH", 1)),
            _ => {}
        }
        for name in ["DIGITS", "CHOSEN", "ACTIVATES", "BOTH", "SUM", "TAPS"] {
            if consts.iter().all(|it| it.0 != name) {
                consts.push((name, 0));
            }
        }
        let mut text = String::new();
        for (name, value) in &consts {
            writeln!(text, "const {name}: u32 = {value}u;").expect("a string takes any text");
        }
        text.push_str(include_str!("shaders/common.wgsl"));
        if let Some((kind, _)) = summed {
            writeln!(text, "alias Summed = {kind};").expect("a string takes any text");
            text.push_str(&preprocess(include_str!("shaders/total.wgsl"), &consts));
        }
        match facts.uses {
            Uses::Nothing => {}
            Uses::Rounding => text.push_str(&preprocess(ROUNDED, &consts)),
            Uses::OwnRounding => {
                text.push_str(&preprocess(ROUNDED, &consts));
                text.push_str(&preprocess(include_str!("shaders/rounded_own.wgsl"), &consts));
            }
            Uses::Weights => text.push_str(include_str!("shaders/formats.wgsl")),
            Uses::Caches => text.push_str(include_str!("shaders/kv.wgsl")),
            Uses::Attention => {
                text.push_str(include_str!("shaders/kv.wgsl"));
                let attended = include_str!("shaders/attended.wgsl");
                text.push_str(&preprocess(attended, &consts));
                text.push_str(&preprocess(SEEN, &consts));
            }
            Uses::Seen => text.push_str(&preprocess(SEEN, &consts)),
            Uses::Quads => {
                text.push_str(&preprocess(ROUNDED, &consts));
                text.push_str(&preprocess(include_str!("shaders/quads.wgsl"), &consts));
            }
        }
        if self.shader == Shader::MatvecActivates {
            text.push_str(&preprocess(ROUNDED, &consts));
            text.push_str(&preprocess(PRELUDE, &consts));
        }
        if consts.iter().any(|it| it.0 == "ALTERNATES") {
            text.push_str(&preprocess(ACTIVATION, &consts));
        }
        // Extensions are enabled before anything else.
        let source = facts.source.replace("#multiply_tiles\n", MULTIPLY_TILES);
        let mut own = preprocess(&source, &consts);
        if facts.name == "matvec" {
            own.push_str(&preprocess(MULTIPLY, &consts));
        }
        if self.shader == Shader::MatvecBoth {
            own.push_str(&preprocess(MULTIPLY, &plain(&consts)));
        }
        let (enabled, own): (Vec<&str>, Vec<&str>) =
            own.lines().partition(|it| it.starts_with("enable "));
        [enabled.join("\n"), text, own.join("\n")].join("\n")
    }
}

/// Constants that follow from those of `matmul_halves.wgsl`: its threads, how much
/// each of them loads in a step, and how weights lie in tiles.
fn derived(consts: &[(&str, u32)]) -> [(&'static str, u32); 7] {
    let of = |text| value(text, consts);
    let threads = of("X_TILE*W_TILE/X_FRAGS/W_FRAGS/8");
    let words = of("W_TILE*STEP*4") / threads;
    let per_load = if words >= 4 { 4 } else { 2 };
    [
        ("THREADS", threads),
        ("X_LOADS", of("X_TILE*STEP*PARTS*4") / threads),
        ("W_WORDS", per_load),
        ("W_LOADS", words / per_load),
        ("BIASED", u32::from(of("FORMAT") == 0 && of("SUMMANDS") == 0)),
        ("W_PARTS", of("SUMMANDS").max(1)),
        // What weights are multiplied by: packed ones lose no bits of small scales, decoded
        // ones may be large.
        ("W_FACTOR", if of("SUMMANDS") == 0 { 128 } else { 16 }),
    ]
}

/// The same of `attention_halves.wgsl`: threads, blocks and squares of columns, squares
/// of vectors that lie in workgroup memory, and what a thread loads of them.
fn derived_of_attention(consts: &[(&str, u32)]) -> [(&'static str, u32); 7] {
    let of = |text| value(text, consts);
    let threads = 32 * of("SUBGROUPS");
    let v_blocks = of("V_DIM/32");
    [
        ("THREADS", threads),
        ("K_BLOCKS", of("K_DIM/32")),
        ("V_BLOCKS", v_blocks),
        ("V_SQUARES", 2 * v_blocks),
        ("SQUARES", v_blocks.max(of("SUBGROUPS") + 4)),
        ("K_LOADS", of("PARTS*256") / threads),
        ("V_LOADS", (of("PARTS*64") * v_blocks).div_ceil(threads)),
    ]
}

/// The constants of a product whose inputs are as they are.
fn plain<'a>(consts: &[(&'a str, u32)]) -> Vec<(&'a str, u32)> {
    let is_of_rounding = |name| ["DIGITS", "FMA", "ONCE"].contains(&name);
    consts.iter().map(|it| (it.0, if is_of_rounding(it.0) { 0 } else { it.1 })).collect()
}

fn format_consts(uses: Uses) -> &'static [&'static str] {
    if uses == Uses::Weights { &FORMAT } else { &[] }
}

/// Fours of columns in a unit of `matvec.wgsl`, by `FORMAT`: 16 bytes of floats,
/// or a block.
pub(crate) fn unit_fours(format: u32) -> u32 {
    match format {
        1 => 1,
        2 | 3 => 2,
        5 | 6 => 4,
        _ => 8,
    }
}
