//! What a model writes, taken apart: what it thinks, what it says, and the
//! tools that it calls.

mod arguments;
mod bare;
mod no_calls;
mod parameters;
mod parser;
mod probe;
mod read;
mod scan;
mod syntax;
mod table;
mod thinking;
mod thoughts;

use std::sync::Arc;

use moeflux_core::TokenId;

use self::table::KnownCalls;
use super::chat::ChatTemplate;
use super::message::Message;
use super::tokenizer::Tokenizer;

pub use self::no_calls::NoCalls;
pub(crate) use self::parameters::{Kind, Parameters};
pub use self::parser::{Delta, OutputParser};
use self::syntax::marks_in;
pub(crate) use self::syntax::{Calls, DSML, JsonCalls, TaggedCalls};
pub use self::table::ToolSyntax;
pub(crate) use self::thinking::{THINK, Thinking};
use self::thoughts::ThoughtMarks;
pub use self::thoughts::Thoughts;

/// How a model writes what is not plain text, read out of what its template renders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFormat {
    /// How it calls tools, or why that is not known.
    calls: Result<KnownCalls, String>,
    /// How it thinks.
    pub(crate) thinking: Thinking,
    shown: Arc<[TokenId]>,
    /// What begins calls, where text shows that.
    no_calls: Option<Arc<no_calls::Rules>>,
    /// What marks thoughts.
    thoughts: Option<Arc<ThoughtMarks>>,
}

impl OutputFormat {
    /// That of a model; plain text where it has no template. Renders about twenty short
    /// conversations.
    pub fn of(tokenizer: &Tokenizer) -> OutputFormat {
        let Some(Ok(template)) = ChatTemplate::of(tokenizer, true) else {
            return OutputFormat::without_calls("the model has no chat template that can be read");
        };
        let knows = |text: &str| tokenizer.id_of(text).is_some_and(|id| tokenizer.is_control(id));
        let calls = probe::calls(&template).map_err(str::to_owned);
        // Calls that begin with text are not parsed, and are not sampled either.
        let written = calls.as_ref().ok().map(|known| Arc::clone(&known.calls));
        let calls = calls.and_then(|known| {
            // A call must begin with a control token; otherwise text could look like a call.
            let begins = known.calls.begins().trim();
            if marks_in(begins).iter().any(|mark| knows(mark)) {
                Ok(known)
            } else {
                Err(format!("{begins:?} begins calls and is no token of the vocabulary"))
            }
        });
        let is_harmony = calls.as_ref().is_ok_and(|known| *known.calls == Calls::Channels);
        let thinking = match probe::thinking(&template) {
            Thinking::Channels if knows("<|channel|>") => Thinking::Channels,
            _ if is_harmony => Thinking::Channels,
            thinking if thinking.tokens().is_some_and(|tokens| tokens.into_iter().all(knows)) => {
                thinking
            }
            _ => Thinking::Never,
        };
        let parts = calls.iter().flat_map(|known| known.calls.parts());
        let channels = Calls::Channels;
        let parts = parts.chain(
            (thinking == Thinking::Channels).then(|| channels.parts()).into_iter().flatten(),
        );
        let tokens = thinking.tokens().unwrap_or(THINK);
        let shown = parts.flat_map(marks_in).chain(tokens);
        let shown = shown.filter_map(|mark| tokenizer.id_of(mark)).collect();
        let written = match thinking {
            Thinking::Channels => Some(Arc::new(channels)),
            _ => written,
        };
        let rules = |calls: Arc<Calls>| no_calls::Rules::of(&calls, &template, tokenizer);
        let no_calls = written.and_then(rules).map(Arc::new);
        let thoughts = ThoughtMarks::of(thinking, &template, tokenizer).map(Arc::new);
        OutputFormat { calls, thinking, shown, no_calls, thoughts }
    }

    fn without_calls(reason: &str) -> OutputFormat {
        let calls = Err(reason.to_owned());
        OutputFormat {
            calls,
            thinking: Thinking::Never,
            shown: Arc::from([]),
            no_calls: None,
            thoughts: None,
        }
    }

    /// This format with calls in a syntax of the table, whatever the template writes.
    #[must_use]
    pub fn with_syntax(self, syntax: ToolSyntax) -> OutputFormat {
        OutputFormat { calls: Ok(KnownCalls::of(syntax)), ..self }
    }

    /// In which syntax the model calls tools, if that is known.
    pub fn syntax(&self) -> Option<ToolSyntax> {
        self.calls.as_ref().ok().map(|known| known.syntax)
    }

    /// How calls are written, with names for what the model fills in.
    ///
    /// # Errors
    /// The reason why it is not known.
    pub fn call_example(&self) -> Result<String, &str> {
        self.calls.as_ref().map(|known| known.calls.example()).map_err(String::as_str)
    }

    /// The markup of calls.
    pub(crate) fn calls(&self) -> Option<&Arc<Calls>> {
        self.calls.as_ref().ok().map(|known| &known.calls)
    }

    /// Text without any structure.
    pub fn plain() -> OutputFormat {
        OutputFormat::without_calls("plain text has no calls")
    }

    /// What holds an answer to text where a request with these messages offers no tools, after a
    /// prompt with these tokens. `None` where the model has no calls, none that can be distinguished from
    /// text, or where a system message shows how to call, which offers tools in its own words.
    pub fn no_calls(&self, messages: &[Message], prompt: &[TokenId]) -> Option<NoCalls> {
        NoCalls::new(self.no_calls.as_ref()?, messages, prompt)
    }

    /// What follows an answer through its thoughts, where a prompt ends with thinking that has begun or
    /// does not, and where tools may be called. `None` where the model does not mark thoughts.
    pub fn thoughts(&self, is_thinking: bool, may_call: bool) -> Option<Thoughts> {
        Some(Thoughts::new(self.thoughts.as_ref()?, is_thinking, may_call))
    }

    /// Special tokens that mean something to an [`OutputParser`].
    pub fn shown(&self) -> Arc<[TokenId]> {
        Arc::clone(&self.shown)
    }

    /// Whether the reasoning of an answer can be separated from its content.
    pub fn can_think(&self) -> bool {
        self.thinking != Thinking::Never
    }

    /// What separates thoughts from the answer, for messages.
    pub fn thinking_name(&self) -> &'static str {
        match self.thinking {
            Thinking::Never => "none",
            Thinking::Tags => "<think> and </think>",
            Thinking::Thought => "<|channel>thought and <channel|>",
            Thinking::Channels => "channels (analysis, commentary, final)",
        }
    }

    /// Whether calls may follow text: in the harmony format each has a channel of its own.
    pub fn can_call_behind_text(&self) -> bool {
        self.thinking != Thinking::Channels
    }

    /// Whether a prompt ends with thinking that has begun.
    pub fn prompt_opens_thinking(&self, tokens: &[TokenId], tokenizer: &Tokenizer) -> bool {
        let Some(ids) = self.thinking.tokens() else { return false };
        let ids = ids.map(|token| tokenizer.id_of(token));
        let last = tokens.iter().rev().find(|token| ids.contains(&Some(**token)));
        let tail: Vec<TokenId> = tokens.iter().rev().take(4).copied().collect();
        last.is_some_and(|token| Some(*token) == ids[0] && tail.contains(token))
    }
}

#[cfg(test)]
mod tests;
