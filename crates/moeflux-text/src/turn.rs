//! A conversation as a prompt: its tokens, and where later prompts may part
//! from it.

use moeflux_core::{PictureRows, TokenId};
use serde_json::Value;

use super::chat::ChatTemplate;
use super::error::TextError;
use super::message::Message;
use super::render_request::RenderRequest;
use super::tokenizer::Tokenizer;

/// A prompt whose next word is the model's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// All of its tokens. [Rows](PictureRows) of pictures stand among them.
    pub tokens: Vec<TokenId>,
    /// Where later prompts may part from this one, ascending.
    pub checkpoints: Vec<usize>,
    /// The pictures, ascending.
    pub pictures: Vec<PicturePlace>,
}

/// A picture of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PicturePlace {
    /// The position of its first row.
    pub start: usize,
    /// Its rows.
    pub rows: PictureRows,
    /// The token that the template has in its place, which stands for each of its rows where a token of
    /// the vocabulary is needed.
    pub placeholder: TokenId,
}

impl Turn {
    /// A prompt of these tokens, unchanged. A request that repeats the prompt must evaluate its
    /// last token again to get logits, so the checkpoint is before that token.
    pub fn raw(tokens: Vec<TokenId>) -> Turn {
        let checkpoints = vec![tokens.len().saturating_sub(1)];
        Turn { tokens, checkpoints, pictures: Vec::new() }
    }

    /// A conversation by the model's template, its answer to come.
    ///
    /// What opens an answer is often not repeated in front of that answer when
    /// it has become history, so the next turn parts from this one there. And
    /// conversations that begin alike part where their first messages differ. A
    /// client may change its last messages, so that a turn parts from its like
    /// where the answer before them ended.
    ///
    /// # Errors
    /// Where the template refuses the conversation, or where it cannot be encoded or has more than
    /// `max_tokens`.
    pub fn of(
        tokenizer: &Tokenizer,
        template: &ChatTemplate,
        request: &RenderRequest<'_>,
        max_tokens: usize,
    ) -> Result<Turn, TextError> {
        template.check_length(tokenizer, request.messages, tools_of(request), max_tokens)?;
        let encode = encoder(tokenizer, template, request, max_tokens);
        let tokens = encode(request.messages, true)?;
        if tokens.is_empty() {
            return Err(TextError::NoPrompt);
        }
        let checkpoints = checkpoints(&tokens, request, request.messages, encode);
        Ok(Turn { tokens, checkpoints, pictures: Vec::new() })
    }

    /// A conversation whose last message, the model's own, goes on.
    ///
    /// # Errors
    /// As [`Turn::of`], and where the template leaves that message out.
    pub fn continuing(
        tokenizer: &Tokenizer,
        template: &ChatTemplate,
        request: &RenderRequest<'_>,
        max_tokens: usize,
    ) -> Result<Turn, TextError> {
        template.check_length(tokenizer, request.messages, tools_of(request), max_tokens)?;
        let tokens = tokenizer.encode_chat(&template.render_unfinished(request)?, max_tokens)?;
        let n_finished = request.messages.len().saturating_sub(1);
        let encode = encoder(tokenizer, template, request, max_tokens);
        let checkpoints = checkpoints(&tokens, request, &request.messages[..n_finished], encode);
        Ok(Turn { tokens, checkpoints, pictures: Vec::new() })
    }
}

fn tools_of<'a>(request: &RenderRequest<'a>) -> &'a [Value] {
    request.tools.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Encodes messages as a request has it.
fn encoder<'a>(
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    request: &'a RenderRequest<'_>,
    max_tokens: usize,
) -> impl Fn(&[Message], bool) -> Result<Vec<TokenId>, TextError> + 'a {
    move |messages, add_generation_prompt| {
        let request = RenderRequest { messages, add_generation_prompt, ..request.clone() };
        tokenizer.encode_chat(&template.render(&request)?, max_tokens)
    }
}

/// Where later prompts may part from one that holds the messages `finished`.
fn checkpoints(
    tokens: &[TokenId],
    request: &RenderRequest<'_>,
    finished: &[Message],
    encode: impl Fn(&[Message], bool) -> Result<Vec<TokenId>, TextError>,
) -> Vec<usize> {
    let mut others = vec![finished.to_vec()];
    if request.tools.is_some() || finished.first().is_some_and(is_opening) {
        others.extend(with_another_question(finished));
    }
    others.extend(before_last_question(finished));
    let mut checkpoints: Vec<usize> = others
        .iter()
        // Some templates refuse what has no opening for an answer.
        .filter_map(|messages| encode(messages, false).ok())
        .map(|encoded| encoded.iter().zip(tokens).take_while(|(a, b)| a == b).count())
        .map(|n| n.min(tokens.len().saturating_sub(1)))
        .filter(|n| *n > 0)
        .collect();
    checkpoints.sort_unstable();
    checkpoints.dedup();
    checkpoints
}

/// The conversation up to its first question, which is another one.
fn with_another_question(messages: &[Message]) -> Option<Vec<Message>> {
    let n_opening = messages.iter().take_while(|message| is_opening(message)).count();
    let question = messages.get(n_opening)?;
    let text = question.content.as_ref().and_then(Value::as_str).unwrap_or_default();
    let other = if text.starts_with('A') { "B" } else { "A" };
    let other = Message::new(question.role.clone(), other);
    Some([&messages[..n_opening], &[other]].concat())
}

/// The conversation up to the last answer.
fn before_last_question(messages: &[Message]) -> Option<Vec<Message>> {
    let last = messages.iter().rposition(|message| message.role == "assistant")?;
    (last + 1 < messages.len()).then(|| messages[..=last].to_vec())
}

fn is_opening(message: &Message) -> bool {
    matches!(message.role.as_str(), "system" | "developer")
}
