//! A conversation as a prompt: its tokens, and where later prompts may part
//! from it.

use moeflux_core::{PictureRows, TokenId};
use serde_json::Value;

use super::chat::ChatTemplate;
use super::error::{TextError, excerpt};
use super::fence::Rendered;
use super::message::Message;
use super::picture_parts::{count_all, first_text};
use super::placeholders::PicturePlace;
use super::render_request::RenderRequest;
use super::tokenizer::Tokenizer;

/// A prompt whose next word is the model's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// All of its tokens.
    pub tokens: Vec<TokenId>,
    /// Where later prompts may part from this one, ascending.
    pub checkpoints: Vec<usize>,
    /// Its pictures, in order. Their rows are among the tokens.
    pub pictures: Vec<PicturePlace>,
}

impl Turn {
    /// A prompt of these tokens, unchanged. A request that repeats the prompt must evaluate its
    /// last token again to get logits, so the checkpoint is before that token.
    pub fn raw(tokens: Vec<TokenId>) -> Turn {
        let checkpoints = vec![tokens.len().saturating_sub(1)];
        Turn { tokens, checkpoints, pictures: Vec::new() }
    }

    /// A prompt whose tokens have placeholders for pictures: as many for each as it has rows.
    ///
    /// # Errors
    /// Where the vocabulary has no such token, or the prompt has other ones.
    pub fn with_pictures(
        tokenizer: &Tokenizer,
        tokens: Vec<TokenId>,
        pictures: &[PictureRows],
    ) -> Result<Turn, TextError> {
        if pictures.is_empty() {
            return Ok(Turn::raw(tokens));
        }
        let placeholder = tokenizer.placeholder().ok_or(TextError::NoPictures)?;
        let wrong = || TextError::Placeholders {
            n_found: placeholder.count(&tokens),
            n_rows: pictures.iter().map(|rows| rows.n_rows).sum(),
            n_pictures: pictures.len(),
        };
        let (tokens, pictures) = placeholder.filled(&tokens, pictures).ok_or_else(wrong)?;
        Ok(Turn { pictures, ..Turn::raw(tokens) })
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
    /// Where the template refuses the conversation or leaves pictures out, or where it cannot be encoded
    /// or has more than `max_tokens`.
    pub fn of(
        tokenizer: &Tokenizer,
        template: &ChatTemplate,
        request: &RenderRequest<'_>,
        max_tokens: usize,
    ) -> Result<Turn, TextError> {
        let encoder = Encoder::new(tokenizer, template, request, max_tokens)?;
        let turn = encoder.encode(request.messages, true);
        let Turn { tokens, pictures, .. } = turn.map_err(|err| encoder.explained(err))?;
        if tokens.is_empty() {
            return Err(TextError::NoPrompt);
        }
        let checkpoints = encoder.checkpoints(&tokens, request.messages);
        Ok(Turn { tokens, checkpoints, pictures })
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
        let encoder = Encoder::new(tokenizer, template, request, max_tokens)?;
        let turn = encoder.tokens(&template.render_unfinished(request)?, request.messages);
        let Turn { tokens, pictures, .. } = turn.map_err(|err| encoder.explained(err))?;
        let n_finished = request.messages.len().saturating_sub(1);
        let checkpoints = encoder.checkpoints(&tokens, &request.messages[..n_finished]);
        Ok(Turn { tokens, checkpoints, pictures })
    }
}

fn tools_of<'a>(request: &RenderRequest<'a>) -> &'a [Value] {
    request.tools.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Encodes messages as a request has it.
struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    request: &'a RenderRequest<'a>,
    max_tokens: usize,
}

impl<'a> Encoder<'a> {
    /// Refuses what is certain to be too long, and pictures that cannot be written.
    fn new(
        tokenizer: &'a Tokenizer,
        template: &'a ChatTemplate,
        request: &'a RenderRequest<'a>,
        max_tokens: usize,
    ) -> Result<Encoder<'a>, TextError> {
        template.check_length(tokenizer, request.messages, tools_of(request), max_tokens)?;
        let n_parts = count_all(request.messages);
        let n_pictures = request.pictures.len();
        match () {
            () if n_parts != n_pictures => Err(TextError::PictureCount { n_parts, n_pictures }),
            () if n_pictures > 0 && !template.takes_pictures() => Err(TextError::NoPictures),
            () => Ok(Encoder { tokenizer, template, request, max_tokens }),
        }
    }

    /// The prompt of messages that a request could have, without checkpoints.
    fn encode(&self, messages: &[Message], add_generation_prompt: bool) -> Result<Turn, TextError> {
        let request = RenderRequest { messages, add_generation_prompt, ..self.request.clone() };
        self.tokens(&self.template.render(&request)?, messages)
    }

    /// The prompt of what was rendered of messages. Their pictures are the first of the request.
    fn tokens(&self, rendered: &Rendered, messages: &[Message]) -> Result<Turn, TextError> {
        let of_messages = &self.request.pictures[..count_all(messages)];
        let Some(placeholder) = self.tokenizer.placeholder() else {
            let tokens = self.tokenizer.encode_chat(rendered, self.max_tokens)?;
            return Ok(Turn { tokens, ..Turn::default() });
        };
        let n_more = placeholder.n_more(of_messages);
        let max_tokens = self.max_tokens;
        let max_text = match max_tokens {
            usize::MAX => usize::MAX,
            _ => max_tokens.checked_sub(n_more).ok_or_else(|| TextError::TooLong {
                n_tokens: n_more,
                is_exact: false,
                max_tokens,
            })?,
        };
        let written = self.tokenizer.encode_chat(rendered, max_text);
        let written = written.map_err(|err| err.with_tokens_before(n_more))?;
        let n_written = placeholder.count(&written);
        if n_written != of_messages.len() {
            let last = messages.last();
            return Err(TextError::PicturesWritten {
                idx: messages.len().saturating_sub(1),
                role: last.map_or(String::new(), |message| excerpt(&message.role)),
                n_pictures: of_messages.len(),
                n_written,
            });
        }
        let (tokens, pictures) = placeholder.replaced(&written, of_messages);
        Ok(Turn { tokens, checkpoints: Vec::new(), pictures })
    }

    /// An error that names the first message with which the template writes other pictures than there are.
    fn explained(&self, err: TextError) -> TextError {
        if !matches!(err, TextError::PicturesWritten { .. }) {
            return err;
        }
        let messages = self.request.messages;
        let ends = (1..=messages.len()).filter(|end| messages[end - 1].n_pictures() > 0);
        let mut errors = ends.filter_map(|end| self.encode(&messages[..end], false).err());
        errors.find(|err| matches!(err, TextError::PicturesWritten { .. })).unwrap_or(err)
    }

    /// Where later prompts may part from one that holds the messages `finished`.
    fn checkpoints(&self, tokens: &[TokenId], finished: &[Message]) -> Vec<usize> {
        let mut others = vec![finished.to_vec()];
        if self.request.tools.is_some() || finished.first().is_some_and(is_opening) {
            others.extend(with_another_question(finished));
        }
        others.extend(before_last_question(finished));
        let mut checkpoints: Vec<usize> = others
            .iter()
            // Some templates refuse what has no opening for an answer.
            .filter_map(|messages| self.encode(messages, false).ok())
            .map(|turn| turn.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count())
            .map(|n| n.min(tokens.len().saturating_sub(1)))
            .filter(|n| *n > 0)
            .collect();
        checkpoints.sort_unstable();
        checkpoints.dedup();
        checkpoints
    }
}

/// The conversation up to its first question, which is another one.
fn with_another_question(messages: &[Message]) -> Option<Vec<Message>> {
    let n_opening = messages.iter().take_while(|message| is_opening(message)).count();
    let question = messages.get(n_opening)?;
    let other = if first_text(question).starts_with('A') { "B" } else { "A" };
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
