//! What a model takes in memory, decided before any of it is taken.

pub(crate) mod facts;
mod planner;
mod rows;
mod sessions;
mod shortage;
mod sizes;

pub(crate) use self::facts::ModelFacts;
pub use self::planner::MAX_SESSIONS;
pub(crate) use self::planner::MemoryPlanner;
pub use self::rows::{Alternative, Plan, PlanRow, RowKind, Shortage};
pub use self::sizes::ModelSizes;

#[cfg(test)]
mod tests;
