//! Results that users measured and shared: their form, and the nearest one to a plan.
//!
//! `bench --share` makes one, `docs/results/` has them, and `results.json` here is the list that the
//! program has in it. `tools/results/check.py` checks them and writes that list.

use moeflux_convert::synth::shape_like;
use moeflux_engine::{Inspection, Plan};
use moeflux_store::usable_memory;
use serde::{Deserialize, Serialize};

use crate::hardware::cpu_name;

/// Changes where a field gets another meaning.
pub(crate) const SCHEMA: u32 = 1;

/// All results that are in the program.
const LIST: &str = include_str!("results.json");

/// How many times a similar machine may have more or less of something.
const SIMILAR: f64 = 2.0;

/// How far the cached shares of experts may be apart, and bits of a weight in relation to each other.
const SIMILAR_SHARE: f64 = 0.15;
const SIMILAR_BITS: f64 = 1.15;

/// A result in the form of `docs/results/schema.json`. It names hardware and models, no people and no paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SharedResult {
    pub(crate) schema: u32,
    /// The version of the program.
    pub(crate) moeflux: String,
    /// The day, as `2026-11-27`.
    pub(crate) date: String,
    pub(crate) hardware: Hardware,
    pub(crate) drive: Option<Drive>,
    pub(crate) memory_gb_s: f64,
    pub(crate) model: Model,
    pub(crate) run: Run,
    pub(crate) result: Measured,
}

/// The class of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hardware {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    /// Of the kernels.
    pub(crate) isa: String,
    pub(crate) os: String,
    /// Of what the process may use, in a usual size.
    pub(crate) memory_gib: u64,
    /// Where the model ran on one.
    pub(crate) gpu: Option<String>,
}

/// What direct reads bring, in GB/s, in reads of this length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Drive {
    pub(crate) gb_s: f64,
    pub(crate) request_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    /// Of the published shape that it has; `None` for others.
    pub(crate) shape: Option<String>,
    pub(crate) family: String,
    pub(crate) layers: usize,
    pub(crate) experts: usize,
    pub(crate) experts_per_token: usize,
    /// Of the experts.
    pub(crate) format: String,
    pub(crate) bits: f64,
    pub(crate) expert_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) context: usize,
    pub(crate) prompt_tokens: usize,
    pub(crate) gen_tokens: usize,
    pub(crate) repeat: usize,
    pub(crate) threads: usize,
    pub(crate) cold: bool,
    pub(crate) expert_io: String,
    /// The part of the experts that the cache had room for.
    pub(crate) cached_share: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measured {
    pub(crate) decode_tok_s: Range,
    pub(crate) prompt_tok_s: Range,
    /// The share of the drive's limit that decoding reached.
    pub(crate) rh: Option<f64>,
    pub(crate) hit_rate: f64,
}

/// A median and its extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Range {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// The results that are in the program.
pub(crate) fn all() -> Vec<SharedResult> {
    parsed(LIST)
}

/// The results of a list that have the form. One that has another, as of a later version, takes none of
/// the others with it; a test holds the list of this program to the form.
fn parsed(list: &str) -> Vec<SharedResult> {
    let all: Vec<serde_json::Value> = serde_json::from_str(list).unwrap_or_default();
    let right = all.into_iter().filter_map(|one| serde_json::from_value::<SharedResult>(one).ok());
    right.filter(|one| one.schema == SCHEMA).collect()
}

/// This machine's processor, its cores and the usual size of memory that is nearest to what this
/// process may use.
pub(crate) fn this_machine(isa: &str, gpu: Option<String>) -> Hardware {
    Hardware {
        cpu: cpu_name(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        isa: isa.to_owned(),
        os: std::env::consts::OS.to_owned(),
        memory_gib: memory_class(usable_memory().total),
        gpu,
    }
}

/// The usual size of memory, in GiB, that is nearest to this many bytes: a system keeps some of its
/// own.
pub(crate) fn memory_class(bytes: u64) -> u64 {
    let gib = bytes as f64 / f64::from(1 << 30);
    let sizes = (0..21).flat_map(|power| [2 << power, 3 << power]).chain([1]);
    let distance = |size: &u64| (*size as f64 / gib.max(0.01)).log2().abs();
    sizes.min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(1)
}

/// The result that is nearest to a plan on this machine, where one is near enough to say something.
pub(crate) fn nearest<'a>(
    all: &'a [SharedResult],
    facts: &Inspection,
    plan: &Plan,
    drive_gb_s: Option<f64>,
) -> Option<&'a SharedResult> {
    let want = Wanted {
        shape: shape_like(facts.family, &facts.shape)?,
        bits: facts.expert_format()?.bits,
        hardware: this_machine("", None),
        cached_share: plan.cached_share(),
        drive_gb_s,
    };
    want.nearest(all)
}

/// What a result should be like.
struct Wanted {
    shape: &'static str,
    bits: f64,
    hardware: Hardware,
    cached_share: f64,
    drive_gb_s: Option<f64>,
}

impl Wanted {
    fn nearest<'a>(&self, all: &'a [SharedResult]) -> Option<&'a SharedResult> {
        let near = all.iter().filter_map(|one| Some((self.distance(one)?, one)));
        near.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, one)| one)
    }

    /// How far a result is; `None` where it says nothing about this.
    fn distance(&self, one: &SharedResult) -> Option<f64> {
        let Hardware { cpu, cores, memory_gib, .. } = &self.hardware;
        let is_same = one.model.shape.as_deref() == Some(self.shape)
            && apart(one.model.bits, self.bits) <= SIMILAR_BITS.log2()
            && one.hardware.gpu.is_none()
            && (one.run.cached_share - self.cached_share).abs() <= SIMILAR_SHARE;
        // The drive counts where it is read.
        let is_read = one.run.cached_share < 1.0 || self.cached_share < 1.0;
        let drives = match (&one.drive, self.drive_gb_s) {
            _ if !is_read => 0.0,
            (Some(drive), Some(gb_s)) => apart(drive.gb_s, gb_s),
            _ => return None,
        };
        let parts = [
            apart(one.hardware.cores as f64, *cores as f64),
            apart(one.hardware.memory_gib as f64, *memory_gib as f64),
            drives,
        ];
        let is_similar = is_same && parts.iter().all(|part| *part <= SIMILAR.log2());
        let other_cpu = if one.hardware.cpu == *cpu { 0.0 } else { 0.5 };
        is_similar.then(|| parts.iter().sum::<f64>() + other_cpu)
    }
}

/// How many times two numbers differ, as a power of two.
fn apart(a: f64, b: f64) -> f64 {
    if a > 0.0 && b > 0.0 { (a / b).log2().abs() } else { f64::INFINITY }
}

impl SharedResult {
    /// The machine in a few words.
    pub(crate) fn machine(&self) -> String {
        let Hardware { cpu, cores, memory_gib, .. } = &self.hardware;
        let drive = self.drive.as_ref();
        let drive = drive.map_or(String::new(), |drive| format!(", drive {:.1} GB/s", drive.gb_s));
        format!("{cpu}, {cores} cores, {memory_gib} GiB{drive}, {}", self.date)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(cores: usize, gb_s: f64, share: f64, tok_s: f64) -> SharedResult {
        let range = Range { median: tok_s, min: tok_s, max: tok_s };
        SharedResult {
            schema: SCHEMA,
            moeflux: String::from("0.1.0"),
            date: String::from("2026-11-27"),
            hardware: Hardware {
                cpu: String::from("A"),
                cores,
                isa: String::from("avx2"),
                os: String::from("linux"),
                memory_gib: 32,
                gpu: None,
            },
            drive: Some(Drive { gb_s, request_bytes: 1 << 20 }),
            memory_gb_s: 50.0,
            model: Model {
                shape: Some(String::from("mid")),
                family: String::from("a family"),
                layers: 8,
                experts: 256,
                experts_per_token: 8,
                format: String::from("4-bit, groups of 64"),
                bits: 4.5,
                expert_bytes: 1 << 30,
            },
            run: Run {
                context: 4096,
                prompt_tokens: 512,
                gen_tokens: 64,
                repeat: 5,
                threads: cores,
                cold: false,
                expert_io: String::from("direct"),
                cached_share: share,
            },
            result: Measured { decode_tok_s: range, prompt_tok_s: range, rh: None, hit_rate: 0.5 },
        }
    }

    fn wanted(cached_share: f64, drive_gb_s: Option<f64>) -> Wanted {
        let hardware = Hardware { cpu: String::from("B"), ..result(8, 1.0, 1.0, 1.0).hardware };
        Wanted { shape: "mid", bits: 4.6, hardware, cached_share, drive_gb_s }
    }

    #[test]
    fn the_nearest_result_is_of_the_same_model_on_a_similar_machine() {
        let all =
            [result(8, 3.0, 0.3, 10.0), result(10, 2.0, 0.4, 11.0), result(8, 3.0, 1.0, 90.0)];
        let of = |share, drive| {
            wanted(share, drive).nearest(&all).map(|one| one.result.decode_tok_s.median)
        };
        assert_eq!(of(0.35, Some(2.5)), Some(10.0));
        assert_eq!(of(0.35, Some(1.6)), Some(11.0));
        assert_eq!(of(1.0, None), Some(90.0));
        // Another drive, an unknown one, or another share of the experts says nothing.
        assert_eq!([of(0.35, Some(20.0)), of(0.35, None), of(0.7, Some(3.0))], [None; 3]);
        let other = Wanted { shape: "tiny", ..wanted(0.3, Some(3.0)) };
        assert!(other.nearest(&all).is_none());
        let more_bits = Wanted { bits: 8.5, ..wanted(0.3, Some(3.0)) };
        assert!(more_bits.nearest(&all).is_none());
        let mut small = wanted(0.3, Some(3.0));
        small.hardware.memory_gib = 8;
        assert!(small.nearest(&all).is_none());
    }

    #[test]
    fn memory_has_usual_sizes() {
        let of = |gib: f64| memory_class((gib * f64::from(1 << 30)) as u64);
        assert_eq!(
            [of(0.4), of(1.0), of(7.6), of(15.4), of(23.5), of(31.0)],
            [1, 1, 8, 16, 24, 32]
        );
        assert_eq!([of(46.9), of(62.7), of(503.0)], [48, 64, 512]);
    }

    #[test]
    fn a_result_of_another_form_takes_no_other_with_it() {
        let right = serde_json::to_value(result(8, 3.0, 0.3, 10.0)).unwrap();
        let with = |path: &str, value: serde_json::Value| {
            let mut other = right.clone();
            *other.pointer_mut(path).unwrap() = value;
            other
        };
        // Larger than any integer that there is a field for.
        let long = serde_json::from_str("1000000000000000000000000000000").unwrap();
        let list = serde_json::json!([
            with("/run/repeat", long),
            with("/schema", serde_json::json!(1.0)),
            with("/schema", serde_json::json!(SCHEMA + 1)),
            right,
            "no result",
        ]);
        assert_eq!(parsed(&list.to_string()), [result(8, 3.0, 0.3, 10.0)]);
        assert_eq!(parsed("{"), []);
    }

    #[test]
    fn the_list_in_the_program_has_the_form() {
        let list: Vec<SharedResult> = serde_json::from_str(LIST).unwrap();
        assert_eq!(list, all());
        assert!(list.iter().all(|one| one.schema == SCHEMA));
    }
}
