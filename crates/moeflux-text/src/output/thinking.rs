//! How thoughts are marked.

/// How what a model thinks is told from what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thinking {
    /// It is not.
    Never,
    /// By `<think>` and `</think>`.
    Tags,
    /// By the channels of the harmony format.
    Channels,
}

pub(crate) const THINK: [&str; 2] = ["<think>", "</think>"];
