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
    /// Uses so far, by rows.
    clock: f64,
    /// Requests so far.
    n_touches: u64,
    /// How much the router's score of an expert that it considered weighs
    /// beside a use, if it weighs at all.
    score_share: Option<f32>,
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
    /// With a share, also takes account of what routers nearly chose.
    pub(super) fn new(n_experts: usize, score_share: Option<f32>) -> Frequency {
        let unused = Uses { weight_log2: f64::NEG_INFINITY, last_use: 0, resident: false };
        Frequency {
            uses: vec![unused; n_experts],
            resident: BTreeSet::new(),
            half_life_uses: HALF_LIFE_USES_PER_EXPERT * n_experts.max(1) as f64,
            clock: 0.0,
            n_touches: 0,
            score_share,
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
        self.clock / self.half_life_uses
    }

    /// Adds to an expert's weight as it is now.
    fn add(&mut self, expert: Ordinal, n_uses: f64) {
        let rank = self.rank(expert);
        let now = self.now_log2();
        let uses = &mut self.uses[expert.idx()];
        // The new use weighs at least as much as any sum had when it was last
        // added to, up to the number of uses, so the power stays finite.
        uses.weight_log2 = now + (n_uses + (uses.weight_log2 - now).exp2()).log2();
        uses.last_use = self.n_touches;
        if uses.resident {
            self.resident.remove(&rank);
            self.resident.insert(self.rank(expert));
        }
    }
}

impl Policy for Frequency {
    fn touched(&mut self, expert: Ordinal, n_uses: f32) {
        self.clock += f64::from(n_uses);
        self.n_touches += 1;
        self.add(expert, f64::from(n_uses));
    }

    fn scored(&mut self, expert: Ordinal, score: f32) {
        if let Some(share) = self.score_share
            && score > 0.0
        {
            self.add(expert, f64::from(share * score));
        }
    }

    fn wants_scores(&self) -> bool {
        self.score_share.is_some()
    }

    fn weights(&self) -> Option<Vec<f32>> {
        let now = self.now_log2();
        let weight = |it: &Uses| (it.weight_log2 - now).exp2() as f32;
        Some(self.uses.iter().map(weight).collect())
    }

    fn restore(&mut self, weights: &[f32]) {
        assert_eq!(weights.len(), self.uses.len(), "a weight for each expert");
        for (i, &weight) in (0..).zip(weights) {
            if weight > 0.0 && weight.is_finite() {
                self.add(Ordinal(i), f64::from(weight));
            }
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
