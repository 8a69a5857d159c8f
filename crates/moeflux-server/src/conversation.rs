//! A conversation whose next turn is wanted, whatever the dialect.

use moeflux_text::{AnswerShape, Message};
use serde_json::{Map, Value};

use crate::error::{ApiError, ApiResult};
use crate::model::Model;
use crate::settings::Settings;
use crate::tools::Tools;

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Tools,
    pub(crate) choice: Choice,
    /// Whether several calls at a time are wanted.
    pub(crate) may_call_many: bool,
    /// What the answer must look like.
    pub(crate) shape: AnswerShape,
    /// Whether the model is to think, where it can.
    pub(crate) thinking: Option<bool>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    /// Whether the last message is the beginning of the answer.
    pub(crate) continues: bool,
    pub(crate) names: Names,
    pub(crate) settings: Settings,
}

/// What a dialect calls the fields that refusals name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) shape: &'static str,
    pub(crate) thinking: &'static str,
}

impl Conversation {
    /// Refuses what an answer cannot be that has begun as text.
    pub(crate) fn check_continued(&self, app: &Model) -> ApiResult<()> {
        let names = self.names;
        let problem = match () {
            () if !self.continues => return Ok(()),
            () if matches!(self.choice, Choice::Required | Choice::Named(_)) => {
                ("tool_choice", "the answer has begun as text: it cannot be a call")
            }
            () if self.shape != AnswerShape::Text => {
                (names.shape, "the answer has begun: it cannot be held to a format any more")
            }
            () if self.thinking == Some(true) => {
                (names.thinking, "the answer has begun: there is no thinking before it")
            }
            () if !self.tools.is_empty() && !app.format.can_call_behind_text() => {
                ("tools", "this model cannot call tools in an answer that has begun")
            }
            () => return Ok(()),
        };
        Err(ApiError::field(problem.0, problem.1))
    }
}

/// Whether the model may call tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// As it sees fit.
    Auto,
    /// It may not, but knows them.
    Never,
    /// It must call one.
    Required,
    /// It must call this one.
    Named(String),
}
