//! Where memory goes, row by row, what does not fit, and what would help.

use std::path::PathBuf;

use moeflux_core::{OptionId, show_bytes};
use moeflux_store::{IoMode, MemoryLimit};

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
    /// The cache of rows of tables.
    Rows,
    /// Evaluated prompts without a session.
    Prompts,
    /// The vision tower, whose memory the expert cache has while there are no pictures.
    Tower,
}

impl RowKind {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            RowKind::Weights => "resident weights",
            RowKind::Sessions => "KV caches",
            RowKind::Checkpoints => "state checkpoints",
            RowKind::Activations => "activations",
            RowKind::Program => "program",
            RowKind::Cache => "expert cache",
            RowKind::Copies => "GPU copies of experts",
            RowKind::Rows => "row cache",
            RowKind::Prompts => "prompts",
            RowKind::Tower => "vision tower",
        }
    }
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

/// An option to set, or to leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The option.
    pub option: OptionId,
    /// Its value; the option is left out where absent.
    pub value: Option<String>,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{} {value}", self.option),
            None => write!(f, "no {}", self.option),
        }
    }
}

/// A plan of the model with one option changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// What is changed.
    pub change: Change,
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
        let spare = self.cache_bytes.saturating_sub(self.min_cache_bytes);
        let tower = self.tower_bytes.min(spare);
        let parts = [
            (RowKind::Weights, self.resident_bytes),
            (RowKind::Sessions, conversation.saturating_mul(n_sessions)),
            (RowKind::Checkpoints, self.checkpoint_bytes.saturating_mul(n_sessions)),
            (RowKind::Activations, self.scratch_bytes),
            (RowKind::Program, self.program_bytes),
            (RowKind::Cache, self.cache_bytes - tower),
        ];
        let copies = self.device_expert_bytes.map(|bytes| (RowKind::Copies, bytes));
        let rows = (self.table_bytes > 0).then_some((RowKind::Rows, self.row_cache_bytes));
        let prompts =
            (self.prompt_cache_bytes > 0).then_some((RowKind::Prompts, self.prompt_cache_bytes));
        let tower = (tower > 0).then_some((RowKind::Tower, tower));
        let parts = parts.into_iter().chain(copies).chain(rows).chain(prompts).chain(tower);
        let mut rows: Vec<PlanRow> =
            parts.map(|(kind, bytes)| PlanRow { kind, bytes, is_too_large: false }).collect();
        self.mark_too_large(&mut rows);
        rows
    }

    fn mark_too_large(&self, rows: &mut [PlanRow]) {
        let mut left = self.needed_bytes();
        let needed = |row: &PlanRow| match row.kind {
            RowKind::Cache => self.min_cache_bytes,
            RowKind::Tower => 0,
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

/// Where every byte goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Weights that stay in memory.
    pub resident_bytes: u64,
    /// Keys and values of one position, in layers that keep those of all.
    pub kv_bytes_per_position: u64,
    /// Keys and values that layers with a window hold of one session.
    pub window_bytes: u64,
    /// Recurrent state of one session.
    pub state_bytes: u64,
    /// Copies of recurrent state that one session may keep, one before drafts included.
    pub checkpoint_bytes: u64,
    /// Positions of one session.
    pub ctx: usize,
    /// Sessions at a time.
    pub n_sessions: usize,
    /// Rows of a prefill chunk.
    pub chunk: usize,
    /// Activations of one step.
    pub scratch_bytes: u64,
    /// The program and the tokenizer.
    pub program_bytes: u64,
    /// All routed experts.
    pub expert_bytes: u64,
    /// The largest of them.
    pub record_bytes: u64,
    /// Routed experts that one token needs: top_k of every layer that has any.
    pub working_set_bytes: u64,
    /// Weights that one token reads, routed experts included.
    pub bytes_per_token: u64,
    /// Tables whose rows are read one by one.
    pub table_bytes: u64,
    /// What the cache of their rows may take.
    pub row_cache_bytes: u64,
    /// What evaluated prompts without a session may take
    /// ([`MemoryOptions::prompts`](crate::MemoryOptions::prompts)).
    pub prompt_cache_bytes: u64,
    /// What the cache of experts may take; all of them where files are mapped.
    pub cache_bytes: u64,
    /// What the cache takes at least: all of it where its size was given, else the experts of one
    /// token in one layer. 0 where files are mapped, whose pages the system takes back.
    pub min_cache_bytes: u64,
    /// What a cache that follows free memory leaves free, so that other programs find memory until
    /// it has given some back; 0 where its size was given.
    pub headroom_bytes: u64,
    /// What copies of experts for a GPU may take of that memory, 0 where it reads
    /// them in the cache; absent where it has memory of its own, or none is used.
    pub device_expert_bytes: Option<u64>,
    /// What the vision tower takes of the cache while it is loaded, for pictures; 0 where there is none.
    pub tower_bytes: u64,
    /// How experts come into memory.
    pub io_mode: IoMode,
    /// Whether parts of experts are computed when they are read, because no kernel reads them as the
    /// checkpoint has them.
    pub are_experts_derived: bool,
    /// What this process may use.
    pub memory: MemoryLimit,
}

impl Plan {
    /// Keys and values of a full context, recurrent state and copies of it.
    pub fn session_bytes(&self) -> u64 {
        let kv = self.kv_bytes_per_position * self.ctx as u64 + self.window_bytes;
        self.state_bytes + self.checkpoint_bytes + kv
    }

    /// Everything together.
    pub fn total_bytes(&self) -> u64 {
        self.fixed_bytes().saturating_add(self.cache_bytes)
    }

    /// Everything but the cache.
    pub fn fixed_bytes(&self) -> u64 {
        let sessions = self.session_bytes().saturating_mul(self.n_sessions as u64);
        let copies = self.device_expert_bytes.unwrap_or(0);
        (self.resident_bytes + self.scratch_bytes + self.program_bytes + self.row_cache_bytes)
            .saturating_add(self.prompt_cache_bytes)
            .saturating_add(copies)
            .saturating_add(sessions)
    }

    /// What has to be there for the model to run.
    pub fn needed_bytes(&self) -> u64 {
        self.fixed_bytes().saturating_add(self.min_cache_bytes)
    }

    /// What there is for it: where nothing is swapped, what is free.
    pub fn usable_bytes(&self) -> u64 {
        if cfg!(target_os = "linux") { self.memory.available } else { self.memory.total }
    }

    /// Whether the model can run like this.
    pub fn fits(&self) -> bool {
        self.needed_bytes() <= self.usable_bytes()
    }

    /// The part of the experts that the cache has room for, 0 to 1.
    pub fn cached_share(&self) -> f64 {
        (self.cache_bytes as f64 / self.expert_bytes.max(1) as f64).min(1.0)
    }
}
