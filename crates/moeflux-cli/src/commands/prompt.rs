//! A conversation as a prompt: its tokens, and where later prompts may part
//! from it.

use anyhow::Result;
use moeflux_engine::text::{ChatTemplate, Message, RenderRequest, Tokenizer};
use moeflux_engine::{Engine, EngineError, Session, TokenId};

use crate::report;

/// A prompt whose next word is the model's.
pub(crate) struct Turn {
    pub(crate) tokens: Vec<TokenId>,
    /// Ascending.
    pub(crate) marks: Vec<usize>,
}

impl Turn {
    /// A prompt that is as it is. Whoever gives it again needs its last token
    /// evaluated again.
    pub(crate) fn raw(tokens: Vec<TokenId>) -> Turn {
        let marks = vec![tokens.len().saturating_sub(1)];
        Turn { tokens, marks }
    }

    /// A conversation by the model's template.
    ///
    /// What opens an answer is often not repeated in front of that answer when
    /// it has become history, so the next turn parts from this one there. And
    /// conversations that begin alike part where their first messages differ.
    pub(crate) fn of(
        tokenizer: &Tokenizer,
        template: &ChatTemplate,
        messages: &[Message],
    ) -> Result<Turn> {
        let tokens = encode(tokenizer, template, messages, true)?;
        let mut others = vec![messages.to_vec()];
        if let [opening @ .., question] = messages
            && !opening.is_empty()
            && opening.iter().all(|it| it.role == "system")
        {
            let text = question.content.as_ref().and_then(|it| it.as_str()).unwrap_or_default();
            let other = if text.starts_with('A') { "B" } else { "A" };
            let other = Message::new(question.role.clone(), other);
            others.push([opening, &[other]].concat());
        }
        let mut marks: Vec<usize> = others
            .iter()
            // Some templates refuse what has no opening for an answer.
            .filter_map(|it| encode(tokenizer, template, it, false).ok())
            .map(|it| it.iter().zip(&tokens).take_while(|(a, b)| a == b).count())
            .map(|it| it.min(tokens.len().saturating_sub(1)))
            .filter(|it| *it > 0)
            .collect();
        marks.sort_unstable();
        marks.dedup();
        Ok(Turn { tokens, marks })
    }
}

fn encode(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    add_generation_prompt: bool,
) -> Result<Vec<TokenId>> {
    let extra = serde_json::Map::new();
    let request = RenderRequest { messages, tools: None, add_generation_prompt, extra };
    Ok(tokenizer.encode_chat(&template.render(&request)?)?)
}

/// Keeps what was read in the prompt cache, if there is one: the places where
/// other prompts may part from this one and, where more will follow, the end. A
/// failure is told and forgotten.
pub(crate) fn store(engine: &Engine, session: &mut Session, marks: &[usize], has_end: bool) {
    let before_end = if has_end { marks.len().saturating_sub(1) } else { marks.len() };
    // Without recurrent layers, the longest holds all shorter ones.
    let first = match engine.shape().is_recurrent() {
        true => 0,
        false if has_end => before_end,
        false => before_end.saturating_sub(1),
    };
    let mut stored = Ok(());
    for mark in &marks[first..before_end] {
        stored = stored.and_then(|()| match session.store_prefix(*mark) {
            // The budget of checkpoints is too small to remember that place.
            Err(EngineError::NoCheckpoint { .. }) => Ok(()),
            result => result,
        });
    }
    if has_end {
        stored = stored.and_then(|()| session.store());
    }
    if let Err(err) = stored {
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
