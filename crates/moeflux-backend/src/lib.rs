//! The interface of compute devices, and the CPU's implementation of it.
//!
//! The engine drives a device one op at a time through [`Backend`]: [`Ops`] are the ops of a
//! forward pass, [`Sequences`] the caches, [`ExpertResidency`] the experts in a device's own
//! memory, [`Recording`] the commands that it has recorded. A backend knows no files, models
//! or sessions: weights and activations are handles, and experts arrive as `Arc<Expert>`.
//!
//! [`cpu`] is the implementation that every machine runs and that defines the bits of all
//! results. [`conformance`] is the test suite that every other backend must pass.
//! [`profiling`] times the ops of any backend; [`trace`] records them as text.

mod args;
mod backend;
pub mod conformance;
mod counters;
pub mod cpu;
mod error;
mod kv;
mod parts;
pub mod profiling;
mod recording;
mod residency;
mod sequences;
mod stage;
mod state_snapshot;
pub mod trace;

pub use args::{
    ActivationPrecision, Attention, BlendStreams, Buf, Cache, CacheSpec, CausalConv, Cols, Combine,
    Decay, DeltaNet, DeltaRule, ExpertBiases, ExpertCall, ExpertFunction, ExpertGroups, ExpertRow,
    Experts, GateFunction, GatedActivation, GatedAttention, GatedRmsNorm, HeadProduct, Heads,
    HostMatrix, JoinStreams, KeysValues, LayerNorm, MixStreams, Mlp, PerExpert, PlainActivation,
    PoolEntries, PoolFunction, PoolKeys, PositionPart, Projection, RmsNorm, Rope, RopePairs,
    RopeSpec, RotaryPositions, Route, Routing, RowPosition, Scoring, SelectPositions, Selection,
    Sequence, Shared, SharedExpert, SimilarityGate, Span, StateShape, StateSpace, StreamShares,
    TokenLogit, ValueOrder, Vector, WeighStreams, Weight, entries_in, is_seen,
};
pub use backend::{Backend, HiddenRows, LogitsExtras, Ops, PrerecordedStep};
pub use counters::{DeviceCounters, DeviceStats};
pub use error::DeviceError;
pub use kv::KvType;
pub use recording::{KernelTime, Recording};
pub use residency::{
    ExpertResidency, MoeOnDevice, ResidencyChange, ResidencyRequest, ResidentCall, ResidentExperts,
};
pub use sequences::Sequences;
pub use stage::Stage;
pub use state_snapshot::{SplitSpans, StateSnapshot};
