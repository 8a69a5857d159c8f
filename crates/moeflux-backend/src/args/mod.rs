//! Arguments and results of ops.

mod caches;
mod fused;
mod layers;
mod logits;
mod mixers;
mod moe;
mod spans;
mod streams;
mod views;
mod weights;

pub use caches::{CacheSpec, StateShape, entries_in, is_seen};
pub use fused::{DeltaNet, GatedAttention, Mlp, SharedExpert};
pub use layers::{GateFunction, GatedRmsNorm, HeadProduct, LayerNorm, Projection, RmsNorm};
pub use logits::TokenLogit;
pub use mixers::{
    Attention, CausalConv, Decay, DeltaRule, KeysValues, PoolEntries, PoolFunction, PoolKeys,
    SelectPositions, StateSpace, ValueOrder,
};
pub use moe::{
    Combine, ExpertBiases, ExpertCall, ExpertFunction, ExpertGroups, ExpertRow, Experts,
    GatedActivation, PerExpert, PlainActivation, Route, Routing, Scoring, Shared,
};
pub use spans::{PositionPart, RotaryPositions, RowPosition, Span};
pub use streams::{
    BlendStreams, JoinStreams, MixStreams, SimilarityGate, StreamShares, WeighStreams,
};
pub use views::{Buf, Cache, Cols, Heads, Rope, Selection, Sequence, Vector, Weight};
pub use weights::{ActivationPrecision, HostMatrix, RopePairs, RopeSpec};
