//! Routed experts on demand: large records, each for itself in a slot, that consumers hold.
//!
//! From the floor up: [`plan`] numbers the experts and says where their bytes are. [`slots`] are the
//! memory for them, and a [`policy`] says which expert leaves its slot for another. [`residents`]
//! knows where each expert is, [`requests`] who waits for it, [`queue`] and [`in_flight`] what is
//! read next and now, and [`ahead`] what is read before any request. [`desk`] has all of them behind
//! one lock. [`store`] and [`arrivals`] are what consumers see.

mod ahead;
mod arrivals;
mod desk;
mod device_copies;
mod hints;
mod in_flight;
mod journal;
mod limits;
pub(crate) mod plan;
pub(crate) mod policy;
mod predict;
mod queue;
mod reader;
mod requests;
mod residents;
mod slots;
mod stats;
mod store;
mod timeline;
mod tuner;

pub use arrivals::Arrivals;
pub use requests::Batch;
pub use stats::StoreStats;
pub use store::ExpertStore;
pub use timeline::{Event, EventKind, LayerCounts, Timeline};
pub use tuner::{PrefetchTrial, TrialSide};
