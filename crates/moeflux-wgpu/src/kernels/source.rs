//! The WGSL text of a kernel: its constants, what it includes, and its own file, expanded by
//! the template.

use std::fmt::Write as _;

use moeflux_core::fnv1a_64;

use crate::kernels::blocks;
use crate::kernels::kernel::{Feature, Include, Kernel, NamedConstants, Variant};
use crate::kernels::matmul::Matvec;
use crate::kernels::shared::{
    FORMAT_AFFINE, FORMAT_BF16, FORMAT_E2M1, FORMAT_E4M3, FORMAT_E4M3_BLOCKS, FORMAT_F16,
    FORMAT_F32, FORMAT_GGML, WeightFormat,
};
use crate::kernels::template::{preprocess, value};

const COMMON: &str = include_str!("../shaders/include/common.wgsl");
const WEIGHTS: &str = include_str!("../shaders/include/weights.wgsl");
const FORMATS: &str = include_str!("../shaders/include/formats.wgsl");
const MULTIPLY: &str = include_str!("../shaders/matmul/matvec_multiply.wgsl");
const QUANTIZE: &str = include_str!("../shaders/include/quantize.wgsl");
const ROUND_FOUR: &str = include_str!("../shaders/include/round_four.wgsl");
const VISIBILITY: &str = include_str!("../shaders/include/visibility.wgsl");
const INDEX_KEYS: &str = include_str!("../shaders/include/index_keys.wgsl");
const KV_FORMATS: &str = include_str!("../shaders/include/kv_formats.wgsl");

const COOP_BLOCKS: &str = include_str!("../shaders/matmul/coop_blocks.wgsl");
const COOP_MULTIPLY: &str = include_str!("../shaders/matmul/coop_multiply.wgsl");
const COOP_SCORES: &str = include_str!("../shaders/attention/coop_scores.wgsl");
const PER_ELEMENT: &str = include_str!("../shaders/include/main_per_element.wgsl");
const PER_WORKGROUP: &str = include_str!("../shaders/include/main_per_workgroup.wgsl");
const IN_SUBGROUPS: &str = include_str!("../shaders/include/main_in_subgroups.wgsl");

/// Constants that templates ask for and that are 0 where a kernel lacks them.
const OPTIONAL: [&str; 6] = ["DIGITS", "CHOSEN", "ACTIVATES", "BOTH", "TAPS", "STAGED"];

impl Feature {
    /// The constant that switches it on in the text.
    fn constant(self) -> Option<&'static str> {
        match self {
            Feature::Chosen => Some("CHOSEN"),
            Feature::Activates => Some("ACTIVATES"),
            Feature::Both => Some("BOTH"),
            Feature::WritesFirst => None,
        }
    }
}

impl Include {
    /// Whether it is put after the kernel's own text.
    fn is_last(self) -> bool {
        matches!(self, Include::MatvecMultiply | Include::MatvecMultiplyPlain)
    }

    fn text(self, constants: &NamedConstants) -> String {
        let expand = |text| preprocess(text, constants);
        match self {
            Include::Reduce { kind, .. } => {
                let reduce = expand(include_str!("../shaders/include/reduce.wgsl"));
                format!("alias Summed = {kind};\n{reduce}")
            }
            Include::Quantize => expand(QUANTIZE) + &expand(ROUND_FOUR),
            Include::QuantizeTwice => {
                let both = expand(ROUND_FOUR);
                let also = both
                    .replace("fn round_four(", "fn round_four_also(")
                    .replace(" rounded[", " rounded_also[")
                    .replace(" sums[", " sums_also[");
                expand(QUANTIZE) + &both + &also
            }
            Include::QuantizeOwn => {
                let own = include_str!("../shaders/include/quantize_own.wgsl");
                expand(QUANTIZE) + &expand(ROUND_FOUR) + &expand(own)
            }
            Include::WeightFormats => {
                let decoders = if value("BLOCKS", constants) == 0 {
                    FORMATS.to_owned()
                } else {
                    expand(&blocks::text(value("BITS", constants)))
                };
                WEIGHTS.to_owned() + &decoders
            }
            Include::IndexKeys => INDEX_KEYS.to_owned(),
            Include::KvFormats => KV_FORMATS.to_owned(),
            Include::KvTiles => expand(include_str!("../shaders/include/kv_tiles.wgsl")),
            Include::Visibility => expand(VISIBILITY),
            Include::DeltaSums => expand(include_str!("../shaders/include/delta_sums.wgsl")),
            Include::DeltaDecay => expand(include_str!("../shaders/include/delta_decay.wgsl")),
            Include::FusedActivation => {
                expand(include_str!("../shaders/include/fused_activation.wgsl"))
            }
            Include::Activation => expand(include_str!("../shaders/include/activation.wgsl")),
            Include::MatvecMultiply => expand(MULTIPLY),
            Include::MatvecMultiplyPlain => preprocess(MULTIPLY, &without_quantisation(constants)),
        }
    }
}

/// The text of a kernel for devices whose subgroups have at least `lanes` lanes.
pub(crate) fn source(variant: Variant, lanes: u32) -> String {
    let constants = all_constants(variant, lanes);
    let mut text = String::new();
    for (name, value) in &constants {
        writeln!(text, "const {name}: u32 = {value}u;").expect("a string takes any text");
    }
    text.push_str(COMMON);
    let (last, first): (Vec<Include>, Vec<Include>) =
        variant.info.includes.iter().partition(|include| include.is_last());
    text.extend(first.iter().map(|include| include.text(&constants)));
    let mut own = preprocess(&inline(variant.info.source), &constants);
    own.extend(last.iter().map(|include| include.text(&constants)));
    // Extensions are enabled before anything else.
    let (enabled, own): (Vec<&str>, Vec<&str>) =
        own.lines().partition(|line| line.starts_with("enable "));
    [enabled.join("\n"), text, own.join("\n")].join("\n")
}

/// The constants of the kernel, those that follow from them, and the optional ones.
fn all_constants(variant: Variant, lanes: u32) -> NamedConstants {
    let mut constants = variant.constants();
    if variant.info.includes.contains(&Include::WeightFormats) {
        constants.extend(unit_constants(&constants));
    }
    constants.push(("SUBGROUP", lanes));
    let threads = variant.info.includes.iter().find_map(|include| match include {
        Include::Reduce { threads, .. } => Some(*threads),
        _ => None,
    });
    constants.extend(threads.map(|threads| ("SUMMED", value(threads, &constants))));
    constants.extend((variant.info.derived)(&constants));
    constants
        .extend(variant.info.features.iter().filter_map(|feature| Some((feature.constant()?, 1))));
    for name in OPTIONAL {
        if constants.iter().all(|constant| constant.0 != name) {
            constants.push((name, 0));
        }
    }
    constants
}

/// Replaces the lines of a kernel's own file that stand for a shared text:
///
/// - `#coop_blocks`: how blocks of ggml are taken;
/// - `#coop_multiply`: the products of two tiles;
/// - `#coop_scores STEPS`: scores of a block of columns of which that many squares are not zeros;
/// - `#main_per_element INDEX BOUND`: an entry point of 256 threads, one for each index below the
///   bound;
/// - `#main_per_workgroup INDEX THREADS BOUND`: an entry point with a workgroup for each index
///   below the bound;
/// - `#main_in_subgroups INDEX THREADS BOUND`: the same, with threads numbered as lanes of
///   subgroups are.
fn inline(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    for line in source.lines() {
        let (directive, arguments) = line.split_once(' ').unwrap_or((line, ""));
        let inlined = match directive {
            "#coop_blocks" => COOP_BLOCKS.to_owned(),
            "#coop_multiply" => COOP_MULTIPLY.to_owned(),
            "#coop_scores" => COOP_SCORES.replace("N_STEPS", arguments),
            "#main_per_element" => {
                let (index, bound) = arguments.split_once(' ').expect("an index and its bound");
                PER_ELEMENT.replace("INDEX", index).replace("BOUND", bound)
            }
            "#main_per_workgroup" => per_workgroup(PER_WORKGROUP, arguments),
            "#main_in_subgroups" => per_workgroup(IN_SUBGROUPS, arguments),
            _ => format!("{line}\n"),
        };
        text.push_str(&inlined);
    }
    text
}

/// An entry point with its index, threads and bound filled in.
fn per_workgroup(main: &str, arguments: &str) -> String {
    let mut parts = arguments.splitn(3, ' ');
    let mut next = || parts.next().expect("an index, threads and a bound");
    let (index, threads, bound) = (next(), next(), next());
    main.replace("WORKGROUP", threads).replace("INDEX", index).replace("BOUND", bound)
}

/// The units of a row that `matmul/matvec.wgsl` reads at once.
fn unit_constants(constants: &NamedConstants) -> NamedConstants {
    let of = |name| value(name, constants);
    let [format, bits, floats] = ["FORMAT", "BITS", "FLOATS"].map(of);
    let fours = unit_fours(WeightFormat { format, bits, floats });
    let are_blocks = format == FORMAT_GGML;
    // Loops over small floats would take too long to compile unrolled.
    let is_unrolled = !are_blocks && fours <= 4 || format == FORMAT_AFFINE;
    let is_fast_e2m1 = format == FORMAT_E2M1 && floats == 1;
    let halves = fours.div_ceil(4);
    let mut all = vec![
        ("FOURS", fours),
        ("UNIT", 4 * fours),
        ("UNROLLED", u32::from(is_unrolled)),
        ("E2M1", u32::from(is_fast_e2m1)),
        ("BLOCKS", u32::from(are_blocks)),
        // Times sixteen columns of a unit, and how many of these have a scale and a sum of their own.
        ("HALVES", halves),
        ("PAIRS", if are_blocks { halves } else { 1 }),
    ];
    if are_blocks {
        let is_matvec = constants.iter().any(|constant| constant.0 == "VLANES");
        all.extend(blocks::constants(bits, is_matvec));
    }
    all
}

/// The constants of a product whose inputs are not quantised.
fn without_quantisation(constants: &NamedConstants) -> NamedConstants {
    let concerns_it = |name| ["DIGITS", "FMA", "ONCE"].contains(&name);
    constants
        .iter()
        .map(|(name, value)| (*name, if concerns_it(name) { 0 } else { *value }))
        .collect()
}

/// Fours of columns in a unit of `matmul/matvec.wgsl`: 16 bytes of floats, or 32 columns, or what
/// suits a type of ggml.
pub(crate) fn unit_fours(of: WeightFormat) -> u32 {
    match of.format {
        FORMAT_GGML => 4 * blocks::unit_halves(blocks::block_type(of.bits)),
        FORMAT_F32 => 1,
        FORMAT_F16 | FORMAT_BF16 => 2,
        FORMAT_E4M3 | FORMAT_E4M3_BLOCKS => 4,
        _ => 8,
    }
}

/// Distinguishes versions of the matrix-vector kernels.
pub(crate) fn fingerprint() -> String {
    let texts = [COMMON, WEIGHTS, FORMATS, Matvec::INFO.source, MULTIPLY];
    let texts = texts.into_iter().chain(blocks::all_texts());
    format!("{:016x}", fnv1a_64(texts.collect::<String>().as_bytes()))
}
