//! Vision towers: patches of one picture become rows that stand in a prompt where tokens do.
//!
//! A tower is blocks of full attention within one picture. It keeps nothing from picture to picture,
//! runs on a backend of its own, and reads its weights as a model reads those of its text.
//!
//! `tower` runs what plans describe; `stacked`, `flat`, `gated` and `pooled` are the plans that families
//! have, named by what tells them apart.

mod block;
mod described;
mod end;
mod family;
pub(crate) mod flat;
pub(crate) mod gated;
mod input;
mod linear;
pub(crate) mod mmproj;
pub(crate) mod pooled;
mod positions;
mod rope;
pub(crate) mod stacked;
mod stem;
mod tower;

pub use described::MmprojShape;
pub(crate) use family::TowerFamily;
pub use input::Picture;
pub use positions::Grid;
pub(crate) use positions::Order;
pub(crate) use tower::TowerPlan;
pub use tower::{Seen, Tower};
