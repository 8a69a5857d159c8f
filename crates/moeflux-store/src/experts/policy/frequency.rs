//! Evicts the expert whose next use is farthest. The distance is counted in passes over all layers.
//! It is the way to the next turn of the expert's layer, plus the turns that an expert used this
//! often waits on average.

use super::rule::Policy;
use crate::experts::plan::Ordinal;

/// The half-life of a use, in uses for each expert of a layer. A token uses about 1/32 of the
/// experts, so the half-life is about a hundred tokens.
const HALF_LIFE_USES_PER_EXPERT: f64 = 4.0;

/// Upper limit of the uses expected of the next step, for each expert of a layer. The many rows of
/// a prompt use nearly all experts. The few rows of the steps after it use the frequent ones.
const EXPECTED_USES_PER_EXPERT: f64 = 2.0;

/// Counts the uses of all experts, resident or not, by a clock for each layer. A use at time `t`
/// weighs `2^(t / half_life)`. So ageing changes no order within a layer, and stored weights need
/// no update.
#[derive(Debug)]
pub(super) struct Frequency {
    uses: Vec<Uses>,
    layers: Vec<Layer>,
    /// The layer of the last request.
    current: usize,
    /// Uses of that request.
    n_uses: f64,
    /// Uses of the request whose experts are being passed to [`Policy::touched`].
    n_open_uses: f64,
    /// Experts touched so far.
    n_touches: u64,
}

#[derive(Clone, Copy, Debug)]
struct Uses {
    /// Binary logarithm of the summed weights.
    weight_log2: f64,
    last_use: u64,
    layer: u16,
    resident: bool,
}

#[derive(Debug)]
struct Layer {
    /// Resident experts that the policy may choose, the least used first.
    resident: Order,
    n_experts: f64,
    /// Uses so far; each row counts as one.
    clock: f64,
    /// Recent uses of all experts, with their present weights.
    n_recent: f64,
}

/// Orders by weight, then by recency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    weight_key: i64,
    last_use: u64,
    expert: Ordinal,
}

/// Ranks in ascending order. A layer has some hundred experts: moving entries of a vector costs
/// less than the nodes of a tree, and needs no memory for them.
#[derive(Debug, Default)]
struct Order(Vec<Rank>);

impl Order {
    fn insert(&mut self, rank: Rank) {
        if let Err(at) = self.0.binary_search(&rank) {
            self.0.insert(at, rank);
        }
    }

    fn remove(&mut self, rank: Rank) {
        if let Ok(at) = self.0.binary_search(&rank) {
            self.0.remove(at);
        }
    }

    /// Replaces `old` with `new`, which sorts after it.
    fn replace(&mut self, old: Rank, new: Rank) {
        if let Ok(from) = self.0.binary_search(&old) {
            let to = from + self.0[from + 1..].partition_point(|other| *other < new);
            self.0.copy_within(from + 1..=to, from);
            self.0[to] = new;
        }
    }
}

impl Layer {
    fn half_life(&self) -> f64 {
        HALF_LIFE_USES_PER_EXPERT * self.n_experts
    }

    fn now_log2(&self) -> f64 {
        self.clock / self.half_life()
    }

    fn advance(&mut self, n_uses: f64) {
        self.clock += n_uses;
        self.n_recent *= (-n_uses / self.half_life()).exp2();
    }
}

impl Frequency {
    pub(super) fn new(layers: &[usize]) -> Frequency {
        let layer = |&n_experts: &usize| Layer {
            resident: Order::default(),
            n_experts: n_experts.max(1) as f64,
            clock: 0.0,
            n_recent: 0.0,
        };
        let unused =
            |layer| Uses { weight_log2: f64::NEG_INFINITY, last_use: 0, layer, resident: false };
        let uses = (0u16..).zip(layers).flat_map(|(i, &n)| std::iter::repeat_n(unused(i), n));
        Frequency {
            uses: uses.collect(),
            layers: layers.iter().map(layer).collect(),
            current: 0,
            n_uses: 0.0,
            n_open_uses: 0.0,
            n_touches: 0,
        }
    }

    fn layer_of(&self, expert: Ordinal) -> usize {
        usize::from(self.uses[expert.idx()].layer)
    }

    fn rank(&self, expert: Ordinal) -> Rank {
        let uses = &self.uses[expert.idx()];
        let bits = uses.weight_log2.to_bits().cast_signed();
        // Keys sort as `f64::total_cmp` does: the bits of negative numbers count backwards.
        let weight_key = if bits < 0 { bits ^ i64::MAX } else { bits };
        Rank { weight_key, last_use: uses.last_use, expert }
    }

    /// Recent uses of an expert, with their present weights.
    fn n_recent(&self, uses: &Uses) -> f64 {
        (uses.weight_log2 - self.layers[usize::from(uses.layer)].now_log2()).exp2()
    }

    /// Adds uses to an expert, with the present weight of a use.
    fn add(&mut self, expert: Ordinal, n_uses: f64) {
        let rank = self.rank(expert);
        let layer = self.layer_of(expert);
        let now = self.layers[layer].now_log2();
        let uses = &mut self.uses[expert.idx()];
        // The clock never runs backwards, so that `weight_log2` exceeds `now` by no more than the
        // logarithm of the number of uses. So the power stays finite.
        uses.weight_log2 = now + (n_uses + (uses.weight_log2 - now).exp2()).log2();
        uses.last_use = self.n_touches;
        self.layers[layer].n_recent += n_uses;
        if uses.resident {
            let new = self.rank(expert);
            self.layers[layer].resident.replace(rank, new);
        }
    }

    /// Turns of its layer that an expert is expected to wait for its next use after the next turn.
    fn turns(&self, expert: Ordinal) -> f64 {
        let uses = &self.uses[expert.idx()];
        let layer = &self.layers[usize::from(uses.layer)];
        let share = self.n_recent(uses) / layer.n_recent.max(f64::MIN_POSITIVE);
        let n_uses = self.n_uses.min(EXPECTED_USES_PER_EXPERT * layer.n_experts);
        // The probability that at least one of `n_uses` uses is of this expert.
        let confidence = -(-share * n_uses).exp_m1();
        1.0 / confidence.max(f64::MIN_POSITIVE) - 1.0
    }
}

impl Policy for Frequency {
    fn touched(&mut self, expert: Ordinal, n_uses: f32) {
        self.current = self.layer_of(expert);
        self.n_open_uses += f64::from(n_uses);
        self.n_touches += 1;
        self.add(expert, f64::from(n_uses));
    }

    fn asked(&mut self) {
        let n_uses = std::mem::take(&mut self.n_open_uses);
        if n_uses > 0.0 {
            self.n_uses = n_uses;
            self.layers[self.current].advance(n_uses);
        }
    }

    fn weights(&self) -> Option<Vec<f32>> {
        Some(self.uses.iter().map(|uses| self.n_recent(uses) as f32).collect())
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
        let (layer, rank) = (self.layer_of(expert), self.rank(expert));
        self.layers[layer].resident.insert(rank);
    }

    fn removed(&mut self, expert: Ordinal) {
        let (layer, rank) = (self.layer_of(expert), self.rank(expert));
        self.layers[layer].resident.remove(rank);
        self.uses[expert.idx()].resident = false;
    }

    /// The least used expert of a layer is its farthest. So one expert of each layer is compared,
    /// and most layers are skipped because even their least used expert is too near.
    fn victim(&self, may_leave: &dyn Fn(Ordinal) -> bool) -> Option<Ordinal> {
        let n_layers = self.layers.len();
        let mut farthest: Option<(f64, Ordinal)> = None;
        for way in (1..=n_layers).rev() {
            let layer = &self.layers[(self.current + way) % n_layers];
            let distance = |rank: &Rank| way as f64 / n_layers as f64 + self.turns(rank.expert);
            let is_farther = |rank: &Rank| farthest.is_none_or(|best| distance(rank) > best.0);
            if layer.resident.0.first().is_some_and(is_farther)
                && let Some(found) = layer.resident.0.iter().find(|rank| may_leave(rank.expert))
                && is_farther(found)
            {
                farthest = Some((distance(found), found.expert));
            }
        }
        farthest.map(|found| found.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: usize = 6;
    const EXPERTS: usize = 16;

    #[test]
    fn a_victim_is_the_farthest_of_all() {
        let mut policy = Frequency::new(&[EXPERTS; LAYERS]);
        let all = || (0..).take(LAYERS * EXPERTS).map(Ordinal);
        let may_leave = |ordinal: Ordinal| !ordinal.0.is_multiple_of(3);
        for step in 0..40 {
            for layer in 0..LAYERS {
                let chosen =
                    [step * step, 3 * step + 1, step / 2 + layer].map(|expert| expert % EXPERTS);
                for expert in chosen {
                    let expert = Ordinal(u32::try_from(layer * EXPERTS + expert).unwrap());
                    policy.touched(expert, 1.0);
                    policy.inserted(expert);
                }
                policy.asked();
                let distance = |ordinal: Ordinal| {
                    let way = (ordinal.idx() / EXPERTS + LAYERS - layer - 1) % LAYERS + 1;
                    way as f64 / LAYERS as f64 + policy.turns(ordinal)
                };
                let candidates = all()
                    .filter(|&ordinal| policy.uses[ordinal.idx()].resident && may_leave(ordinal));
                let farthest = candidates.map(distance).fold(0.0, f64::max);
                let victim = policy.victim(&may_leave);
                assert_eq!(victim.map_or(0.0, distance), farthest, "step {step}, layer {layer}");
                if let Some(victim) = victim.filter(|_| step % 2 == 0) {
                    policy.removed(victim);
                }
            }
        }
    }

    #[test]
    fn shares_follow_the_uses_of_a_layer() {
        let mut policy = Frequency::new(&[4, 4]);
        for _ in 0..500 {
            for (expert, n_uses) in [(0, 3.0), (1, 1.0), (5, 9.0)] {
                policy.touched(Ordinal(expert), n_uses);
                if expert > 0 {
                    policy.asked();
                }
            }
        }
        let share = |n: u32| {
            let uses = &policy.uses[n as usize];
            policy.n_recent(uses) / policy.layers[usize::from(uses.layer)].n_recent
        };
        for (expert, want) in [(0, 0.75), (1, 0.25), (2, 0.0), (5, 1.0)] {
            assert!((share(expert) - want).abs() < 1e-9, "{expert}: {}", share(expert));
        }
    }
}
