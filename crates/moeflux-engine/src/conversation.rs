//! The file of a conversation: its messages, and the model that they were exchanged with.

use moeflux_text::Message;
use serde::{Deserialize, Serialize};

use crate::engine::Engine;

/// Stands in every file.
const FORMAT: &str = "moeflux-chat";

/// The version that is written and read.
const VERSION: u64 = 1;

/// A conversation as `chat` keeps it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// All turns, the first one first.
    pub messages: Vec<Message>,
    /// The model that answered; unknown in files of earlier versions of the program.
    pub model: Option<ModelName>,
}

/// Tells a model from others, and people which one it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelName {
    /// What its user called it: a path, a name on the Hub.
    pub name: String,
    /// Its [`Family`](crate::Family)'s name.
    pub family: String,
    /// See [`Engine::model_identity`].
    pub identity: String,
}

impl ModelName {
    /// Of an open model.
    pub fn of(engine: &Engine, name: impl Into<String>) -> ModelName {
        let (family, identity) = (engine.family().to_owned(), engine.model_identity().to_owned());
        ModelName { name: name.into(), family, identity }
    }

    /// Whether both are the same model, whatever their users called it.
    pub fn is_same(&self, other: &ModelName) -> bool {
        self.family == other.family && self.identity == other.identity
    }
}

/// Why bytes are no conversation.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    /// They are no JSON, or a message is not one.
    #[error("damaged: {}", moeflux_core::json_problem(.0))]
    Json(#[from] serde_json::Error),
    /// They are other JSON.
    #[error("not a conversation that chat has saved")]
    Format,
    /// They are of another version of the format.
    #[error("a conversation of version {got}, known is {VERSION}")]
    Version {
        /// The version.
        got: u64,
    },
}

/// What tells whether the rest can be read.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: String,
    #[serde(default)]
    version: u64,
}

#[derive(Serialize, Deserialize)]
struct File {
    format: String,
    version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<ModelName>,
    messages: Vec<Message>,
}

impl Conversation {
    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// Where they are no conversation, or one of another version.
    pub fn from_slice(bytes: &[u8]) -> Result<Conversation, ConversationError> {
        let value: serde_json::Value = serde_json::from_slice(bytes)?;
        let head = Head::deserialize(&value).map_err(|_| ConversationError::Format)?;
        if head.format != FORMAT {
            return Err(ConversationError::Format);
        }
        if head.version != VERSION {
            return Err(ConversationError::Version { got: head.version });
        }
        let File { messages, model, .. } = serde_json::from_value(value)?;
        Ok(Conversation { messages, model })
    }

    /// The bytes of a file.
    pub fn to_json(&self) -> String {
        let (messages, model) = (self.messages.clone(), self.model.clone());
        let file = File { format: FORMAT.to_owned(), version: VERSION, model, messages };
        serde_json::to_string_pretty(&file).expect("a conversation is plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_come_back() {
        let model = ModelName { name: "a b".into(), family: "c".into(), identity: "01".into() };
        let messages = vec![Message::new("user", "a\u{7f}"), Message::new("assistant", "")];
        for model in [None, Some(model)] {
            let conversation = Conversation { messages: messages.clone(), model };
            let json = conversation.to_json();
            assert_eq!(Conversation::from_slice(json.as_bytes()).unwrap(), conversation);
        }
    }

    #[test]
    fn whatever_else_is_refused() {
        for (json, want) in [
            ("", "damaged: line 1, column 0: the text ends"),
            ("[]", "not a conversation"),
            ("{}", "not a conversation"),
            (r#"{"format": "moeflux-chat"}"#, "version 0"),
            (r#"{"format": "moeflux-chat", "version": 2}"#, "version 2"),
            (
                r#"{"format": "moeflux-chat", "version": 1}"#,
                "damaged: the field `messages` is missing",
            ),
            (r#"{"format": "moeflux-chat", "version": 1, "messages": [7]}"#, "damaged: "),
        ] {
            let got = Conversation::from_slice(json.as_bytes()).unwrap_err().to_string();
            assert!(got.starts_with(want) || got.contains(want), "{json}: {got}");
        }
    }
}
