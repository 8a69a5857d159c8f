//! What a plan is made of, row by row, and what makes one smaller that does not fit.

use std::path::PathBuf;

use moeflux_core::OptionId;

use super::MemoryPlanner;
use crate::options::{EngineOptions, PromptMemory};
use crate::plan::{Alternative, Change, Plan, Shortage};

/// Plans with one option changed, each of which takes less memory or leaves more of it to the
/// cache.
pub(crate) fn alternatives(planner: &MemoryPlanner, plan: &Plan) -> Vec<Alternative> {
    let options = &planner.options;
    let mut changes: Vec<(Change, EngineOptions)> = Vec::new();
    let set = |option, value: String| Change { option, value: Some(value) };
    if let Some(ctx) = [8192, 4096, 1024, 256].into_iter().find(|ctx| *ctx <= plan.ctx / 2) {
        let changed = options.clone().ctx(Some(ctx));
        changes.push((set(OptionId::Ctx, ctx.to_string()), changed));
    }
    if let Some(chunk) = [512, 128, 32].into_iter().find(|rows| *rows <= plan.chunk / 2) {
        let changed = options.clone().chunk(Some(chunk));
        changes.push((set(OptionId::Chunk, chunk.to_string()), changed));
    }
    let few = 2 * plan.state_bytes;
    if few > 0 && few < plan.checkpoint_bytes {
        let mib = few.div_ceil(1 << 20);
        let changed = options.clone().checkpoint_bytes(Some(mib << 20));
        changes.push((set(OptionId::CheckpointBytes, format!("{mib}MiB")), changed));
    }
    if plan.n_sessions > 1 {
        let n = plan.n_sessions / 2;
        let changed = options.clone().sessions(Some(n));
        changes.push((set(OptionId::Sessions, n.to_string()), changed));
    }
    if plan.prompt_cache_bytes > 0 && options.memory.prompts != PromptMemory::Planned {
        let changed = options.clone().prompt_memory(PromptMemory::Planned);
        changes.push((Change { option: OptionId::PromptMemory, value: None }, changed));
    }
    if options.experts.cache.is_some() {
        let changed = options.clone().expert_cache(None);
        changes.push((Change { option: OptionId::ExpertCache, value: None }, changed));
    }
    let planned = changes.into_iter().map(|(change, options)| {
        let planner = MemoryPlanner { options, ..planner.clone() };
        Alternative { change, plan: planner.plan() }
    });
    planned.collect()
}

/// The plan, or why there is none.
pub(crate) fn plan_that_fits(
    planner: &MemoryPlanner,
    path: PathBuf,
) -> Result<Plan, Box<Shortage>> {
    let plan = planner.plan();
    if plan.fits() {
        Ok(plan)
    } else {
        let mut alternatives = alternatives(planner, &plan);
        alternatives.retain(|other| other.saves(&plan) > 0);
        alternatives.sort_by_key(|other| std::cmp::Reverse(other.saves(&plan)));
        Err(Box::new(Shortage { path, plan, alternatives }))
    }
}
