//! A conversation with a model.

use moeflux_text::Message;
use serde_json::Value;

use crate::answer::Answer;
use crate::error::Error;
use crate::model::Model;
use crate::request::Request;

impl Model {
    /// Begins a conversation.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`].
    pub fn chat(&self) -> Result<Chat, Error> {
        self.text().template(false).map_err(|err| self.refusal(err))?;
        Ok(Chat::new(self.clone()))
    }
}

/// A conversation: its messages, and the requests that its answers are made by.
///
/// What an answer has in common with the conversation before it is not evaluated again.
#[derive(Clone, Debug)]
pub struct Chat {
    model: Model,
    messages: Vec<Message>,
    request: Request,
}

impl Chat {
    pub(crate) fn new(model: Model) -> Chat {
        Chat { model, messages: Vec::new(), request: Request::default() }
    }

    /// Begins the conversation with instructions to the model.
    #[must_use]
    pub fn with_system(mut self, text: impl Into<String>) -> Chat {
        self.messages.insert(0, Message::new("system", text));
        self
    }

    /// Has all following answers be made by `request`.
    #[must_use]
    pub fn with_request(mut self, request: Request) -> Chat {
        self.request = request;
        self
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The messages so far, to be changed: edited, taken back, restored from a file.
    pub fn messages_mut(&mut self) -> &mut Vec<Message> {
        &mut self.messages
    }

    /// Says something to the model and requests its answer.
    ///
    /// # Errors
    /// As [`Chat::answer`]; the message is not kept then.
    pub fn send(&mut self, text: impl Into<String>) -> Result<Answer<'_>, Error> {
        self.messages.push(Message::new("user", text));
        match self.model.prepare(&self.messages, &self.request) {
            Ok(prepared) => self.model.start(prepared, &self.request, Some(&mut self.messages)),
            Err(err) => {
                self.messages.pop();
                Err(err)
            }
        }
    }

    /// Adds the result of a tool call; [`Chat::answer`] continues when all results are there.
    pub fn add_tool_result(&mut self, id: impl Into<String>, result: impl Into<String>) {
        let tool_call_id = Some(Value::from(id.into()));
        self.messages.push(Message { tool_call_id, ..Message::new("tool", result) });
    }

    /// Requests an answer to the messages as they are.
    ///
    /// # Errors
    /// Where the template refuses the messages, they are longer than the context, or the request's
    /// tools or schema cannot be used.
    pub fn answer(&mut self) -> Result<Answer<'_>, Error> {
        let prepared = self.model.prepare(&self.messages, &self.request)?;
        self.model.start(prepared, &self.request, Some(&mut self.messages))
    }
}
