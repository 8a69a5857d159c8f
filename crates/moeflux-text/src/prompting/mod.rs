//! From a conversation to the prompt that a model reads, and to what its answer is held to and read
//! by. Servers, libraries and programs of the command line ask in the same words.

mod chat_model;
mod conversation;
mod effort;
mod error;
mod prepared;
mod tool_names;

pub use self::chat_model::ChatModel;
pub use self::conversation::{Conversation, ToolChoice, Tools};
pub use self::error::PromptError;
pub use self::prepared::{AnswerReader, Prepared};
