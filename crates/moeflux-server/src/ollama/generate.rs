//! `/api/generate`.

use std::sync::Arc;

use moeflux_engine::TokenId;
use moeflux_text::{AnswerShape, Conversation, Infill, Message, Prepared, PromptError, Turn};
use serde::Deserialize;
use serde_json::{Value, json};

use super::format::{self, Format, NAMES};
use super::messages::{Images, behind_images, with_images};
use super::names;
use super::options::{self, Options};
use super::reply::{Loading, Shape, Target, answer, loaded};
use super::shorten::{LeftOut, Shortened, Shortening};
use crate::app::App;
use crate::ask::PendingAnswers;
use crate::conversation::ConversationRequest;
use crate::error::{ApiError, ApiResult};
use crate::model::Model;
use crate::offload::offload;
use crate::pictures::Pictures;
use crate::prepare::{GapFields, open_pictures, prepare, prepare_infill, submit_prepared};
use crate::reply::Reply;
use crate::request::{Body, Given, Integer, List, Request, Toggle, TokenNumber, object, read};
use crate::sampling::MAX_TOP;
use crate::settings::Settings;
use crate::thinking::ThinkingFields;

/// Tokens of `context` at most.
const MAX_CONTEXT: usize = 10_000_000;

/// A request for the answer to a prompt.
#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct GenerateRequest {
    /// The model's name.
    model: String,
    /// The prompt. Without one the model is only loaded.
    prompt: Option<String>,
    /// Text of the system.
    system: Option<String>,
    /// Whether the prompt goes to the model as it is, control tokens included.
    raw: Option<bool>,
    /// The `context` of an earlier answer, from which this goes on.
    context: Option<List<TokenNumber, MAX_CONTEXT>>,
    /// Images, which are left out where the model reads text only.
    images: Option<Images>,
    /// Whether the answer is sent as it is made; true where this is left out.
    stream: Option<bool>,
    /// What the answer must look like: `json`, or a JSON schema.
    format: Option<Format>,
    /// How the answer is made.
    options: Option<Options>,
    /// Whether the model thinks before it answers, or how much: `low`, `medium` or `high`.
    think: Option<Toggle>,
    /// Whether the logarithms of the tokens' probabilities are wanted.
    logprobs: Option<bool>,
    /// How many of the likeliest tokens are wanted for every token.
    top_logprobs: Option<Integer<0, MAX_TOP>>,
    /// How long the model stays loaded; 0 without a prompt unloads it.
    keep_alive: Option<Value>,
    /// Text that follows the answer. The prompt is read as the text before it then, without control
    /// tokens. Refused where the vocabulary has no tokens around a gap in a text.
    suffix: Option<String>,
    /// Whether the beginning of a prompt that does not fit is left out; true where this is left out. Of a
    /// `context` the oldest tokens go first.
    truncate: Option<bool>,
    /// Whether it is left out, too, where little room would be left for the answer; true where this is
    /// left out.
    shift: Option<bool>,
    /// Refused: a template in the language of Go.
    template: Option<Given>,
}

object!(GenerateRequest);

impl Body for GenerateRequest {
    const HINTS: &'static [&'static [&'static str]] =
        &[&["width", "height", "steps"], options::HINTS];
}

impl GenerateRequest {
    /// Refuses what this server cannot do.
    fn check(&self) -> ApiResult<()> {
        if self.template == Some(Given(true)) {
            let problem = "templates of Go are not read here: leave it out, or send the whole \
                           prompt with raw: true";
            return Err(ApiError::field("template", problem));
        }
        let has_suffix = self.suffix.as_ref().is_some_and(|text| !text.is_empty());
        let is_raw = self.raw == Some(true);
        let has_context = self.context.as_ref().is_some_and(|List(tokens)| !tokens.is_empty());
        let has_system = self.system.as_ref().is_some_and(|text| !text.is_empty());
        if is_raw && (has_context || has_system) {
            return Err(ApiError::field("raw", "it does not go with system or context"));
        }
        if has_suffix && (has_context || has_system) {
            return Err(ApiError::field("suffix", "it does not go with system or context"));
        }
        Ok(())
    }
}

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = read::<GenerateRequest>(body)?;
    names::check(&app, &body.model)?;
    body.check()?;
    let ignored = ignored.accept(&app)?;
    let prompt = body.prompt.unwrap_or_default();
    let List(images) = body.images.unwrap_or_default();
    let suffix = body.suffix.filter(|text| !text.is_empty());
    if prompt.is_empty() && suffix.is_none() && images.is_empty() {
        let shape = Shape::Text { prompt: None };
        return Ok(loaded(&body.model, shape, Loading::Load));
    }
    let mut pictures = Pictures::of(&app);
    let is_raw = body.raw == Some(true);
    let (prompt, images) = if pictures.sees() {
        (prompt, images)
    } else {
        let noted = with_images(prompt, images.len(), true);
        (noted.map_err(|problem| ApiError::field("images", problem))?, Vec::new())
    };
    if !images.is_empty() && (is_raw || suffix.is_some()) {
        let problem = "images stand in conversations only: leave raw and suffix out";
        return Err(ApiError::not_supported("images", problem));
    }
    let top = options::top_logprobs(body.logprobs, body.top_logprobs);
    let settings = body.options.unwrap_or_default().settings(&app, top)?;
    let shape = format::shape(body.format)?;
    let shortening =
        Shortening { truncates: body.truncate.unwrap_or(true), shifts: body.shift.unwrap_or(true) };
    let plain = Plain { prompt, settings, shortening };
    let (queued, shape) = if let Some(suffix) = suffix {
        let read = move |model: &Model, prefix: &str| {
            let infill =
                Infill { prefix: prefix.to_owned(), suffix: suffix.clone(), ..Infill::default() };
            prepare_infill(model, &infill, &shape, GapFields::SUFFIX)
        };
        (plain.queue(&app, read).await?, Shape::Text { prompt: None })
    } else if is_raw {
        let read = move |model: &Model, prompt: &str| prepare_raw(model, prompt, &shape);
        (plain.queue(&app, read).await?, Shape::Text { prompt: None })
    } else {
        let system = body.system.filter(|text| !text.is_empty());
        let system = system.map(|text| Message::new("system", text));
        let Plain { prompt, settings, shortening } = plain;
        let content = behind_images(images, Value::from(prompt), "images", &mut pictures)?;
        let question = Message { content: Some(content), ..Message::new("user", "") };
        let messages = system.into_iter().chain([question]).collect();
        let fields = ThinkingFields { think: body.think, ..ThinkingFields::default() };
        let thinking = fields.request()?.of(&app);
        let conversation = Conversation {
            shape,
            thinking: thinking.thinks,
            thinking_budget: thinking.thinking_budget(),
            effort: thinking.effort,
            ..Conversation::new(messages)
        };
        let request = ConversationRequest::new(conversation, NAMES, settings, pictures);
        let List(before) = body.context.unwrap_or_default();
        let before = known_tokens(&app, before)?;
        let (queued, tokens) = after(&app, before, request, shortening).await?;
        (queued, Shape::Text { prompt: Some(tokens) })
    };
    let Queued { answers, left_out } = queued;
    let target = Target { model: body.model, shape, with_logprobs: top.is_some() };
    let reply = answer(app, answers, target, body.stream.unwrap_or(true)).await?;
    Ok(left_out.mark(ignored.mark(reply)))
}

/// Answers that are made, and what their prompt lacks.
struct Queued {
    answers: PendingAnswers,
    left_out: LeftOut,
}

/// A prompt outside of a conversation.
struct Plain {
    prompt: String,
    settings: Settings,
    shortening: Shortening,
}

impl Plain {
    /// Queues the prompt as `read` reads it.
    async fn queue(
        self,
        app: &Arc<App>,
        read: impl Fn(&Model, &str) -> ApiResult<Prepared> + Send + 'static,
    ) -> ApiResult<Queued> {
        let Plain { prompt, settings, shortening } = self;
        let (shared, own) = (Arc::clone(app), settings.clone());
        let shortened = offload(move || {
            shortening.prepare_text(&shared, &own, &prompt, |text| read(&shared, text))
        });
        let Shortened { prepared, left_out } = shortened.await??;
        let answers = submit_prepared(app, prepared, Vec::new(), settings)?;
        Ok(Queued { answers, left_out })
    }
}

/// Tokens of the model.
fn known_tokens(model: &Model, tokens: Vec<TokenNumber>) -> ApiResult<Vec<TokenId>> {
    let n = model.facts.n_logits;
    if tokens.iter().any(|TokenNumber(token)| *token as usize >= n) {
        let problem = format!("tokens of this model are numbers below {n}");
        return Err(ApiError::field("context", problem));
    }
    Ok(tokens.into_iter().map(|TokenNumber(token)| TokenId(token)).collect())
}

/// Queues a conversation that goes on from tokens of an earlier one; also all tokens of the prompt.
async fn after(
    app: &Arc<App>,
    mut before: Vec<TokenId>,
    mut request: ConversationRequest,
    shortening: Shortening,
) -> ApiResult<(Queued, Vec<TokenId>)> {
    let looks = open_pictures(app, &mut request).await?;
    let settings = request.settings.clone();
    let (shared, own) = (Arc::clone(app), settings.clone());
    let shortened = offload(move || {
        let text = request.conversation.messages.last().map(asked).unwrap_or_default();
        let read = |text: &str| prepare(&shared, &asking(&request, text));
        shortening.prepare_text(&shared, &own, &text, read)
    });
    let Shortened { mut prepared, mut left_out } = shortened.await??;
    if !before.is_empty() {
        let start = app.text.tokenizer().bos_id();
        let turn = &prepared.turn.tokens;
        let skipped = usize::from(start.is_some() && turn.first().copied() == start);
        let n_kept = shortening.n_before(app, &settings, turn.len());
        let n_first = usize::from(start.is_some() && before.first().copied() == start);
        left_out.n_tokens = before.len().saturating_sub(n_kept.max(n_first));
        before.drain(n_first..n_first + left_out.n_tokens);
        let tokens = before.iter().chain(&turn[skipped..]).copied().collect();
        let mut pictures = std::mem::take(&mut prepared.turn.pictures);
        for place in &mut pictures {
            place.start = place.start + before.len() - skipped;
        }
        prepared.turn = Turn { pictures, ..Turn::raw(tokens) };
    }
    // Clients send them back as tokens of the vocabulary, without their pictures.
    let all = prepared.turn.tokens.iter();
    let tokens = all.copied().filter(|token| !token.is_picture()).collect();
    let seen = looks.seen(app, &prepared.turn.pictures).await?;
    let answers = submit_prepared(app, prepared, seen, settings)?;
    Ok((Queued { answers, left_out }, tokens))
}

/// The text of a question.
fn asked(message: &Message) -> String {
    let text = match &message.content {
        Some(Value::Array(parts)) => parts.iter().find_map(|part| part["text"].as_str()),
        content => content.as_ref().and_then(Value::as_str),
    };
    text.unwrap_or_default().to_owned()
}

/// A request whose question has another text.
fn asking(request: &ConversationRequest, text: &str) -> ConversationRequest {
    let mut other = request.clone();
    if let Some(last) = other.conversation.messages.last_mut() {
        last.content = match last.n_pictures() {
            0 => Some(text.into()),
            n => {
                let mut parts = vec![json!({"type": "image"}); n];
                if !text.is_empty() {
                    parts.push(json!({"type": "text", "text": text}));
                }
                Some(parts.into())
            }
        };
    }
    other
}

fn prepare_raw(model: &Model, prompt: &str, shape: &AnswerShape) -> ApiResult<Prepared> {
    model.text.prepare_text(prompt, shape).map_err(|err| match err {
        PromptError::Text(err) => ApiError::text_of("prompt", err),
        err => NAMES.refusal(err),
    })
}
