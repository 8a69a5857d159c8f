//! The mixture-of-experts block: route, run experts as they arrive, combine.

use std::collections::BTreeSet;
use std::{iter, mem};

use moeflux_backend::{
    ActivationPrecision, Buf, Cols, Combine, ExpertFunction, Experts, MoeOnDevice, Projection,
    ResidentExperts, Route, Routing, Scoring, Shared, Stage, Vector, Weight,
};
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::ExpertsDecl;
use moeflux_core::{ExpertId, LayerIdx};
use moeflux_store::Arrivals;

use super::dense_branch::DenseBranch;
use super::expert_shape::{ExpertShape, GatedExpert};
use super::linear::with_projections;
use super::shared_expert::{SharedExpert, SharedScratch, SharedShape};
use super::token_experts::TokenExperts;
use crate::forward_error::ForwardError;
use crate::layers::builder::{Builder, ExpertCounts};
use crate::layers::predict::Predict;
use crate::load::LoadError;
use crate::moe_lists::{MoeLists, take_over};
use crate::step::Step;

/// What the mixture-of-experts blocks of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeShape {
    pub(crate) n_experts: usize,
    /// The config's `num_experts_per_tok`.
    pub(crate) config_top_k: usize,
    /// Columns between an expert's products.
    pub(crate) intermediate: usize,
    /// Columns that experts read and give, where these are not those of the stream.
    pub(crate) latent: Option<usize>,
    pub(crate) expert: ExpertShape,
    /// What the router is called inside a block.
    pub(crate) router: &'static str,
    pub(crate) shared: Option<SharedShape>,
    /// Experts that a token may choose from.
    pub(crate) n_eligible: usize,
}

/// Loads blocks that share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeBlocks {
    shape: MoeShape,
    top_k: usize,
    scratch: MoeScratch,
    shared: Option<SharedScratch>,
}

/// Activations of mixture-of-experts blocks; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct MoeScratch {
    /// One logit an expert.
    logits: Cols,
    /// `(rows * top_k, columns)`: the output of each chosen expert.
    slots: Buf,
}

/// What a block reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeInput {
    pub(crate) router: Cols,
    /// Also the input of a shared expert.
    pub(crate) experts: Cols,
}

impl MoeInput {
    /// The same for all.
    pub(crate) fn of(x: Cols) -> MoeInput {
        MoeInput { router: x, experts: x }
    }
}

/// What a block reads and writes in a step.
#[derive(Clone, Copy, Debug)]
struct MoeColumns {
    /// The residual stream, to which the output is added.
    acc: Cols,
    /// The input of the experts.
    x: Cols,
    /// The output of the shared expert, where there is one.
    shared: Option<Shared>,
}

/// One block.
#[derive(Debug)]
pub(crate) struct Moe {
    pub(crate) layer: LayerIdx,
    router: Weight,
    /// Added to the router's logits.
    pub(crate) router_bias: Option<Vector>,
    /// Where the experts follow from the token, which ones.
    pub(crate) token_experts: Option<TokenExperts>,
    n_experts: usize,
    n_eligible: usize,
    top_k: usize,
    scoring: Scoring,
    inputs: ActivationPrecision,
    /// What the experts compute.
    pub(crate) function: ExpertFunction,
    shared: Option<SharedExpert>,
    /// A dense MLP that runs while experts are on their way.
    pub(crate) dense_branch: Option<DenseBranch>,
    scratch: MoeScratch,
}

impl MoeShape {
    /// SwiGLU experts under their usual names, without a shared one;
    /// `experts` and `intermediate` are the config's keys.
    pub(crate) fn read(
        config: &Config,
        experts: &str,
        intermediate: &str,
    ) -> Result<MoeShape, LoadError> {
        MoeShape::read_top_k(config, experts, "num_experts_per_tok", intermediate)
    }

    /// The same where `top_k` is the config's key for how many experts a token gets.
    pub(crate) fn read_top_k(
        config: &Config,
        experts: &str,
        top_k: &str,
        intermediate: &str,
    ) -> Result<MoeShape, LoadError> {
        let n_experts = config.usize(experts)?;
        let config_top_k = config.usize(top_k)?;
        if config_top_k > n_experts {
            return Err(config.refuse(top_k, &format!("be at most {experts}")).into());
        }
        Ok(MoeShape {
            n_experts,
            config_top_k,
            intermediate: config.usize(intermediate)?,
            latent: None,
            expert: ExpertShape::Three(GatedExpert::USUAL),
            router: "gate",
            shared: None,
            n_eligible: n_experts,
        })
    }
}

/// Scores of a row that are kept for every expert that it gets.
pub const SCORES_PER_EXPERT: usize = 4;

/// From this number of rows for every expert on, nearly all experts are wanted: with uniform
/// routing all but one in fifty.
const ROWS_OF_ALL: usize = 4;

/// Which layers have routed experts, as Qwen's configs say it.
pub(crate) fn sparse_layers(config: &Config, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    let step = config.usize("decoder_sparse_step")?;
    let dense = config.usize_list("mlp_only_layers")?.unwrap_or_default();
    let is_sparse = |i: usize| !dense.contains(&i) && (i + 1).is_multiple_of(step);
    let layers: Vec<bool> = (0..n_layers).map(is_sparse).collect();
    if !layers.contains(&true) {
        let key = if dense.is_empty() { "decoder_sparse_step" } else { "mlp_only_layers" };
        return Err(config.refuse(key, "leave experts to some layer").into());
    }
    Ok(layers)
}

impl MoeBlocks {
    /// Allocates what the blocks of a model share.
    pub(crate) fn new(shape: MoeShape, builder: &mut Builder<'_, '_>) -> MoeBlocks {
        let MoeShape { n_experts, config_top_k, n_eligible, .. } = shape;
        let build = &mut *builder.build;
        let top_k = build.variant.top_k.unwrap_or(config_top_k).min(n_eligible);
        builder.experts = ExpertCounts { n_experts, n_eligible, top_k, config_top_k };
        let hidden = builder.outline.hidden;
        // The gate of a shared expert is stored as the router is.
        let [logits, scale] = build.cols_together([n_experts, 1]);
        let scratch = MoeScratch {
            logits,
            slots: build
                .weights
                .backend()
                .alloc(build.max_rows * top_k, shape.latent.unwrap_or(hidden)),
        };
        let shared = shape.shared;
        let shared = shared.map(|shared| SharedScratch::alloc(shared, scale, builder));
        MoeBlocks { shape, top_k, scratch, shared }
    }

    /// The block called `name`.
    pub(crate) fn load(
        &self,
        layer: LayerIdx,
        name: &str,
        scoring: Scoring,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Box<Moe>, LoadError> {
        let MoeShape { n_experts, intermediate, expert, .. } = self.shape;
        let hidden = builder.outline.hidden;
        let shared = match self.shape.shared.zip(self.shared) {
            Some((shape, scratch)) => Some(SharedExpert::load(shape, scratch, name, builder)?),
            None => None,
        };
        if let Some(shared) = &shared {
            let projections = shared.mlp.weights();
            if let Some(residency) = builder.build.backend().residency_mut() {
                residency.register_shared(layer, projections);
            }
        }
        let prefix = name.to_owned();
        let (matrices, experts_hidden) = (expert.matrices(), self.shape.latent.unwrap_or(hidden));
        let decl = ExpertsDecl {
            layer,
            prefix,
            matrices,
            n_experts,
            hidden: experts_hidden,
            intermediate,
        };
        builder.build.weights.experts(decl)?;
        Ok(Box::new(Moe {
            layer,
            router: builder.gate(&format!("{name}.{}", self.shape.router), n_experts, hidden)?,
            router_bias: None,
            token_experts: None,
            n_experts,
            n_eligible: self.shape.n_eligible,
            top_k: self.top_k,
            scoring,
            inputs: builder.build.inputs,
            function: expert.function(),
            shared,
            dense_branch: None,
            scratch: self.scratch,
        }))
    }
}

impl Moe {
    /// `acc += moe(input)`. What rows want of the `next` block is predicted while
    /// this one's experts are on their way; where that is nearly everything, it
    /// is read as soon as the drive has brought those of this one.
    ///
    /// Invariant: the order of arrival changes no bit of the result, because
    /// every expert writes rows of its own, which are summed in rank order.
    pub(crate) fn forward(
        &self,
        step: &mut Step<'_>,
        acc: Cols,
        input: MoeInput,
        next: Option<&dyn Predict>,
    ) -> Result<(), ForwardError> {
        let rows = step.rows();
        let x = input.experts;
        let MoeScratch { logits, slots } = self.scratch;
        let is_held = self.is_held(step);
        self.project_first(step, input, !is_held);
        if let Some(bias) = self.router_bias {
            step.backend.add_bias(rows, logits, bias);
        }
        let route = Route { logits, top_k: self.top_k, scoring: self.scoring };
        if is_held {
            self.forward_on_device(step, acc, x, route);
            return Ok(());
        }
        let mut lists = mem::take(step.lists);
        let MoeLists { routing, wanted, batch, .. } = &mut lists;
        match &self.token_experts {
            Some(table) => table.route(step, logits, self.top_k, routing)?,
            None => step.backend.route_into(rows, route, routing)?,
        }
        let Routing { experts, weights } = &*routing;
        self.note(step, experts)?;
        if let Some(observer) = &mut step.observer {
            observer.routed(step.backend, self.layer, x, experts, self.top_k, weights)?;
        }
        // Who observes wants to see all experts at work.
        let asks = step.observer.is_none();
        let residency = step.backend.residency().filter(|_| asks);
        let is_resident =
            |id| residency.is_some_and(|residency| residency.is_resident(self.layer, id));
        wanted.set(experts, self.top_k, is_resident);
        let mut arrivals =
            step.experts.request_into(self.layer, wanted.by_rows(), mem::take(batch));
        if let Some(next) = next
            && self.wants_all(rows)
            && step.experts.reads_ahead()
        {
            step.experts.prefetch_all(next.layer());
        }
        if rows == 1
            && let Some(residency) = step.backend.residency_mut()
        {
            // An upload takes longer than the shared expert, which runs meanwhile.
            residency.begin_upload(self.layer, &wanted.resident, &mut arrivals.resident());
        }
        let shared = self.run_meanwhile(step);
        self.run_arriving(step, &mut lists, &mut arrivals, MoeColumns { acc, x, shared }, next)?;
        let Routing { experts, weights } = &mut lists.routing;
        if arrivals.is_missing() {
            weights.fill(0.0);
        }
        drop(arrivals);
        if let Some(residency) = step.backend.residency_mut() {
            let changes = residency.drain_residency_changes();
            if !changes.is_empty() {
                let changes = changes.iter().map(|change| (change.key, change.is_resident));
                step.experts.set_on_device(changes);
            }
        }
        step.experts.record(self.layer, &experts[experts.len() - self.top_k..]);
        let combine = Combine { acc, slots, top_k: self.top_k, weights, shared };
        step.backend.combine(rows, combine);
        *step.lists = lists;
        Ok(())
    }

    /// Runs what needs no routed expert: the shared one, and the dense MLP next to the block.
    fn run_meanwhile(&self, step: &mut Step<'_>) -> Option<Shared> {
        let layer = Some(self.layer.0);
        if let Some(dense_branch) = &self.dense_branch {
            step.backend.begin_stage(dense_branch.stage, layer);
            dense_branch.run(step);
        }
        step.backend.begin_stage(Stage::SharedExpert, layer);
        let shared = self.shared.as_ref().map(|shared| shared.forward(step));
        step.backend.begin_stage(Stage::RoutedExperts, layer);
        shared
    }

    /// Runs the chosen experts, those first that are there. While some are still
    /// to come, `next` predicts from what the others gave.
    fn run_arriving(
        &self,
        step: &mut Step<'_>,
        lists: &mut MoeLists,
        arrivals: &mut Arrivals<'_>,
        columns: MoeColumns,
        next: Option<&dyn Predict>,
    ) -> Result<(), ForwardError> {
        let MoeLists { routing: Routing { weights, .. }, wanted, batch, calls, so_far } = lists;
        let MoeColumns { acc, x, shared } = columns;
        let slots = self.scratch.slots;
        let op = Experts {
            out: slots,
            x,
            rows: step.rows(),
            inputs: self.inputs,
            function: self.function,
            calls: &[],
        };
        if let Some(residency) = step.backend.residency_mut()
            && !wanted.resident.is_empty()
        {
            let resident = ResidentExperts { layer: self.layer, op, calls: &wanted.resident };
            residency.resident_experts(resident);
        }
        so_far.clear();
        so_far.resize(weights.len(), 0.0);
        take_over(so_far, weights, wanted.resident.iter().map(|call| &call.rows));
        let mut n_missing = wanted.ends.len();
        loop {
            if n_missing > 0 {
                if let Some(recording) = step.backend.recording() {
                    recording.flush();
                }
                // The experts of one row have slots, referenced or not.
                if step.rows() > 1
                    && let Some(residency) = step.backend.residency_mut()
                {
                    residency.release_experts(step.experts.stats().n_slots / 2);
                }
            }
            let Some(mut arrived) = arrivals.next_batch()? else { break };
            n_missing -= arrived.len();
            calls.extend(arrived.drain(..).map(|(i, expert)| wanted.call(i, expert)));
            let op = Experts { calls, ..op };
            if let Some(observer) = &mut step.observer {
                observer.see(step.backend, self.layer, op, weights)?;
            }
            step.backend.experts(op);
            take_over(so_far, weights, calls.iter().map(|call| &call.rows));
            wanted.end(calls);
            *batch = arrived;
            if n_missing > 0
                && let Some(next) = next
            {
                let so_far = Combine { acc, slots, top_k: self.top_k, weights: so_far, shared };
                next.look_early(step, so_far)?;
            }
        }
        Ok(())
    }

    /// Whether all experts are resident on the device and the routing need not be read back:
    /// the step has no recorder and no observer.
    pub(crate) fn is_held(&self, step: &Step<'_>) -> bool {
        step.recorder.is_none()
            && self.token_experts.is_none()
            && step.observer.is_none()
            && step
                .backend
                .residency()
                .is_some_and(|residency| residency.is_layer_resident(self.layer, step.rows()))
    }

    /// As [`forward`](Moe::forward) where the device has all experts.
    fn forward_on_device(&self, step: &mut Step<'_>, acc: Cols, x: Cols, route: Route) {
        if let Some(dense_branch) = &self.dense_branch {
            step.backend.begin_stage(dense_branch.stage, Some(self.layer.0));
            dense_branch.multiply(step);
        }
        step.backend.begin_stage(Stage::RoutedExperts, Some(self.layer.0));
        let op = MoeOnDevice {
            layer: self.layer,
            route,
            x,
            inputs: self.inputs,
            function: self.function,
            slots: self.scratch.slots,
            acc,
            shared: self.shared.map(|shared| shared.beside_experts()),
        };
        let rows = step.rows();
        let residency = step.backend.residency_mut().expect("the layer is resident");
        residency.moe_on_device(rows, op);
        // Here devices may join it with the ops over whole rows that follow.
        if let Some(dense_branch) = &self.dense_branch {
            dense_branch.normalise(step);
        }
    }

    /// Passes a routing and its scores to the step's recorder, if it has one.
    fn note(&self, step: &mut Step<'_>, chosen: &[ExpertId]) -> Result<(), ForwardError> {
        if step.recorder.is_none() {
            return Ok(());
        }
        let top_k = (SCORES_PER_EXPERT * self.top_k).min(self.n_eligible);
        let route = Route { logits: self.scratch.logits, top_k, scoring: self.scoring.plain() };
        let scores = step.backend.route(step.rows(), route)?;
        if let Some(recorder) = &mut step.recorder {
            recorder.routed(self.layer, chosen, scores);
        }
        Ok(())
    }

    /// Reads the experts ahead that follow from a step's tokens.
    pub(super) fn read_known(&self, step: &Step<'_>) {
        if let Some(table) = &self.token_experts
            && step.experts.reads_ahead()
        {
            let residency = step.backend.residency();
            let is_resident =
                |id| residency.is_some_and(|residency| residency.is_resident(self.layer, id));
            let experts: BTreeSet<ExpertId> = table.of(step.tokens, self.top_k).collect();
            let absent = experts.into_iter().filter(|id| !is_resident(*id));
            step.experts.prefetch_many(self.layer, &absent.collect::<Vec<_>>());
        }
    }

    /// Whether this number of rows will want nearly all experts of a layer.
    pub(crate) fn wants_all(&self, rows: usize) -> bool {
        rows * self.top_k >= ROWS_OF_ALL * self.n_experts
    }

    /// The experts that the router would choose for `x`, `top_k` a row, best
    /// first.
    pub(crate) fn preview(
        &self,
        step: &mut Step<'_>,
        x: Cols,
    ) -> Result<Vec<ExpertId>, ForwardError> {
        let rows = step.rows();
        let logits = self.scratch.logits;
        step.backend.project(rows, x, &[Projection { weight: self.router, out: logits }]);
        if let Some(bias) = self.router_bias {
            step.backend.add_bias(rows, logits, bias);
        }
        let route = Route { logits, top_k: self.top_k, scoring: self.scoring };
        Ok(step.backend.route(rows, route)?.experts)
    }

    /// What depends on nothing but the input, with the shared expert's matrices or without.
    fn project_first(&self, step: &mut Step<'_>, input: MoeInput, with_shared: bool) {
        let rows = step.rows();
        let router = Projection { weight: self.router, out: self.scratch.logits };
        if input.router == input.experts {
            let all = iter::once(router).chain(self.shared_projections(with_shared));
            with_projections(all, |all| step.backend.project(rows, input.router, all));
            return;
        }
        step.backend.project(rows, input.router, &[router]);
        let shared = self.shared_projections(with_shared);
        with_projections(shared, |all| {
            if !all.is_empty() {
                step.backend.project(rows, input.experts, all);
            }
        });
    }

    /// Products of the shared expert with the input, or of its gate alone.
    fn shared_projections(&self, with_shared: bool) -> impl Iterator<Item = Projection> {
        self.shared.iter().flat_map(move |shared| {
            let gate = shared.gate.zip(shared.scratch.scale);
            let gate = gate.map(|(weight, out)| Projection { weight, out });
            let first = with_shared.then(|| shared.mlp.first_projections());
            first.into_iter().flatten().chain(gate)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::moe_lists::Wanted;
    use moeflux_backend::ExpertRow;

    use super::*;

    #[test]
    fn groups_rows_by_expert_in_ascending_order() {
        let ids: Vec<ExpertId> = [7, 2, 2, 9].map(ExpertId).to_vec();
        let mut wanted = Wanted::default();
        wanted.set(&ids, 2, |_| false);
        let row = |row, slot| ExpertRow { row, slot };
        let want = [
            (ExpertId(2), vec![row(0, 1), row(1, 2)]),
            (ExpertId(7), vec![row(0, 0)]),
            (ExpertId(9), vec![row(1, 3)]),
        ];
        let rows = |i| wanted.of(i).iter().map(|chosen| chosen.row).collect::<Vec<_>>();
        let by_rows = || wanted.by_rows().enumerate();
        let got: Vec<_> = by_rows().map(|(i, (expert, _))| (expert, rows(i))).collect();
        assert!(by_rows().map(|(_, (_, n_rows))| n_rows).eq([2, 1, 1]));
        assert_eq!(got, want);
        assert!(wanted.resident.is_empty());
        for _ in 0..2 {
            wanted.set(&ids, 2, |id| id != ExpertId(7));
            let resident = wanted.resident.iter().map(|call| (call.expert, call.rows.clone()));
            assert!(resident.eq([want[0].clone(), want[2].clone()]));
            assert!(wanted.by_rows().eq([(ExpertId(7), 1)]));
        }
    }
}
