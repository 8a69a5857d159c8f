//! How fast a model runs, and how fast the machine would let it: rates of
//! prefill and decode, limits of memory, arithmetic and drive, the time of
//! every stage and of every kernel.
//!
//! ```no_run
//! use moeflux_engine::measure::{self, Workload};
//! use moeflux_engine::{Engine, EngineOptions, TokenId};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = EngineOptions::default();
//! let machine = measure::Machine::probe(&options)?;
//! let engine = Engine::open("models/qwen3.6-35b-a3b".as_ref(), &options)?;
//! let prompt: Vec<TokenId> = (0..512).map(TokenId).collect();
//! let work = Workload { prompt: &prompt, n_gen: 64, given: &[], is_cold: false };
//! let run = measure::run(&engine, &work)?;
//! let share = run.decode.weight_gb_s(&engine) / machine.memory_gb_s[1];
//! println!("{:.1} tok/s, {:.0} % of the memory's limit", run.decode.tok_s(), 100.0 * share);
//! # Ok(())
//! # }
//! ```

mod bound;
mod drive;
mod gpu;
mod kernels;
mod machine;
mod product;
mod profile;
mod rows;
mod run;
mod spread;
mod system;
mod teacher_forcing;

pub use bound::prefill_limit;
pub use drive::{DriveProbe, DriveRate};
pub use gpu::gpu_kernels;
pub use kernels::{Kernel, KernelSteps, Quantise, kernels, quantise};
pub use machine::Machine;
pub use moeflux_backend::{KernelTime, Stage};
pub use moeflux_store::{LayerCounts, RowStats};
pub(crate) use product::product_gb_s;
pub use profile::{DraftKernels, Lane, Profile, StageTimes, TokenTrace, draft_kernels, profile};
pub use rows::has_hollow_tables;
pub(crate) use rows::row_seconds;
pub use run::{Phase, Run, Workload, run, run_together, useful_bytes};
pub use spread::Spread;
pub use system::{peak_memory, reset_peak_memory};
pub use teacher_forcing::{TeacherForced, teacher_force, text_with_mtp_acceptance};

pub use crate::memory_probe::MemoryProbe;

use crate::engine::Engine;

/// Makes every expert leave the cache, and the system forget what it keeps
/// of their files: the next token reads from the drive. False where the
/// system does not take such advice.
pub fn forget_experts(engine: &Engine) -> bool {
    let core = engine.core();
    core.experts.clear();
    let bank = core.experts.bank();
    bank.stored_files().all(|(_, file)| system::drop_cached(&file.path))
}
