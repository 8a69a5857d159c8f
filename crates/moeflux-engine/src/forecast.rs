//! The rate at which a model will make tokens here: from rates of memory and drive, and what a token
//! reads of each.
//!
//! A token takes the time of its computation, in which all its weights are read from memory, and of
//! those reads from the drive that computation does not hide. Rows of tables are requested when the
//! token is known, so that computation hides them unless they take longer. The probes do what the
//! program does: products with a matrix of the model's format, direct reads of the model's experts,
//! as many at once as the store has, and reads of rows by a store of rows.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use moeflux_store::unallocated_bytes;

use crate::inspect::Inspection;
use crate::measure::{DriveProbe, product_gb_s, row_seconds};
use crate::memory_probe::MemoryProbe;
use crate::options::EngineOptions;
use crate::plan::Plan;
use crate::planning::ModelSizes;

/// How long the drive is measured in a pass, for each number of reads at once, and how many passes
/// there are, of which the best counts.
const DRIVE_TIME: Duration = Duration::from_millis(50);
const DRIVE_PASSES: usize = 2;

/// How long rows of tables are read.
const ROW_TIME: Duration = Duration::from_millis(100);

/// The part of the rate of products with one large matrix that a decode step reaches, whose matrices
/// are small for the most part: lowest and highest. With all experts in memory it was about 0.6 on two
/// cores (8 layers of Qwen3.6-35B-A3B's shape) and 0.4 on sixteen (all 40).
const STEP_SHARE: [f64; 2] = [0.4, 0.85];

/// What the steps of a layer take that read no weights, in seconds: norms, routing, attention or
/// recurrence, and the threads' meeting after each.
const LAYER_SECONDS: [f64; 2] = [80e-6, 25e-6];

/// The part of the reads that prefetching hides while a layer computes, lowest and highest.
const HIDDEN_SHARE: [f64; 2] = [0.0, 0.1];

/// How much more often an expert in the cache is chosen than one outside, as an exponent of the
/// share that is missing: 1 where all experts are chosen equally often.
const SKEW: [f64; 2] = [1.0, 1.5];

/// Tokens a second, from the lowest to the highest that is likely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Rate {
    /// Between the two: as many times more than the lowest as less than the highest.
    pub fn middle(self) -> f64 {
        (self.low * self.high).sqrt()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = usize::from(self.high < 10.0) + usize::from(self.high < 1.0);
        write!(f, "{:.digits$}-{:.digits$}", self.low, self.high)
    }
}

/// How fast a machine is at what a token needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// What a plain loop on all cores reads from memory, in GB/s; `None` where there is too little
    /// memory for one that leaves the caches.
    pub memory_gb_s: Option<f64>,
    /// What products of one row read of a matrix of the model's format, in GB/s; `None` where memory
    /// is too short for one that leaves the caches.
    pub product_gb_s: Option<f64>,
    /// What direct reads of whole records bring from the drive, in GB/s; `None` where
    /// the file system knows no direct reads.
    pub drive_gb_s: Option<f64>,
    /// Seconds for the rows of tables that a token needs, read from the drive all at once; `None`
    /// where the model has no tables, where the drive was not measured, or where files have holes in
    /// place of the rows.
    pub row_seconds: Option<f64>,
}

impl Rates {
    /// Measures memory, for about half a second, within what is free of it.
    pub fn of_memory(facts: &Inspection, options: &EngineOptions) -> Rates {
        let memory = MemoryProbe::new(options).ok().filter(MemoryProbe::leaves_caches);
        let available = facts.plan.memory.available.min(unallocated_bytes().unwrap_or(u64::MAX));
        let most_bytes = usize::try_from(available / 8).unwrap_or(usize::MAX);
        Rates {
            memory_gb_s: memory.map(|probe| probe.gb_s()[1]),
            product_gb_s: product_gb_s(facts, options, most_bytes),
            ..Rates::default()
        }
    }

    /// Measures the drive, for about half a second, in the files of the model. Files without content
    /// say nothing about a drive.
    pub fn of_drive(facts: &Inspection) -> Rates {
        let row_seconds = row_seconds(&facts.tables, &facts.rows_per_token, ROW_TIME);
        Rates { drive_gb_s: drive_rate(facts), row_seconds, ..Rates::default() }
    }
}

/// A forecast for one token at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// What it is made from.
    pub rates: Rates,
    /// Tokens a second if all experts were in memory.
    pub resident: Option<Rate>,
    /// Tokens a second with the planned cache.
    pub streamed: Option<Rate>,
    n_layers: usize,
}

impl Forecast {
    /// For a model and its plan on a machine of these rates. Nothing is measured.
    pub fn of(facts: &Inspection, rates: Rates) -> Forecast {
        let n_layers = facts.shape.n_layers;
        Forecast { rates, resident: None, streamed: None, n_layers }.of_plan(&facts.plan)
    }

    /// The forecast for another model of these sizes, and its plan, at the rates that were measured for
    /// this one.
    pub fn of_sizes(&self, sizes: &ModelSizes, plan: &Plan) -> Forecast {
        Forecast { n_layers: sizes.n_layers, ..*self }.of_plan(plan)
    }

    /// The forecast for another plan of the same model.
    pub fn of_plan(&self, plan: &Plan) -> Forecast {
        let of_rows = self.unhidden_rows(plan);
        let Rates { product_gb_s, drive_gb_s, .. } = self.rates;
        let resident = product_gb_s.map(|gb_s| {
            self.rate(|i| {
                let compute = self.compute(plan, gb_s, i);
                compute + of_rows(compute)
            })
        });
        let is_read = plan.cache_bytes < plan.expert_bytes;
        let streamed = match (product_gb_s, drive_gb_s) {
            _ if !is_read => resident,
            (Some(product), Some(drive)) => Some(self.rate(|i| {
                let missing = (1.0 - plan.cached_share()).powf(SKEW[i]);
                let reads = missing * plan.working_set_bytes as f64 / (drive * 1e9);
                let compute = self.compute(plan, product, i);
                compute + reads * (1.0 - HIDDEN_SHARE[i]) + of_rows(compute)
            })),
            _ => None,
        };
        Forecast { resident, streamed, ..*self }
    }

    /// From the seconds of a token, at worst and at best.
    fn rate(&self, seconds: impl Fn(usize) -> f64) -> Rate {
        Rate { low: 1.0 / seconds(0), high: 1.0 / seconds(1) }
    }

    /// By the seconds that a token is computed in: those that the reads of its rows take longer.
    fn unhidden_rows(&self, plan: &Plan) -> impl Fn(f64) -> f64 {
        // Rows are drawn by hashes: the cache has those of its share of a table.
        let cached = plan.row_cache_bytes as f64 / plan.table_bytes.max(1) as f64;
        let seconds = self.rates.row_seconds.unwrap_or(0.0) * (1.0 - cached).max(0.0);
        move |compute| (seconds - compute).max(0.0)
    }

    fn compute(&self, plan: &Plan, product_gb_s: f64, bound: usize) -> f64 {
        let products = plan.bytes_per_token as f64 / (product_gb_s * 1e9 * STEP_SHARE[bound]);
        products + self.n_layers as f64 * LAYER_SECONDS[bound]
    }
}

/// GB/s of direct reads of records, the best number at a time.
fn drive_rate(facts: &Inspection) -> Option<f64> {
    // Other pieces than those of the plan before, which something beneath may have kept.
    let seed =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let mut probe = DriveProbe::of(facts.bank.clone(), seed).filter(DriveProbe::is_direct)?;
    probe.best(facts.plan.memory.available / 4, DRIVE_PASSES, DRIVE_TIME)
}

#[cfg(test)]
mod tests {
    use moeflux_store::{IoMode, MemoryLimit};

    use super::*;

    /// Of 400 MB that stay and 3.4 GB of experts, of which a token reads 100 MB.
    fn plan(cache_bytes: u64) -> Plan {
        Plan {
            resident_bytes: 400_000_000,
            kv_bytes_per_position: 0,
            window_bytes: 0,
            state_bytes: 0,
            checkpoint_bytes: 0,
            ctx: 1,
            n_sessions: 1,
            chunk: 1,
            scratch_bytes: 0,
            program_bytes: 0,
            expert_bytes: 3_400_000_000,
            record_bytes: 1_000_000,
            working_set_bytes: 100_000_000,
            bytes_per_token: 500_000_000,
            table_bytes: 0,
            row_cache_bytes: 0,
            prompt_cache_bytes: 0,
            cache_bytes,
            min_cache_bytes: 0,
            headroom_bytes: 0,
            device_expert_bytes: None,
            tower_bytes: 0,
            io_mode: IoMode::Direct,
            are_experts_derived: false,
            memory: MemoryLimit { total: 1 << 33, available: 1 << 33, cgroup: None },
        }
    }

    /// A forecast of a machine without a drive.
    fn unknown() -> Forecast {
        Forecast {
            rates: Rates {
                memory_gb_s: Some(60.0),
                product_gb_s: Some(50.0),
                drive_gb_s: None,
                row_seconds: None,
            },
            resident: None,
            streamed: None,
            n_layers: 8,
        }
    }

    #[test]
    fn rows_of_tables_cost_what_computation_does_not_hide() {
        let with_rows = |seconds, row_cache_bytes| {
            let rates = Rates { row_seconds: Some(seconds), ..unknown().rates };
            let forecast = Forecast { rates, ..unknown() };
            let (table_bytes, plan) = (48_000_000_000, plan(3_400_000_000));
            forecast.of_plan(&Plan { table_bytes, row_cache_bytes, ..plan }).streamed.unwrap()
        };
        let without = unknown().of_plan(&plan(3_400_000_000)).streamed.unwrap();
        assert_eq!(with_rows(1e-3, 0), without);
        let slow = with_rows(0.5, 0);
        assert!((1.99..2.01).contains(&slow.low) && (1.99..2.01).contains(&slow.high), "{slow}");
        let cached = with_rows(0.5, 24_000_000_000);
        assert!((3.98..4.02).contains(&cached.middle()), "{cached}");
        assert_eq!(with_rows(0.5, 48_000_000_000), without);
    }

    #[test]
    fn less_cache_and_slower_drives_make_it_slower() {
        let of = |drive, cache_bytes| {
            let rates = Rates { drive_gb_s: drive, ..unknown().rates };
            Forecast { rates, ..unknown() }.of_plan(&plan(cache_bytes))
        };
        let whole = of(None, 3_400_000_000);
        assert_eq!(whole.streamed, whole.resident);
        let Rate { low, high } = whole.resident.unwrap();
        assert!(low > 35.0 && high < 90.0, "{low} to {high}");
        assert_eq!(of(None, 1_700_000_000).streamed, None);
        let rates = [(4.0, 3_000_000_000), (4.0, 1_000_000_000), (4.0, 0), (0.5, 0)]
            .map(|(drive, cache)| of(Some(drive), cache).streamed.unwrap());
        assert!(rates.iter().all(|rate| 0.0 < rate.low && rate.low < rate.high));
        assert!(rates.windows(2).all(|pair| pair[0].middle() > pair[1].middle()), "{rates:?}");
        // All of a token's experts from a drive of 0.5 GB/s take 0.2 s.
        assert!((4.0..5.0).contains(&rates[3].middle()), "{rates:?}");
        assert_eq!(Rate { low: 27.6, high: 40.2 }.to_string(), "28-40");
        assert_eq!(Rate { low: 0.61, high: 1.27 }.to_string(), "0.6-1.3");
        assert_eq!(Rate { low: 0.113, high: 0.227 }.to_string(), "0.11-0.23");
    }
}
