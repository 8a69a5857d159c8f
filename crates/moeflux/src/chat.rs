//! A conversation with a model.

use std::sync::Arc;

use moeflux_engine::SeenPicture;
use moeflux_text::Message;
use serde_json::Value;

use crate::answer::Answer;
use crate::error::Error;
use crate::generate::{prepare, start};
use crate::pictures::picture_message;
use crate::request::Request;
use crate::shared::Shared;

/// A conversation: its messages, and the requests that its answers are made by.
///
/// What an answer has in common with the conversation before it is not evaluated again.
#[derive(Clone, Debug)]
pub struct Chat {
    model: Arc<Shared>,
    messages: Vec<Message>,
    request: Request,
}

impl Chat {
    pub(crate) fn new(model: Arc<Shared>) -> Chat {
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
        self.send_message(Message::new("user", text))
    }

    fn send_message(&mut self, message: Message) -> Result<Answer<'_>, Error> {
        self.messages.push(message);
        match prepare(&self.model, &self.messages, &self.request) {
            Ok(prepared) => start(&self.model, prepared, &self.request, Some(&mut self.messages)),
            Err(err) => {
                self.messages.pop();
                Err(err)
            }
        }
    }

    /// Shows pictures to the model, which [`Model::see`](crate::Model::see) has given, says something
    /// about them and requests its answer.
    ///
    /// # Errors
    /// As [`Chat::send`].
    pub fn send_with_pictures(
        &mut self,
        pictures: &[Arc<SeenPicture>],
        text: impl Into<String>,
    ) -> Result<Answer<'_>, Error> {
        self.request.pictures.extend(pictures.iter().cloned());
        self.send_message(picture_message("user", pictures, text))
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
        let prepared = prepare(&self.model, &self.messages, &self.request)?;
        start(&self.model, prepared, &self.request, Some(&mut self.messages))
    }
}
