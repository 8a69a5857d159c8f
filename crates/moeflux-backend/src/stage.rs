//! The stages of a model that profiles distinguish.

/// The part of a model that a run of ops belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Attention, its norm and its projections included.
    Attention,
    /// A gated delta net in place of attention, its norm and its projections included.
    DeltaNet,
    /// A state-space layer in place of attention, its norm and its projections included.
    StateSpace,
    /// The norm before the experts, the router and its choice.
    Router,
    /// The expert that every row gets.
    SharedExpert,
    /// The experts chosen, and the sum of their outputs.
    RoutedExperts,
    /// The MLP of a layer without experts.
    DenseMlp,
    /// The last norm and the logits.
    Head,
    /// Everything else.
    Rest,
}

impl Stage {
    /// All of them, in the order in which a model runs them.
    pub const ALL: [Stage; 9] = [
        Stage::Attention,
        Stage::DeltaNet,
        Stage::StateSpace,
        Stage::Router,
        Stage::SharedExpert,
        Stage::RoutedExperts,
        Stage::DenseMlp,
        Stage::Head,
        Stage::Rest,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Attention => "attention",
            Stage::DeltaNet => "delta net",
            Stage::StateSpace => "state space",
            Stage::Router => "router",
            Stage::SharedExpert => "shared expert",
            Stage::RoutedExperts => "routed experts",
            Stage::DenseMlp => "dense MLP",
            Stage::Head => "head",
            Stage::Rest => "rest",
        }
    }
}
