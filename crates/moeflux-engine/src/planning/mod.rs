//! What a model takes in memory, decided before any of it is taken.

mod chunk;
pub(crate) mod facts;
mod planner;
mod prompts;
mod shortage;
mod sizes;

pub(crate) use self::facts::ModelFacts;
pub use self::planner::MAX_SESSIONS;
pub(crate) use self::planner::MemoryPlanner;
pub(crate) use self::shortage::{alternatives, plan_that_fits};
pub use self::sizes::ModelSizes;

#[cfg(test)]
mod tests;
