//! How thoughts are marked.

/// How a model separates its reasoning from its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thinking {
    /// The model does not mark reasoning.
    Never,
    /// By `<think>` and `</think>`.
    Tags,
    /// By the channels of the harmony format.
    Channels,
}

pub(crate) const THINK: [&str; 2] = ["<think>", "</think>"];
