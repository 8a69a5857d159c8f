//! The mixture-of-experts block: route, run experts as they arrive, combine.

use std::sync::Arc;

use moeflux_backend::{
    Activation, Buf, Cols, Combine, ExpertBiases, ExpertCall, ExpertRow, Experts, Inputs,
    Projection, Route, Routing, Scoring, Shared, Weight,
};
use moeflux_core::{Expert, ExpertId, LayerIdx};

use super::Step;
use crate::error::EngineError;

/// Activations of mixture-of-experts blocks; one set serves all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeScratch {
    /// One logit an expert.
    pub(crate) logits: Cols,
    /// `(rows * top_k, hidden)`: the output of each chosen expert.
    pub(crate) slots: Buf,
}

/// Activations of shared experts; one set serves all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedScratch {
    pub(crate) gate: Cols,
    pub(crate) up: Cols,
    pub(crate) out: Cols,
    /// One logit a row.
    pub(crate) scale: Cols,
}

/// An expert that every row gets.
#[derive(Debug)]
pub(crate) struct SharedExpert {
    pub(crate) gate_proj: Weight,
    pub(crate) up_proj: Weight,
    pub(crate) down_proj: Weight,
    /// Where present, one logit whose sigmoid scales the output.
    pub(crate) scale: Option<Weight>,
    pub(crate) scratch: SharedScratch,
}

/// One block.
#[derive(Debug)]
pub(crate) struct Moe {
    pub(crate) layer: LayerIdx,
    pub(crate) router: Weight,
    pub(crate) top_k: usize,
    pub(crate) scoring: Scoring,
    pub(crate) inputs: Inputs,
    pub(crate) activation: Activation,
    pub(crate) biases: Option<ExpertBiases>,
    pub(crate) shared: Option<SharedExpert>,
    pub(crate) scratch: MoeScratch,
}

impl Moe {
    /// `acc += moe(x)`.
    ///
    /// Invariant: the order of arrival changes no bit of the result, because
    /// every expert writes rows of its own, which are summed in rank order.
    pub(crate) fn forward(
        &self,
        step: &mut Step<'_>,
        acc: Cols,
        x: Cols,
    ) -> Result<(), EngineError> {
        let rows = step.rows();
        let MoeScratch { logits, slots } = self.scratch;
        step.backend.project(rows, x, &self.first_projections());
        let route = Route { logits, top_k: self.top_k, scoring: self.scoring };
        let Routing { experts, mut weights } = step.backend.route(rows, route)?;
        let wanted = rows_by_expert(&experts, self.top_k);
        let ids: Vec<ExpertId> = wanted.iter().map(|(id, _)| *id).collect();
        let mut arrivals = step.experts.request(self.layer, &ids);
        let shared = self.shared.as_ref().map(|it| it.forward(step));
        while let Some(batch) = arrivals.next_batch()? {
            let call = |(i, expert): (usize, Arc<Expert>)| ExpertCall {
                expert,
                rows: wanted[i].1.clone(),
            };
            let calls: Vec<ExpertCall> = batch.into_iter().map(call).collect();
            step.backend.experts(Experts {
                out: slots,
                x,
                inputs: self.inputs,
                activation: self.activation,
                biases: self.biases,
                calls: &calls,
            });
        }
        if arrivals.is_missing() {
            weights.fill(0.0);
        }
        drop(arrivals);
        step.experts.record(self.layer, &experts[experts.len() - self.top_k..]);
        let combine = Combine { acc, slots, top_k: self.top_k, weights: &weights, shared };
        step.backend.combine(rows, combine);
        Ok(())
    }

    /// What depends on nothing but the input.
    fn first_projections(&self) -> Vec<Projection> {
        let mut all = vec![Projection { weight: self.router, out: self.scratch.logits }];
        if let Some(shared) = &self.shared {
            all.push(Projection { weight: shared.gate_proj, out: shared.scratch.gate });
            all.push(Projection { weight: shared.up_proj, out: shared.scratch.up });
            let scale = shared.scale.map(|weight| Projection { weight, out: shared.scratch.scale });
            all.extend(scale);
        }
        all
    }
}

impl SharedExpert {
    /// Finishes what [`Moe::first_projections`] began.
    fn forward(&self, step: &mut Step<'_>) -> Shared {
        let rows = step.rows();
        let SharedScratch { gate, up, out, scale } = self.scratch;
        step.backend.swiglu(rows, gate, gate, up);
        step.backend.project(rows, gate, &[Projection { weight: self.down_proj, out }]);
        Shared { out, gate: self.scale.map(|_| scale) }
    }
}

/// The distinct experts of a batch, ascending, each with the rows that chose
/// it, so that records are asked for in the order in which they lie on disk.
fn rows_by_expert(experts: &[ExpertId], top_k: usize) -> Vec<(ExpertId, Vec<ExpertRow>)> {
    let as_row = |slot: usize| ExpertRow {
        row: u32::try_from(slot / top_k).expect("a batch has few rows"),
        slot: u32::try_from(slot).expect("a batch has few slots"),
    };
    let mut chosen: Vec<(ExpertId, ExpertRow)> =
        experts.iter().enumerate().map(|(slot, id)| (*id, as_row(slot))).collect();
    chosen.sort_by_key(|(id, row)| (*id, row.slot));
    let groups = chosen.chunk_by(|a, b| a.0 == b.0);
    groups.map(|it| (it[0].0, it.iter().map(|(_, row)| *row).collect())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_rows_by_expert_in_ascending_order() {
        let ids: Vec<ExpertId> = [7, 2, 2, 9].map(ExpertId).to_vec();
        let got = rows_by_expert(&ids, 2);
        let row = |row, slot| ExpertRow { row, slot };
        let want = vec![
            (ExpertId(2), vec![row(0, 1), row(1, 2)]),
            (ExpertId(7), vec![row(0, 0)]),
            (ExpertId(9), vec![row(1, 3)]),
        ];
        assert_eq!(got, want);
    }
}
