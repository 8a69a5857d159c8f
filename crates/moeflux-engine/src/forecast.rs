//! What speed the machine allows a model: memory and drive measured for a
//! moment, divided by what a token reads.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use moeflux_core::{ExpertBank, HostBuf, PAGE_BYTES};
use moeflux_store::read_at;

use crate::inspect::Inspection;
use crate::measure::open_all;
use crate::plan::Plan;

/// Memory that the read loop goes through; more than caches hold.
const LOOP_BYTES: usize = 256 << 20;

/// How long the drive is measured.
const DRIVE_TIME: Duration = Duration::from_millis(400);

/// A forecast. Routing is taken as uniform, which real routing is not, and
/// reads as not overlapping with work: what comes out is on the careful side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// What a plain loop on all cores reads from memory.
    pub memory_gb_s: f64,
    /// What direct reads of whole records bring from the drive; `None` where
    /// the file system knows no direct reads.
    pub drive_gb_s: Option<f64>,
    /// Tokens a second if all experts were in memory.
    pub resident_tok_s: f64,
    /// Tokens a second with the planned cache.
    pub streamed_tok_s: Option<f64>,
}

impl Forecast {
    /// Measures memory and drive, for less than a second. Files without
    /// content say nothing about a drive: `has_content` leaves it out.
    pub fn measure(facts: &Inspection, has_content: bool) -> Forecast {
        let drive = has_content.then(|| drive_rate(&facts.bank)).flatten();
        Forecast::new(&facts.plan, memory_rate(), drive)
    }

    fn new(plan: &Plan, memory_gb_s: f64, drive_gb_s: Option<f64>) -> Forecast {
        let memory_time = plan.bytes_per_token as f64 / (memory_gb_s * 1e9);
        let held = plan.cache_bytes as f64 / plan.expert_bytes.max(1) as f64;
        let missed = plan.working_set_bytes as f64 * (1.0 - held.min(1.0));
        let token_time = |drive: f64| memory_time + missed / (drive * 1e9);
        let streamed = if missed == 0.0 {
            Some(1.0 / memory_time)
        } else {
            drive_gb_s.map(|it| 1.0 / token_time(it))
        };
        Forecast {
            memory_gb_s,
            drive_gb_s,
            resident_tok_s: 1.0 / memory_time,
            streamed_tok_s: streamed,
        }
    }

    /// In a sentence.
    pub fn text(&self) -> String {
        let resident = self.resident_tok_s;
        match self.streamed_tok_s {
            Some(it) => {
                format!("{it:.1} tok/s, and at most {resident:.1} with all experts in memory")
            }
            None => format!("at most {resident:.1} tok/s with all experts in memory"),
        }
    }
}

/// GB/s of a plain read loop on all cores, the best of three.
fn memory_rate() -> f64 {
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let words = vec![1u64; LOOP_BYTES / size_of::<u64>()];
    let part = words.len().div_ceil(n_threads);
    let once = || {
        let start = Instant::now();
        thread::scope(|scope| {
            for part in words.chunks(part) {
                scope.spawn(|| black_box(part.iter().fold(0u64, |sum, it| sum.wrapping_add(*it))));
            }
        });
        LOOP_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    (0..3).map(|_| once()).fold(0.0, f64::max)
}

/// GB/s of direct reads of records at scattered places.
fn drive_rate(bank: &ExpertBank) -> Option<f64> {
    let record = bank.max_record_bytes().next_multiple_of(PAGE_BYTES);
    let layers: Vec<_> = bank.layers.iter().flatten().collect();
    let mut buf = HostBuf::zeroed(record);
    let files = open_all(bank, true);
    let start = Instant::now();
    let (mut n_bytes, mut choice) = (0u64, 1u64);
    while start.elapsed() < DRIVE_TIME {
        // Knuth's multiplier: scattered, and the same every time.
        choice = choice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let layer = layers.get((choice >> 33) as usize % layers.len().max(1))?;
        let expert = u16::try_from((choice >> 13) as usize % layer.n_experts).ok()?;
        let (file, offset) = layer.sources.first()?.locate(moeflux_core::ExpertId(expert));
        let source = &bank.files[file.0 as usize];
        let offset = offset / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let len = (source.len - offset) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let len = usize::try_from(len).ok()?.min(record);
        let read = read_at(files[file.0 as usize].as_ref()?, &mut buf[..len], offset);
        n_bytes += read.ok().filter(|it| *it > 0)? as u64;
    }
    (n_bytes > 0).then(|| n_bytes as f64 / start.elapsed().as_secs_f64() / 1e9)
}
