//! What a model writes, taken apart: what it thinks, what it says, and the
//! tools that it calls.

mod arguments;
mod parameters;
mod parser;
mod probe;
mod scan;
mod syntax;

use std::sync::Arc;

use moeflux_core::TokenId;

pub(crate) use self::parameters::{Kind, Parameters};
pub use self::parser::{Delta, OutputParser};
pub use self::syntax::ToolSyntax;
pub(crate) use self::syntax::{Calls, DSML, TaggedCalls};
use super::tokenizer::Tokenizer;

/// How a model writes what is not plain text, found out from its template and
/// its vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFormat {
    /// How it calls tools, if its template knows any.
    pub tools: Option<ToolSyntax>,
    /// How it thinks.
    pub(crate) thinking: Thinking,
    shown: Arc<[TokenId]>,
}

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

impl OutputFormat {
    /// That of a model; plain text where it has no template.
    pub fn of(tokenizer: &Tokenizer) -> OutputFormat {
        let template = tokenizer.chat_template_source(true).unwrap_or_default();
        let knows = |text: &str| tokenizer.id_of(text).is_some_and(|it| tokenizer.is_control(it));
        // Without tokens of their own, calls could not be told from text.
        let shown = probe::render(tokenizer);
        let found = shown.as_deref().filter(|_| template.contains("tools"));
        let found = found.and_then(ToolSyntax::find).or_else(|| {
            Some(template).filter(|it| it.contains("tools")).and_then(ToolSyntax::find)
        });
        let tools = found.filter(|it| knows(it.first_token()));
        let thinking = match () {
            () if tools == Some(ToolSyntax::Harmony) => Thinking::Channels,
            () if template.contains(THINK[1]) && THINK.iter().all(|it| knows(it)) => Thinking::Tags,
            () => Thinking::Never,
        };
        let markers = tools.into_iter().flat_map(ToolSyntax::markers);
        let shown = markers.chain(THINK).filter_map(|it| tokenizer.id_of(it)).collect();
        OutputFormat { tools, thinking, shown }
    }

    /// Text without any structure.
    pub fn plain() -> OutputFormat {
        OutputFormat { tools: None, thinking: Thinking::Never, shown: Arc::from([]) }
    }

    /// Special tokens that mean something to an [`OutputParser`].
    pub fn shown(&self) -> Arc<[TokenId]> {
        Arc::clone(&self.shown)
    }

    /// Whether what the model thinks can be told from what it says.
    pub fn can_think(&self) -> bool {
        self.thinking != Thinking::Never
    }

    /// Whether calls may follow text: in the harmony format each has a channel of its own.
    pub fn can_call_behind_text(&self) -> bool {
        self.thinking != Thinking::Channels
    }

    /// Whether a prompt ends with thinking that has begun.
    pub fn prompt_opens_thinking(&self, tokens: &[TokenId], tokenizer: &Tokenizer) -> bool {
        let ids = THINK.map(|it| tokenizer.id_of(it));
        let last = tokens.iter().rev().find(|it| ids.contains(&Some(**it)));
        let tail: Vec<TokenId> = tokens.iter().rev().take(4).copied().collect();
        self.thinking == Thinking::Tags
            && last.is_some_and(|it| Some(*it) == ids[0] && tail.contains(it))
    }
}

#[cfg(test)]
mod tests;
