//! What a model takes in memory, decided before any of it is taken.

mod declared;
mod facts;
mod planner;
mod shortage;

use moeflux_store::{IoMode, MemoryLimit};

pub(crate) use self::declared::Declared;
pub(crate) use self::facts::ModelFacts;
pub use self::planner::MAX_SESSIONS;
pub(crate) use self::planner::MemoryPlanner;
pub use self::shortage::{Alternative, PlanRow, RowKind, Shortage};

/// Where every byte goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Weights that stay in memory.
    pub resident_bytes: u64,
    /// Keys and values of one position.
    pub kv_bytes_per_position: u64,
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
    /// How experts come into memory.
    pub io_mode: IoMode,
    /// What this process may use.
    pub memory: MemoryLimit,
}

impl Plan {
    /// Keys and values of a full context, recurrent state and copies of it.
    pub fn session_bytes(&self) -> u64 {
        self.state_bytes + self.checkpoint_bytes + self.kv_bytes_per_position * self.ctx as u64
    }

    /// Everything together.
    pub fn total_bytes(&self) -> u64 {
        self.fixed_bytes().saturating_add(self.cache_bytes)
    }

    /// Everything but the cache.
    pub fn fixed_bytes(&self) -> u64 {
        let sessions = self.session_bytes().saturating_mul(self.n_sessions as u64);
        let copies = self.device_expert_bytes.unwrap_or(0);
        (self.resident_bytes + self.scratch_bytes + self.program_bytes)
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

#[cfg(test)]
mod tests;
