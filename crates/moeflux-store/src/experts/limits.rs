//! How many experts may be in memory, be pinned by a request, or be read ahead.

use moeflux_core::show_bytes;

use super::plan::Plan;
use crate::{StoreError, StoreOptions};

/// The limits of a cache, which follow from its bank and options.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    slot_bytes: usize,
    n_experts: usize,
    /// Experts of all layers that one token uses.
    n_working: usize,
    /// Slots without which one token cannot pass through a layer.
    n_needed: usize,
    /// Slots that reads ahead leave to requests.
    pub(super) n_reserved: usize,
    /// The most experts that a request pins at a time.
    pub(super) max_pinned: usize,
}

impl Limits {
    pub(super) fn new(plan: &Plan, options: &StoreOptions) -> Limits {
        let (n_experts, slot_bytes) = (plan.n_experts(), plan.slot_bytes());
        let n_needed = options.top_k.min(plan.layer_sizes().into_iter().max().unwrap_or(0));
        let pinned = options.max_pinned_bytes.and_then(|bytes| bytes.checked_div(slot_bytes));
        let max_pinned = pinned.map_or(usize::MAX, |n| n.max(n_needed)).max(1);
        let (n_working, n_reserved) = (n_needed * plan.n_moe_layers(), options.top_k);
        Limits { slot_bytes, n_experts, n_working, n_needed, n_reserved, max_pinned }
    }

    /// Bytes of the slots without which one token cannot pass through a layer.
    pub(super) fn needed_bytes(&self) -> u64 {
        self.n_needed as u64 * self.slot_bytes as u64
    }

    /// Slots in a budget of bytes, at most one for each expert; none where experts have no bytes.
    pub(super) fn n_slots(&self, budget: u64) -> usize {
        let n_slots = budget.checked_div(self.slot_bytes as u64).unwrap_or(0);
        usize::try_from(n_slots).unwrap_or(usize::MAX).min(self.n_experts)
    }

    /// Bytes of the slots in a budget of bytes.
    pub(super) fn slot_bytes_in(&self, budget: u64) -> u64 {
        self.n_slots(budget) as u64 * self.slot_bytes as u64
    }

    /// # Errors
    /// If one token cannot pass through a layer with a budget of bytes.
    pub(super) fn check(&self, budget: u64) -> Result<(), StoreError> {
        let (top_k, record) = (self.n_needed, self.slot_bytes);
        let needed = top_k.max(1) as u64 * record as u64;
        if budget < needed {
            return Err(StoreError::BudgetTooSmall { budget, needed, top_k, record });
        }
        Ok(())
    }

    /// A warning if a budget of bytes keeps little from token to token.
    pub(super) fn warning(&self, budget: u64) -> Option<String> {
        let (n_slots, n_working) = (self.n_slots(budget), self.n_working);
        (n_slots < n_working).then(|| {
            let enough = show_bytes(n_working as u64 * self.slot_bytes as u64);
            format!(
                "the expert cache of {} holds {n_slots} experts and one token uses {n_working}: \
                 little will be kept from token to token below {enough}",
                show_bytes(budget)
            )
        })
    }
}
