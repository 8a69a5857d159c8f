//! `/v1/completions`: text that is continued as it is.

use std::sync::Arc;

use moeflux_text::{Delta, Prepared};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::chat_reply::{Head, usage_value};
use super::chat_request::StreamOptions;
use super::prompts::Prompts;
use super::sampling::{
    MAX_N, Penalty, RepeatPenalty, Sampling, Share, Stops, Temperature, finish_reason,
};
use crate::app::App;
use crate::ask::{Ask, Update, Usage, Whole, collect, submit};
use crate::error::{ApiError, ApiResult};
use crate::events::{Encoder, EventStream, Events};
use crate::offload::offload;
use crate::openai::chat_reply::Streaming;
use crate::reply::{self, Dialect, Reply, error_value};
use crate::request::{Body, Given, Integer, Limit, Request, Seed, hints, object, read};
use crate::{events, logprobs};

/// Tokens of an answer where the client says nothing.
const DEFAULT_TOKENS: usize = 16;

/// Likeliest tokens at most.
const MAX_TOP: u64 = 5;

/// A request for text that continues a prompt.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct CompletionRequest {
    /// The model's name; it may be left out.
    model: Option<String>,
    /// A text, a list of texts, a list of tokens, or a list of those.
    prompt: Prompts,

    /// How freely tokens are drawn; 0 takes the likeliest.
    temperature: Option<Temperature>,
    /// Draw from the fewest tokens whose probabilities reach this sum.
    top_p: Option<Share>,
    /// Draw from this many of the likeliest tokens; 0 or -1 for all.
    top_k: Option<Limit<0>>,
    /// Leave out tokens below this share of the highest probability.
    min_p: Option<Share>,
    /// How many answers are made to each prompt.
    n: Option<Integer<1, MAX_N>>,
    /// Must be `n`: every answer is given.
    best_of: Option<Integer<1>>,
    /// Texts that end the answer.
    stop: Option<Stops>,
    /// Taken from a token's logit for every time that the answer has it.
    frequency_penalty: Option<Penalty>,
    /// Taken from the logits of tokens that the answer has.
    presence_penalty: Option<Penalty>,
    /// Divides the logits of tokens that the text has.
    repetition_penalty: Option<RepeatPenalty>,
    /// llama-server's name of `repetition_penalty`.
    repeat_penalty: Option<RepeatPenalty>,
    /// How many of the last tokens the repetition penalty looks at; -1 for all.
    repeat_last_n: Option<Limit<0>>,
    /// By token, what is added to its logit: -100 to 100.
    logit_bias: Option<Map<String, Value>>,
    /// Determines draws; -1 leaves it to the server.
    seed: Option<Seed>,
    /// Whether the answer goes on until its limit.
    ignore_eos: Option<bool>,

    /// Tokens of an answer at most, 16 where this is left out; -1 for no limit but the context's.
    max_tokens: Option<Limit<1>>,
    /// llama-server's name of `max_tokens`.
    n_predict: Option<Limit<1>>,
    /// How many of the likeliest tokens are wanted for every token.
    logprobs: Option<Integer<0, MAX_TOP>>,
    /// Whether the prompt is repeated in front of the answer. Not together with `logprobs`.
    echo: Option<bool>,

    /// Whether the answer is sent as it is made.
    stream: Option<bool>,
    /// How it is sent then.
    stream_options: Option<StreamOptions>,

    /// Refused: text that follows the answer.
    suffix: Option<Given>,
    /// Refused: grammars of llama-server's notation.
    grammar: Option<Given>,
    /// Refused: answers here are any text.
    json_schema: Option<Given>,
    /// Refused: answers here are any text.
    guided_json: Option<Given>,
    /// Refused: answers here are any text.
    guided_regex: Option<Given>,
    /// Refused: answers here are any text.
    guided_choice: Option<Given>,
    /// Refused: answers here are any text.
    guided_grammar: Option<Given>,
    /// Refused: answers here are any text.
    structured_outputs: Option<Given>,
    /// Refused, but for `text`: answers here are any text.
    response_format: Option<TextFormat>,
    /// Refused: adapters.
    lora: Option<Given>,
    /// Refused: a search for the likeliest answer.
    use_beam_search: Option<Given>,
    /// Refused: prompts are never cut.
    truncate_prompt_tokens: Option<Given>,
    /// Refused: tokens that end the answer.
    stop_token_ids: Option<Given>,
    /// Refused: stop texts at the end of the answer.
    include_stop_str_in_output: Option<Given>,
    /// Refused: probabilities of the prompt.
    prompt_logprobs: Option<Given>,
}

/// The only format of an answer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "PlainFormat")]
pub(crate) struct TextFormat {
    /// `text`.
    #[schemars(extend("enum" = ["text"]))]
    r#type: String,
}

object!(CompletionRequest, TextFormat);

impl Body for CompletionRequest {
    const HINTS: &'static [&'static [&'static str]] = &[hints::REQUEST, super::hints::COMPLETION];
}

impl CompletionRequest {
    fn sampling(&mut self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            n: self.n,
            stop: self.stop.take(),
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repetition_penalty.or(self.repeat_penalty),
            repeat_last_n: self.repeat_last_n,
            logit_bias: self.logit_bias.take(),
            seed: self.seed,
            ignore_eos: self.ignore_eos,
        }
    }

    /// Refuses what the server cannot do.
    fn check(&self) -> ApiResult<()> {
        let any_text = "answers here are any text: use /v1/chat/completions";
        let refused = [
            ("suffix", self.suffix, "text is continued at its end only: leave it out"),
            ("grammar", self.grammar, any_text),
            ("json_schema", self.json_schema, any_text),
            ("guided_json", self.guided_json, any_text),
            ("guided_regex", self.guided_regex, any_text),
            ("guided_choice", self.guided_choice, any_text),
            ("guided_grammar", self.guided_grammar, any_text),
            ("structured_outputs", self.structured_outputs, any_text),
            ("lora", self.lora, "this server has no adapters: leave it out"),
            ("use_beam_search", self.use_beam_search, "answers are drawn, not searched"),
            (
                "truncate_prompt_tokens",
                self.truncate_prompt_tokens,
                "prompts are never cut: leave it out",
            ),
            ("stop_token_ids", self.stop_token_ids, "answers end at texts: use stop"),
            (
                "include_stop_str_in_output",
                self.include_stop_str_in_output,
                "answers never have the stop text: leave it out",
            ),
            (
                "prompt_logprobs",
                self.prompt_logprobs,
                "there are no probabilities of prompts: leave it out",
            ),
        ];
        if self.response_format.as_ref().is_some_and(|format| format.r#type != "text") {
            return Err(ApiError::not_supported("response_format", any_text));
        }
        match refused.iter().find(|(_, field, _)| *field == Some(Given(true))) {
            Some((name, _, why)) => Err(ApiError::not_supported(name, why)),
            None => Ok(()),
        }
    }
}

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { mut body, ignored } = read::<CompletionRequest>(body)?;
    let ignored = ignored.accept(&app)?;
    app.check_name(body.model.as_deref())?;
    body.check()?;
    let streaming = Streaming::of(body.stream, body.stream_options.as_ref(), None);
    let mut settings = body.sampling().settings(&app)?;
    settings.max_tokens = match body.max_tokens.or(body.n_predict) {
        Some(Limit(limit)) => limit,
        None => Some(DEFAULT_TOKENS),
    };
    settings.top_logprobs = body.logprobs.map(|Integer(top)| top);
    let echo = body.echo.unwrap_or(false);
    if echo && settings.top_logprobs.is_some() {
        return Err(ApiError::field("echo", "it does not go together with logprobs"));
    }
    if body.best_of.is_some_and(|Integer(best_of)| best_of != settings.n) {
        return Err(ApiError::field("best_of", "it must be n: every answer is given"));
    }
    let prompt = body.prompt;
    let shared = Arc::clone(&app);
    let prompts = offload(move || prompt.read(&shared, echo)).await??;
    let echoes: Vec<String> = prompts.iter().map(|prompt| prompt.echo.clone()).collect();
    let with_logprobs = settings.top_logprobs.is_some();
    let head = Head::new(&app, "cmpl-", settings.n, with_logprobs);
    // The text may offer tools in the client's own words: calls are not ruled out.
    let prompts = prompts.into_iter().map(|prompt| Prepared::of_tokens(prompt.tokens)).collect();
    let answers = submit(&app, Ask { prompts, settings })?;
    if streaming.is_on {
        let encoder = TextStream::new(app, head, streaming, echoes);
        return Ok(ignored.mark(events::stream(EventStream::new(answers, Box::new(encoder)))));
    }
    let all = collect(answers).await?;
    Ok(ignored.mark(reply::json(hyper::StatusCode::OK, &whole(&app, &head, &echoes, all))))
}

fn whole(app: &App, head: &Head, echoes: &[String], all: Vec<Whole>) -> Value {
    let mut usage = Usage::default();
    let mut choices = Vec::with_capacity(all.len());
    for (i, whole) in all.into_iter().enumerate() {
        let finish = whole.answer.as_ref().map(|answer| {
            usage.add(i, head.n, answer);
            finish_reason(answer.finish)
        });
        let logprobs = head
            .with_logprobs
            .then(|| logprobs::lists(app.text.tokenizer(), &whole.logprobs, &mut 0));
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
            true => logprobs::lists(self.app.text.tokenizer(), &all, &mut self.offsets[i]),
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
        if let Some(i) = self.has_ended.iter().position(|ended| !ended) {
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

#[cfg(test)]
mod tests {
    use moeflux_text::{OutputFormat, OutputParser};

    use super::*;
    use crate::events::slow;

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_sends_chunks_without_text() {
        let app = slow::app();
        let parser = OutputParser::new(&OutputFormat::plain(), None, false);
        let (answers, sender) = slow::answers(&app, parser, false);
        let head = Head::new(&app, "cmpl-", 1, false);
        let encoder =
            TextStream::new(Arc::clone(&app), head, Streaming::default(), vec![String::new()]);
        let events = slow::stream(answers, sender, Box::new(encoder), &["Hello"]).await;
        let events = slow::values(&events);
        let texts: Vec<&str> =
            events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert!(texts.len() > 50);
        assert_eq!(texts.concat(), "Hello");
    }
}
