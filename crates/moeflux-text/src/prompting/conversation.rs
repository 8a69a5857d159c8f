//! A conversation whose next turn is wanted.

use moeflux_core::PictureRows;
use serde_json::{Map, Value};

use crate::constrain::AnswerShape;
use crate::message::Message;

/// A conversation whose next turn is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// All turns so far.
    pub messages: Vec<Message>,
    /// The pictures of their parts `{"type": "image"}`, in the order in which these stand in messages.
    pub pictures: Vec<PictureRows>,
    /// Tools that the model may call.
    pub tools: Tools,
    /// Whether it may, or must.
    pub tool_choice: ToolChoice,
    /// Whether several calls at a time are wanted.
    pub may_call_many: bool,
    /// Form of the answer.
    pub shape: AnswerShape,
    /// Whether the model is to think, where it can; as its template has it where absent.
    pub thinking: Option<bool>,
    /// How much it is to think, in a word of OpenAI's API; the template gets the nearest word that it
    /// knows.
    pub effort: Option<String>,
    /// Tokens that it thinks at most; then its thoughts are ended, and the answer goes on. 0 asks for no
    /// thoughts, and ends those of a model that begins some all the same.
    pub thinking_budget: Option<usize>,
    /// Further variables of the template.
    pub variables: Map<String, Value>,
    /// Whether the last message is the beginning of the answer.
    pub continues: bool,
    /// Text that the answer is expected to repeat in large parts, such as a file that it edits. Tokens
    /// are drafted from it. Changes no token.
    pub expected: Option<String>,
}

/// Tokens of an answer below which there is no thinking: what begins and ends thoughts takes up to nine.
const LEAST_THINKING: usize = 16;

impl Conversation {
    /// Asks for text, without tools.
    pub fn new(messages: Vec<Message>) -> Conversation {
        Conversation {
            messages,
            pictures: Vec::new(),
            tools: Tools::default(),
            tool_choice: ToolChoice::Auto,
            may_call_many: true,
            shape: AnswerShape::Text,
            thinking: None,
            effort: None,
            thinking_budget: None,
            variables: Map::new(),
            continues: false,
            expected: None,
        }
    }

    /// For an answer of `max_tokens` at most: with fewer than 16 the model does not think, so that they
    /// are the answer's.
    #[must_use]
    pub fn within(mut self, max_tokens: Option<usize>) -> Conversation {
        if max_tokens.is_some_and(|most| most < LEAST_THINKING) && !self.continues {
            self.thinking_budget = Some(0);
        }
        self
    }

    /// Whether the model is to think, if that is said.
    pub(super) fn thinks(&self) -> Option<bool> {
        let has_budget = self.thinking_budget != Some(0);
        if has_budget { self.thinking } else { Some(false) }
    }
}

/// Tools that a model may call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    /// Descriptions as templates read them: `{"type": "function", "function": {…}}`.
    pub functions: Vec<Value>,
    /// Names of those whose arguments must follow their schema in every respect.
    pub strict: Vec<String>,
}

impl Tools {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The first one that is no description of a function with a name.
    pub(super) fn unnamed(&self) -> Option<usize> {
        let name = |tool: &Value| Some(!tool.get("function")?.get("name")?.as_str()?.is_empty());
        self.functions.iter().position(|tool| name(tool) != Some(true))
    }
}

/// Whether the model may call tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it sees fit.
    Auto,
    /// It may not, but knows them.
    Never,
    /// It must call one.
    Required,
    /// It must call this one.
    Named(String),
}
