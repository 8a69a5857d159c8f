//! `/v1/completions`: text that is continued as it is.

use std::sync::Arc;

use moeflux_engine::TokenId;
use moeflux_engine::text::{Delta, Markup, OutputFormat, OutputParser, Turn};
use serde_json::{Value, json};

use super::chat::{Streaming, streaming};
use super::chat_reply::{Head, usage_value};
use super::sampling::{self, finish_reason};
use crate::app::App;
use crate::ask::{Ask, Update, Usage, Whole, collect, submit};
use crate::conversation::text_refused;
use crate::error::{ApiError, ApiResult};
use crate::events::{Encoder, EventStream, Events};
use crate::fields::{Fields, whole_number};
use crate::logprobs;
use crate::offload::offload;
use crate::reply::{self, Dialect, Reply, error_value};
use crate::tool_names::ToolNames;

/// Tokens of an answer where the client says nothing.
const DEFAULT_TOKENS: usize = 16;

/// Prompts of a request at most.
const MAX_PROMPTS: usize = 16;

/// Likeliest tokens at most.
const MAX_TOP: usize = 5;

/// A prompt, and its text where that is to be repeated.
struct Prompt {
    tokens: Vec<TokenId>,
    echo: String,
}

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let mut fields = Fields::of_request(body)?;
    let model = fields.require_string("model")?;
    app.check_model(&model)?;
    let streaming = streaming(&mut fields)?;
    let mut settings = sampling::parse(&app, &mut fields)?;
    settings.max_tokens =
        Some(fields.integer("max_tokens", 1, usize::MAX)?.unwrap_or(DEFAULT_TOKENS));
    settings.top_logprobs = fields.integer("logprobs", 0, MAX_TOP)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    if echo && settings.top_logprobs.is_some() {
        return Err(fields.refuse("echo", "it does not go together with logprobs"));
    }
    let best_of = fields.integer("best_of", 1, usize::MAX)?.unwrap_or(settings.n);
    if best_of != settings.n {
        return Err(fields.refuse("best_of", "it must be n: every answer is given"));
    }
    let missing = fields.refuse("prompt", "it is missing");
    let prompt = fields.take("prompt").ok_or(missing)?;
    fields.ignore(&["user"]);
    fields.finish()?;
    let shared = Arc::clone(&app);
    let prompts = offload(move || prompts(&shared, prompt, echo)).await??;
    let echoes: Vec<String> = prompts.iter().map(|it| it.echo.clone()).collect();
    let format = OutputFormat::plain();
    let parser = OutputParser::new(&format, None, false);
    let with_logprobs = settings.top_logprobs.is_some();
    let head = Head::new(&app, "cmpl-", settings.n, with_logprobs);
    let prompts = prompts.into_iter().map(|it| Turn::raw(it.tokens)).collect();
    let expected = Arc::default();
    let ask = Ask {
        prompts,
        expected,
        settings,
        format,
        parser,
        tool_names: ToolNames::default(),
        may_think: false,
        constraint: None,
    };
    let answers = submit(&app, ask)?;
    if streaming.is_on {
        let encoder = TextStream::new(app, head, streaming, echoes);
        return Ok(reply::stream(EventStream::new(answers, Box::new(encoder))));
    }
    let all = collect(answers).await?;
    Ok(reply::json(hyper::StatusCode::OK, &whole(&app, &head, &echoes, all)))
}

/// A text, a list of texts, a list of tokens, or a list of those.
fn prompts(app: &App, value: Value, echo: bool) -> ApiResult<Vec<Prompt>> {
    let items = match value {
        Value::Array(items) if items.iter().any(Value::is_number) => vec![Value::Array(items)],
        Value::Array(items) => items,
        one => vec![one],
    };
    if items.is_empty() || items.len() > MAX_PROMPTS {
        let problem = format!("there must be 1 to {MAX_PROMPTS} prompts");
        return Err(ApiError::field("prompt", problem));
    }
    let items = items.into_iter();
    items.map(|it| prompt(app, it, echo)).collect()
}

fn prompt(app: &App, value: Value, echo: bool) -> ApiResult<Prompt> {
    let vocab = app.engine.shape().vocab;
    let tokens = match &value {
        // Text of a prompt may be somebody else's: it holds no control tokens.
        Value::String(text) => {
            let tokens = app.tokenizer.encode_prompt(text, Markup::Literal, app.max_prompt());
            tokens.map_err(|err| text_refused("prompt", err))?
        }
        Value::Array(ids) => {
            let id = |it: &Value| {
                u32::try_from(whole_number(it)?).ok().filter(|it| (*it as usize) < vocab)
            };
            let ids: Option<Vec<TokenId>> = ids.iter().map(|it| id(it).map(TokenId)).collect();
            ids.ok_or_else(|| {
                ApiError::field("prompt", format!("tokens are whole numbers below {vocab}"))
            })?
        }
        _ => return Err(ApiError::field("prompt", "it must be text, tokens, or a list of these")),
    };
    if tokens.is_empty() {
        return Err(ApiError::field("prompt", "it is empty"));
    }
    let echo = match (echo, value) {
        (false, _) => String::new(),
        (true, Value::String(text)) => text,
        (true, _) => app.tokenizer.decode(&tokens),
    };
    Ok(Prompt { tokens, echo })
}

fn whole(app: &App, head: &Head, echoes: &[String], all: Vec<Whole>) -> Value {
    let mut usage = Usage::default();
    let mut choices = Vec::with_capacity(all.len());
    for (i, whole) in all.into_iter().enumerate() {
        let finish = whole.answer.as_ref().map(|answer| {
            usage.add(i, head.n, answer);
            finish_reason(answer.finish)
        });
        let logprobs =
            head.with_logprobs.then(|| logprobs::lists(&app.tokenizer, &whole.logprobs, &mut 0));
        let text = format!("{}{}", echoes[i / head.n], whole.content);
        choices.push(json!({
            "index": i, "text": text, "logprobs": logprobs, "finish_reason": finish,
        }));
    }
    let mut value = head.object(app, "text_completion", choices);
    value["usage"] = usage_value(usage);
    value
}

/// Text as it comes.
struct TextStream {
    app: Arc<App>,
    head: Head,
    streaming: Streaming,
    echoes: Vec<String>,
    /// Characters of each answer so far.
    offsets: Vec<usize>,
    has_ended: Vec<bool>,
    usage: Usage,
}

impl TextStream {
    fn new(app: Arc<App>, head: Head, streaming: Streaming, echoes: Vec<String>) -> TextStream {
        let offsets = vec![0; echoes.len() * head.n];
        let has_ended = vec![false; offsets.len()];
        let usage = Usage::default();
        TextStream { app, head, streaming, echoes, offsets, has_ended, usage }
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut value = self.head.object(&self.app, "text_completion", choices);
        if self.streaming.with_usage {
            value["usage"] = Value::Null;
        }
        value
    }

    fn text(&self, i: usize, text: &str, logprobs: Value, finish: Option<&str>) -> Value {
        self.chunk(vec![json!({
            "index": i, "text": text, "logprobs": logprobs, "finish_reason": finish,
        })])
    }
}

impl Encoder for TextStream {
    fn begin(&mut self, out: &mut Events) {
        for i in 0..self.offsets.len() {
            let echo = &self.echoes[i / self.head.n];
            if !echo.is_empty() {
                out.data(&self.text(i, echo, Value::Null, None));
            }
        }
    }

    fn update(&mut self, i: usize, update: Update, out: &mut Events) {
        let (deltas, all, answer) = match update {
            Update::Prompt { .. } => return,
            Update::Failed(error) => {
                out.data(&error_value(&error, Dialect::OpenAi));
                return out.fail();
            }
            Update::Deltas(deltas, all) => (deltas, all, None),
            Update::Done(deltas, answer) => (deltas, Vec::new(), Some(answer)),
        };
        let mut text = String::new();
        for delta in deltas {
            if let Delta::Content(more) = delta {
                text.push_str(&more);
            }
        }
        let logprobs = match self.head.with_logprobs && !all.is_empty() {
            true => logprobs::lists(&self.app.tokenizer, &all, &mut self.offsets[i]),
            false => Value::Null,
        };
        let finish = answer.as_ref().map(|answer| {
            self.has_ended[i] = true;
            self.usage.add(i, self.head.n, answer);
            finish_reason(answer.finish)
        });
        out.data(&self.text(i, &text, logprobs, finish));
    }

    fn alive(&mut self, out: &mut Events) {
        if let Some(i) = self.has_ended.iter().position(|has_ended| !has_ended) {
            out.data(&self.text(i, "", Value::Null, None));
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.streaming.with_usage {
            let mut value = self.chunk(Vec::new());
            value["usage"] = usage_value(self.usage);
            out.data(&value);
        }
        out.raw("[DONE]");
    }
}
