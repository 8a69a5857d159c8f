//! A conversation as it is given to a template.

use moeflux_core::PictureRows;
use serde_json::{Map, Value};

use super::message::Message;

/// What is to be rendered.
#[derive(Clone, Debug, Default)]
pub struct RenderRequest<'a> {
    /// The conversation so far.
    pub messages: &'a [Message],
    /// The pictures of its parts `{"type": "image"}`, in their order.
    pub pictures: &'a [PictureRows],
    /// Tool definitions as clients send them, a list.
    pub tools: Option<&'a Value>,
    /// Whether the text ends with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// Further variables of the template, such as `enable_thinking`.
    pub extra: Map<String, Value>,
}
