//! What a plan is made of, row by row, and what makes one smaller that does not fit.

use std::path::PathBuf;

use moeflux_core::show_bytes;

use super::{MemoryPlanner, Plan};
use crate::engine::EngineOptions;

/// What a row of a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Weights that stay in memory.
    Weights,
    /// Keys, values and recurrent states of all sessions.
    Sessions,
    /// Copies of recurrent states to go back to.
    Checkpoints,
    /// Activations of a step.
    Activations,
    /// The program and the tokenizer.
    Program,
    /// The expert cache.
    Cache,
    /// Copies of experts for a GPU that shares the memory.
    Copies,
}

/// A row of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanRow {
    /// What it is for.
    pub kind: RowKind,
    /// Its bytes.
    pub bytes: u64,
    /// Whether it is one of the largest rows without which the others would fit; never where all
    /// of them fit.
    pub is_too_large: bool,
}

/// The same model with one flag changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// The flag and its value, or what to leave out.
    pub change: String,
    /// What it leads to.
    pub plan: Plan,
}

/// A plan that does not fit, and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The model.
    pub path: PathBuf,
    /// The plan, with the smallest sizes that are planned by default.
    pub plan: Plan,
    /// What would make it smaller.
    pub alternatives: Vec<Alternative>,
}

impl Plan {
    /// Its rows, which add up to its total.
    pub fn rows(&self) -> Vec<PlanRow> {
        let n_sessions = self.n_sessions as u64;
        let conversation = self.session_bytes() - self.checkpoint_bytes;
        let parts = [
            (RowKind::Weights, self.resident_bytes),
            (RowKind::Sessions, conversation.saturating_mul(n_sessions)),
            (RowKind::Checkpoints, self.checkpoint_bytes.saturating_mul(n_sessions)),
            (RowKind::Activations, self.scratch_bytes),
            (RowKind::Program, self.program_bytes),
            (RowKind::Cache, self.cache_bytes),
        ];
        let copies = self.device_expert_bytes.map(|bytes| (RowKind::Copies, bytes));
        let parts = parts.into_iter().chain(copies);
        let mut rows: Vec<PlanRow> =
            parts.map(|(kind, bytes)| PlanRow { kind, bytes, is_too_large: false }).collect();
        self.mark_too_large(&mut rows);
        rows
    }

    fn mark_too_large(&self, rows: &mut [PlanRow]) {
        let mut left = self.needed_bytes();
        let needed = |row: &PlanRow| match row.kind {
            RowKind::Cache => self.min_cache_bytes,
            _ => row.bytes,
        };
        let mut largest_first: Vec<&mut PlanRow> = rows.iter_mut().collect();
        largest_first.sort_by_key(|row| std::cmp::Reverse(needed(row)));
        for row in largest_first {
            if left <= self.usable_bytes() {
                break;
            }
            row.is_too_large = true;
            left = left.saturating_sub(needed(row));
        }
    }
}

impl Alternative {
    /// Bytes that it needs less than `plan`.
    pub fn saves(&self, plan: &Plan) -> u64 {
        plan.needed_bytes().saturating_sub(self.plan.needed_bytes())
    }
}

impl MemoryPlanner {
    /// Plans with one option changed, each of which takes less memory or leaves more of it to the
    /// cache.
    pub(crate) fn alternatives(&self, plan: &Plan) -> Vec<Alternative> {
        let options = &self.options;
        let mut changes: Vec<(String, EngineOptions)> = Vec::new();
        if let Some(ctx) = [8192, 4096, 1024, 256].into_iter().find(|ctx| *ctx <= plan.ctx / 2) {
            let changed = EngineOptions { ctx: Some(ctx), ..options.clone() };
            changes.push((format!("--ctx {ctx}"), changed));
        }
        if let Some(chunk) = [512, 128, 32].into_iter().find(|rows| *rows <= plan.chunk / 2) {
            let changed = EngineOptions { chunk: Some(chunk), ..options.clone() };
            changes.push((format!("--chunk {chunk}"), changed));
        }
        let few = 2 * plan.state_bytes;
        if few > 0 && few < plan.checkpoint_bytes {
            let mib = few.div_ceil(1 << 20);
            let changed = EngineOptions { checkpoint_bytes: Some(mib << 20), ..options.clone() };
            changes.push((format!("--checkpoint-memory {mib}MiB"), changed));
        }
        if plan.n_sessions > 1 {
            let n = plan.n_sessions / 2;
            let changed = EngineOptions { sessions: Some(n), ..options.clone() };
            changes.push((format!("--sessions {n}"), changed));
        }
        if options.expert_cache.is_some() {
            let changed = EngineOptions { expert_cache: None, ..options.clone() };
            changes.push((String::from("no --expert-cache"), changed));
        }
        let planned = changes.into_iter().map(|(change, options)| {
            let planner = MemoryPlanner { options, ..self.clone() };
            Alternative { change, plan: planner.plan() }
        });
        planned.collect()
    }

    /// The plan, or why there is none.
    pub(crate) fn plan_that_fits(&self, path: PathBuf) -> Result<Plan, Box<Shortage>> {
        let plan = self.plan();
        match plan.fits() {
            true => Ok(plan),
            false => {
                let mut alternatives = self.alternatives(&plan);
                alternatives.retain(|other| other.saves(&plan) > 0);
                alternatives.sort_by_key(|other| std::cmp::Reverse(other.saves(&plan)));
                Err(Box::new(Shortage { path, plan, alternatives }))
            }
        }
    }
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let needed = show_bytes(self.plan.needed_bytes());
        let usable = show_bytes(self.plan.usable_bytes());
        let path = self.path.display();
        write!(f, "the model at {path} needs {needed}, and {usable} are free")?;
        match self.alternatives.first() {
            Some(best) => {
                let saved = show_bytes(best.saves(&self.plan));
                write!(f, "; {} saves {saved}", best.change)
            }
            None => Ok(()),
        }
    }
}
