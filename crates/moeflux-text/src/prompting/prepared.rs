//! A conversation as the model reads it, and how its answer is read.

use std::sync::Arc;

use moeflux_core::TokenId;

use super::tool_names::ToolNames;
use crate::constrain::Constraint;
use crate::output::{Delta, NoCalls, OutputFormat, OutputParser, Thoughts};
use crate::turn::Turn;

/// A prompt, what its answer is held to, and how the answer is read.
#[derive(Clone)]
pub struct Prepared {
    /// What the model reads.
    pub turn: Turn,
    /// Tokens that the answer is expected to repeat in large parts.
    pub expected: Arc<[TokenId]>,
    /// What the answer must match; `None` where that is any text.
    pub constraint: Option<Constraint>,
    /// Rules out calls of tools, where the model may call none.
    pub no_calls: Option<NoCalls>,
    /// Follows the answer through its thoughts and ends them; `None` where none are marked.
    pub thoughts: Option<Thoughts>,
    /// Special tokens that are part of the answer's text.
    pub shown: Arc<[TokenId]>,
    /// Takes the answer apart.
    pub reader: AnswerReader,
    /// Whether the answer is expected to begin with thoughts.
    pub may_think: bool,
}

impl Prepared {
    /// Tokens that the model continues as text, in any way.
    pub fn of_tokens(tokens: Vec<TokenId>) -> Prepared {
        let format = OutputFormat::plain();
        Prepared {
            turn: Turn::raw(tokens),
            expected: Arc::default(),
            constraint: None,
            no_calls: None,
            thoughts: None,
            shown: format.shown(),
            reader: AnswerReader::plain(),
            may_think: false,
        }
    }

    /// This prompt, whose answer is read as text: thoughts are part of it, special tokens are not.
    #[must_use]
    pub fn read_as_text(self) -> Prepared {
        Prepared { shown: OutputFormat::plain().shown(), reader: AnswerReader::plain(), ..self }
    }
}

/// Takes an answer apart as it comes: what the model thinks, says and calls.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    parser: OutputParser,
    /// Tools that the model knows under other names than the caller.
    tool_names: ToolNames,
}

impl AnswerReader {
    pub(super) fn new(parser: OutputParser, tool_names: ToolNames) -> AnswerReader {
        AnswerReader { parser, tool_names }
    }

    /// Reads an answer that is text and nothing else.
    pub fn plain() -> AnswerReader {
        let parser = OutputParser::new(&OutputFormat::plain(), None, false);
        AnswerReader::new(parser, ToolNames::default())
    }

    /// Reads more text.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.restored(|parser| parser.push(text))
    }

    /// Ends the text: what was held back comes out.
    pub fn finish(&mut self) -> Vec<Delta> {
        self.restored(OutputParser::finish)
    }

    fn restored(&mut self, read: impl FnOnce(&mut OutputParser) -> Vec<Delta>) -> Vec<Delta> {
        let mut deltas = read(&mut self.parser);
        self.tool_names.restore(&mut deltas);
        deltas
    }
}

impl From<OutputParser> for AnswerReader {
    /// Leaves the names of tools as the model writes them.
    fn from(parser: OutputParser) -> AnswerReader {
        AnswerReader::new(parser, ToolNames::default())
    }
}
