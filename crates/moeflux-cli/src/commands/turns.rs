//! Conversations as prompts, and prompts that are kept for later ones.

use anyhow::{Result, anyhow};
use moeflux_engine::{Engine, Session};
use moeflux_text::{ChatTemplate, Message, RenderRequest, TextError, Tokenizer, Turn};

use crate::report;

/// A conversation by the model's template, of at most `ctx` tokens.
pub(crate) fn turn(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    ctx: usize,
) -> Result<Turn> {
    let request = RenderRequest { messages, ..RenderRequest::default() };
    Turn::of(tokenizer, template, &request, ctx).map_err(|err| explain(tokenizer, err))
}

/// An error of a text, with the file of the model that it comes from and what helps.
pub(crate) fn explain(tokenizer: &Tokenizer, err: TextError) -> anyhow::Error {
    match (&err, tokenizer.template_file()) {
        (
            TextError::Render(_)
            | TextError::NoPrompt
            | TextError::NoLastMessage
            | TextError::Ambiguous { .. },
            Some(file),
        ) => anyhow!(
            "{}: {err}; mend the template, or give the prompt as it is with run --raw",
            file.display()
        ),
        (TextError::Encode { .. }, _) => {
            anyhow!("{}: {err}; download the file again", tokenizer.file().display())
        }
        _ => err.into(),
    }
}

/// Writes the session to the prompt cache, if there is one. A failure is a warning.
pub(crate) fn store(engine: &Engine, session: &mut Session, checkpoints: &[usize], has_end: bool) {
    if let Err(err) = session.store_turn(checkpoints, has_end) {
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
