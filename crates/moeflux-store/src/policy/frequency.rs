//! The one used least leaves first, recent uses counting more.

use std::collections::BTreeSet;

use super::Policy;
use crate::plan::Ordinal;

/// Uses after which an earlier use counts half, for each expert of the bank.
/// A token uses 1/32 of the experts or thereabouts: that makes about a hundred tokens.
const HALF_LIFE_USES_PER_EXPERT: f64 = 4.0;

/// Counts the uses of all experts, resident or not. A use at time `t` weighs
/// `2^(t / half_life)`, so that ageing changes no order and no count ever has
/// to be touched again.
#[derive(Debug)]
pub(super) struct Frequency {
    uses: Vec<Uses>,
    resident: BTreeSet<Rank>,
    half_life_uses: f64,
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Uses {
    /// Binary logarithm of the summed weights.
    weight_log2: f64,
    last_use: u64,
    resident: bool,
}

/// Orders by weight, then by recency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    weight_key: i64,
    last_use: u64,
    expert: Ordinal,
}

impl Frequency {
    pub(super) fn new(n_experts: usize) -> Frequency {
        let unused = Uses { weight_log2: f64::NEG_INFINITY, last_use: 0, resident: false };
        Frequency {
            uses: vec![unused; n_experts],
            resident: BTreeSet::new(),
            half_life_uses: HALF_LIFE_USES_PER_EXPERT * n_experts.max(1) as f64,
            clock: 0,
        }
    }

    fn rank(&self, expert: Ordinal) -> Rank {
        let uses = &self.uses[expert.idx()];
        let bits = uses.weight_log2.to_bits().cast_signed();
        // As `f64::total_cmp` orders: negative numbers count backwards.
        let weight_key = if bits < 0 { bits ^ i64::MAX } else { bits };
        Rank { weight_key, last_use: uses.last_use, expert }
    }

    fn now_log2(&self) -> f64 {
        self.clock as f64 / self.half_life_uses
    }
}

impl Policy for Frequency {
    fn touched(&mut self, expert: Ordinal) {
        let rank = self.rank(expert);
        self.clock += 1;
        let (now, last_use) = (self.now_log2(), self.clock);
        let uses = &mut self.uses[expert.idx()];
        // The new use weighs at least as much as any sum had when it was last
        // added to, up to the number of uses, so the power stays finite.
        uses.weight_log2 = now + (1.0 + (uses.weight_log2 - now).exp2()).log2();
        uses.last_use = last_use;
        if uses.resident {
            self.resident.remove(&rank);
            self.resident.insert(self.rank(expert));
        }
    }

    fn inserted(&mut self, expert: Ordinal) {
        self.uses[expert.idx()].resident = true;
        self.resident.insert(self.rank(expert));
    }

    fn removed(&mut self, expert: Ordinal) {
        self.resident.remove(&self.rank(expert));
        self.uses[expert.idx()].resident = false;
    }

    fn victim(&self, may_leave: &dyn Fn(Ordinal) -> bool) -> Option<Ordinal> {
        self.resident.iter().map(|it| it.expert).find(|&it| may_leave(it))
    }
}
