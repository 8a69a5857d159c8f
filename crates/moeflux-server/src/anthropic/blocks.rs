//! Blocks of messages, to text.

use serde_json::Value;

use super::request::{Block, Content};
use crate::error::{ApiError, ApiResult};
use crate::messages::{Said, left_out};
use crate::pictures::{PictureFields, Pictures};
use crate::request::{List, StringOr};
use crate::result_text::{add_line, add_value};

/// What Claude Code's first block of `system` begins with. It changes between conversations and
/// requests: in front of the prompt it would keep them from sharing what is read already.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// A text that grows block by block.
#[derive(Clone, Debug, Default)]
pub(super) struct Text {
    pub(super) text: String,
    /// Pictures, with the texts before them.
    shown: Said,
    /// Whether there is more than notes of what was left out.
    pub(super) has_text: bool,
    /// The first block that was left out.
    pub(super) left_out: Option<usize>,
}

impl Text {
    /// Adds a block's text, on a line of its own.
    pub(super) fn add(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let is_apart = self.text.is_empty()
            || self.text.ends_with(char::is_whitespace)
            || text.starts_with(char::is_whitespace);
        if !is_apart {
            self.text.push('\n');
        }
        self.text.push_str(text);
        self.has_text = true;
    }

    /// Adds a picture behind what was said.
    pub(super) fn add_picture(&mut self) {
        self.shown.add_text(&std::mem::take(&mut self.text));
        self.shown.add_picture();
        self.has_text = true;
    }

    /// What is said as templates read it: a text, or parts where there are pictures.
    pub(super) fn into_content(mut self) -> Value {
        self.shown.add_text(&self.text);
        self.shown.into_content()
    }

    /// Adds a block that is no text, no call and no result.
    pub(super) fn add_block(&mut self, i: usize, block: &Block) {
        match text_of(block) {
            Some(text) => self.add(&text),
            None => {
                let has_text = self.has_text;
                self.left_out = self.left_out.or(Some(i));
                self.add(&left_out(block.r#type.as_deref().unwrap_or("block")));
                self.has_text = has_text;
            }
        }
    }
}

/// Whether a block is a picture that the model sees, which is added.
pub(super) fn picture(block: &mut Block, at: &str, pictures: &mut Pictures) -> ApiResult<bool> {
    if block.r#type.as_deref() != Some("image") {
        return Ok(false);
    }
    let source = if pictures.sees() { block.source.take() } else { None };
    pictures.add(PictureFields { source, ..PictureFields::default() }, at)
}

/// `system`: text, or blocks of text.
pub(super) fn system(content: Content, at: &str) -> ApiResult<String> {
    let blocks = match content {
        StringOr::String(text) => return Ok(without_billing_header(&text).to_owned()),
        StringOr::Other(List(blocks)) => blocks,
    };
    let mut said = Text::default();
    for (i, block) in blocks.iter().enumerate() {
        match required_text(block, at, i)? {
            Some(text) if i == 0 => said.add(without_billing_header(text)),
            Some(text) => said.add(text),
            None => said.add_block(i, block),
        }
    }
    Ok(said.text)
}

fn without_billing_header(text: &str) -> &str {
    match text.strip_prefix(BILLING_HEADER) {
        Some(header) => header.split_once('\n').map_or("", |(_, rest)| rest),
        None => text,
    }
}

/// The text of a block of text; `None` where it is another kind of block.
pub(super) fn required_text<'a>(
    block: &'a Block,
    at: &str,
    i: usize,
) -> ApiResult<Option<&'a str>> {
    let missing = |field: &str| ApiError::field(format!("{at}[{i}].{field}"), "it is missing");
    match (block.r#type.as_deref(), &block.text) {
        (Some("text") | None, Some(text)) => Ok(Some(text)),
        (Some("text"), None) => Err(missing("text")),
        (None, None) => Err(missing("type")),
        (Some(_), _) => Ok(None),
    }
}

/// What can be read of a block that is not plain text; `None` where that is nothing.
fn text_of(block: &Block) -> Option<String> {
    let mut text = String::new();
    if let Some(name) = &block.tool_name {
        add_line(&mut text, &format!("[tool: {name}]"));
    }
    for part in [&block.title, &block.text].into_iter().flatten() {
        add_line(&mut text, part);
    }
    match &block.source {
        // A search result's address.
        Some(Value::String(address)) => add_line(&mut text, address),
        Some(source) if source["type"] == "text" => add_value(&mut text, &source["data"]),
        Some(source) if source["type"] == "content" => add_value(&mut text, &source["content"]),
        // A title does not stand for the document.
        Some(_) => return None,
        None => {}
    }
    if let Some(content) = &block.content {
        add_value(&mut text, content);
    }
    (!text.is_empty()).then_some(text)
}
