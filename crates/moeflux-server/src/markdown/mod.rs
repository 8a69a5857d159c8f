//! Markdown as HTML for the page: CommonMark with GitHub's tables, task lists, strikethrough and
//! footnotes, LaTeX as MathML, and highlighted code.
//!
//! A text is rendered as a list of its top-level blocks. Of a text that is still being written
//! all blocks but the last are final: the page keeps those, and sends only what follows them.
//! Raw HTML of the text is shown as text, and all that is generated passes a sanitizer.

mod blocks;
mod budget;
mod clean;
mod code;
mod links;
mod math;
pub(crate) mod route;
mod source;
mod unfinished;

use serde::Serialize;

pub(crate) use crate::markdown::budget::Budget;
use crate::markdown::budget::escaped;
pub(crate) use route::handle;

use source::Source;

/// Longer texts are shown as they are.
const MAX_BYTES: usize = 512 << 10;

/// The blocks of a text as HTML.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Rendered {
    /// Blocks that more text does not change.
    pub(crate) finished: Vec<String>,
    /// The block at the end of an unfinished text; empty for a finished one.
    pub(crate) tail: String,
    /// Where the text of `tail` begins, in bytes.
    pub(crate) tail_start: usize,
    /// Whether the text ends inside a fenced code block.
    pub(crate) is_code_open: bool,
}

/// Renders a text that is complete.
pub(crate) fn render(text: &str, budget: Budget) -> Rendered {
    if text.len() > MAX_BYTES {
        return plain(text);
    }
    let blocks = blocks::render(&Source::new(text, false), budget);
    Rendered {
        finished: blocks.into_iter().map(|block| block.html).collect(),
        tail_start: text.len(),
        ..Rendered::default()
    }
}

/// Renders a text that goes on.
pub(crate) fn render_unfinished(text: &str, budget: Budget) -> Rendered {
    if text.len() > MAX_BYTES {
        return Rendered {
            finished: Vec::new(),
            tail: plain(text).finished.concat(),
            ..Rendered::default()
        };
    }
    let source = Source::new(text, true);
    let mut blocks = blocks::render(&source, budget);
    let Some(last) = blocks.last() else { return Rendered::default() };
    // A line that goes on may still become part of the block before it.
    let is_one_line = !text[source.original(last.start)..].contains('\n');
    let n_finished = blocks.len().saturating_sub(if is_one_line { 2 } else { 1 });
    let tail = blocks.split_off(n_finished);
    Rendered {
        finished: blocks.into_iter().map(|block| block.html).collect(),
        tail_start: source.original(tail[0].start),
        tail: tail.into_iter().map(|block| block.html).collect(),
        is_code_open: source.is_code_open,
    }
}

fn plain(text: &str) -> Rendered {
    let html = format!("<p class=\"raw\">{}</p>", escaped(text));
    Rendered { finished: vec![html], tail_start: text.len(), ..Rendered::default() }
}

#[cfg(test)]
mod tests;
