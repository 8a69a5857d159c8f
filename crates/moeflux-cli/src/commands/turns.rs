//! Conversations as prompts, and prompts that are kept for later ones.

use anyhow::Result;
use moeflux_engine::{Engine, Session};
use moeflux_text::{ChatTemplate, Message, RenderRequest, Tokenizer, Turn};

use crate::report;

/// A conversation by the model's template, of at most `ctx` tokens.
pub(crate) fn turn(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    ctx: usize,
) -> Result<Turn> {
    let request = RenderRequest { messages, ..RenderRequest::default() };
    Ok(Turn::of(tokenizer, template, &request, ctx)?)
}

/// Writes the session to the prompt cache, if there is one. A failure is a warning.
pub(crate) fn store(engine: &Engine, session: &mut Session, marks: &[usize], has_end: bool) {
    if let Err(err) = session.store_turn(marks, has_end) {
        report::note(false, &format!("warning: the prompt is not kept: {err}"));
    }
    warnings(engine);
}

/// Tells what the prompt cache met.
pub(crate) fn warnings(engine: &Engine) {
    for warning in engine.take_warnings() {
        report::note(false, &format!("warning: {warning}"));
    }
}
