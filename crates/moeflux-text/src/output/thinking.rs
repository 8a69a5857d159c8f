//! How thoughts are marked.

/// How a model separates its reasoning from its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thinking {
    /// The model does not mark reasoning.
    Never,
    /// By `<think>` and `</think>`.
    Tags,
    /// By `<|channel>thought` and `<channel|>` (Gemma 4).
    Thought,
    /// By the channels of the harmony format.
    Channels,
}

/// The tags of most models.
pub(crate) const THINK: [&str; 2] = ["<think>", "</think>"];

/// The tags of Gemma 4.
const THOUGHT: [&str; 2] = ["<|channel>thought\n", "<channel|>"];

impl Thinking {
    /// The ways that consist of two tags.
    pub(super) const TAGGED: [Thinking; 2] = [Thinking::Tags, Thinking::Thought];

    /// What begins and ends thoughts, where two tags do.
    pub(crate) fn tags(self) -> Option<[&'static str; 2]> {
        match self {
            Thinking::Tags => Some(THINK),
            Thinking::Thought => Some(THOUGHT),
            Thinking::Never | Thinking::Channels => None,
        }
    }

    /// The tokens in these tags.
    pub(super) fn tokens(self) -> Option<[&'static str; 2]> {
        self.tags().map(|tags| tags.map(|tag| tag.split_inclusive('>').next().unwrap_or(tag)))
    }
}
