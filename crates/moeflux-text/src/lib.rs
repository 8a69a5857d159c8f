//! Text in, token ids out, and back: tokenizer, chat templates, streaming decode, stop strings.
//!
//! Markup is not content. What a user types is encoded so that it never becomes a control
//! token ([`Markup::Literal`], and [`Tokenizer::encode_chat`] for whole conversations), however
//! much it looks like one. A raw prompt is a program's own: what looks like a control token in it is one
//! ([`Tokenizer::encode_prompt`]).

#![forbid(unsafe_code)]

mod byte_level;
mod chat;
mod config;
mod constrain;
mod control_names;
mod encode;
mod error;
mod fence;
mod guard;
mod history;
mod infill;
mod jinja;
mod json;
mod learned;
mod length;
mod library;
mod message;
mod nesting;
mod output;
mod picture_parts;
mod pieces;
mod pipeline;
mod placeholders;
mod prompting;
mod render_request;
mod renderer;
mod source;
mod stop;
mod stream;
mod table;
mod text_files;
mod tokenizer;
mod tokenizer_file;
mod turn;
mod vocabulary;

pub use chat::ChatTemplate;
pub use config::GenerationDefaults;
pub use constrain::{AnswerShape, Constraint, ConstraintError, Grammar, Grammars, LeftToModel};
pub use encode::Markup;
pub use error::TextError;
pub use fence::{MarkupText, Rendered};
pub use guard::catch_panic;
pub use infill::{Infill, NamedText};
pub use message::Message;
pub(crate) use output::{Calls, JsonCalls, Kind, Parameters, TaggedCalls, Thinking};
pub use output::{Delta, NoCalls, OutputFormat, OutputParser, Thoughts, ToolSyntax};
pub use placeholders::PicturePlace;
pub use prompting::{
    AnswerReader, ChatModel, Conversation, Prepared, PromptError, ToolChoice, Tools,
};
pub use render_request::RenderRequest;
pub use renderer::{render_in_children, run_renderer};
pub use source::TextSource;
pub use stop::{Pushed, StopMatcher};
pub use stream::StreamDecoder;
pub use table::Special;
pub use text_files::{TextFile, text_files, tokenizer_bytes};
pub use tokenizer::Tokenizer;
pub use turn::Turn;

#[cfg(test)]
mod tests;
