//! The rule by which a device that routes by itself decides which experts of a partly resident layer
//! have slots.
//!
//! A chosen expert that has no slot is admitted; the expert leaves that was chosen least often
//! lately, of equal ones that in the slot of the lowest number. Each choice counts as one, and half
//! of it after each expert was chosen [`HALF_LIFE`] times in the mean. What a step chose stays in
//! that step. Kernels do this on the device; [`Admission`] is the definition that they follow.

use moeflux_core::ExpertId;

/// Choices of each expert, in the mean, in which the count of one halves; as the store's policy has
/// it.
const HALF_LIFE: f32 = 4.0;

/// Choices of a step that a device has room for.
pub const MAX_CHOICES: usize = 256;

/// Most rows whose experts are admitted together: the device handles one choice after the other.
pub const MAX_ADMITTED_ROWS: usize = 8;

/// Marks an expert without a slot.
const ABSENT: u32 = u32::MAX;

/// Halvings of a count with each step of `n_choices`.
pub fn decay(n_choices: usize, n_experts: usize) -> f32 {
    n_choices as f32 / (HALF_LIFE * n_experts as f32)
}

/// Which experts of a layer have slots, and how often each was chosen lately.
#[derive(Clone, Debug)]
pub struct Admission {
    n_steps: u32,
    /// By expert.
    slot_of: Vec<Option<usize>>,
    /// By expert: choices, as they counted at the step in `counted_at`.
    counts: Vec<f32>,
    counted_at: Vec<u32>,
    /// By slot.
    expert_in: Vec<ExpertId>,
}

/// An expert that a step brings into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The expert.
    pub expert: ExpertId,
    /// The number of its slot.
    pub slot: usize,
    /// The expert that left the slot.
    pub evicted: ExpertId,
}

impl Admission {
    /// A layer of `n_experts`, none of which was chosen yet, with one expert in each slot.
    ///
    /// # Panics
    /// If the layer has no such expert.
    pub fn new(n_experts: usize, contents: impl IntoIterator<Item = ExpertId>) -> Admission {
        let expert_in: Vec<ExpertId> = contents.into_iter().collect();
        let mut slot_of = vec![None; n_experts];
        for (slot, expert) in expert_in.iter().enumerate() {
            slot_of[expert.idx()] = Some(slot);
        }
        let (counts, counted_at) = (vec![0.0; n_experts], vec![0; n_experts]);
        Admission { n_steps: 0, slot_of, counts, counted_at, expert_in }
    }

    /// The number of an expert's slot, if it has one.
    pub fn slot_of(&self, expert: ExpertId) -> Option<usize> {
        self.slot_of[expert.idx()]
    }

    /// Admits the experts that the rows of a step chose; returns those that had no slot, in the order
    /// in which they were chosen first.
    ///
    /// # Panics
    /// If a step chooses more different experts than there are slots.
    pub fn admit(&mut self, chosen: &[ExpertId]) -> Vec<Admitted> {
        self.n_steps += 1;
        let decay = decay(chosen.len(), self.slot_of.len());
        let mut absent = Vec::new();
        for (nth, expert) in chosen.iter().enumerate() {
            if chosen[..nth].contains(expert) {
                continue;
            }
            if self.slot_of(*expert).is_none() {
                absent.push(*expert);
            }
            self.counts[expert.idx()] = self.count(*expert, decay) + 1.0;
            self.counted_at[expert.idx()] = self.n_steps;
        }
        absent.into_iter().map(|expert| self.admit_one(expert, decay)).collect()
    }

    fn admit_one(&mut self, expert: ExpertId, decay: f32) -> Admitted {
        let held = self.expert_in.iter().enumerate();
        let may_leave = held.filter(|(_, held)| self.counted_at[held.idx()] != self.n_steps);
        let counted = may_leave.map(|(slot, held)| (slot, self.count(*held, decay)));
        let least = counted.min_by(|one, other| one.1.total_cmp(&other.1));
        let (slot, _) = least.expect("a step chooses no more experts than there are slots");
        let evicted = std::mem::replace(&mut self.expert_in[slot], expert);
        self.slot_of[evicted.idx()] = None;
        self.slot_of[expert.idx()] = Some(slot);
        Admitted { expert, slot, evicted }
    }

    /// How much the choices of an expert count in this step.
    fn count(&self, expert: ExpertId, decay: f32) -> f32 {
        let n_steps = self.n_steps - self.counted_at[expert.idx()];
        self.counts[expert.idx()] * (-decay * n_steps as f32).exp2()
    }

    /// The state as kernels have it: the number of steps; by expert the slots, the bits of the counts,
    /// and the steps in which they were counted; by slot the experts. `u32::MAX` stands for none.
    ///
    /// # Panics
    /// If there are 2^32 slots.
    pub fn words(&self) -> Vec<u32> {
        let number = |slot: usize| u32::try_from(slot).expect("kernels count in 32 bits");
        let mut words = vec![self.n_steps];
        words.extend(self.slot_of.iter().map(|slot| slot.map_or(ABSENT, number)));
        words.extend(self.counts.iter().map(|count| count.to_bits()));
        words.extend(&self.counted_at);
        words.extend(self.expert_in.iter().map(|expert| u32::from(expert.0)));
        words
    }
}
