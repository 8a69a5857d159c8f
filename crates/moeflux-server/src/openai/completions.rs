//! `/v1/completions`: text that is continued as it is.

use std::sync::Arc;

use moeflux_engine::{Finish, TokenId, TokenLogprob};
use moeflux_text::{Delta, Tokenizer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::chat_reply::{ChunkUsage, Head, Streaming};
use super::chat_request::StreamOptions;
use super::prompts::Prompts;
use super::usage::Usage;
use crate::app::App;
use crate::ask::{self, PreparedRequest, Update, WholeAnswer, collect, submit};
use crate::error::{ApiError, ApiResult};
use crate::events::{Encoder, EventStream, Events};
use crate::offload::offload;
use crate::reply::{self, Dialect, ErrorReply, Reply};
use crate::request::{Body, Given, Integer, Limit, Request, hints, object, read};
use crate::sampling::Sampled;
use crate::{events, logprobs};

/// Tokens of an answer where the client says nothing.
const DEFAULT_TOKENS: usize = 16;

/// What answers and their parts are called.
const OBJECT: &str = "text_completion";

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

    /// Tokens of an answer at most, 16 where this is left out; 0 for none, -1 for no limit but the
    /// context's.
    max_tokens: Option<Limit<0>>,
    /// llama-server's name of `max_tokens`.
    n_predict: Option<Limit<0>>,
    /// How many of the likeliest tokens are wanted for every token.
    logprobs: Option<Integer<0, MAX_TOP>>,
    /// Whether the prompt is repeated in front of the answer, with the probabilities of its tokens where
    /// there are `logprobs`.
    echo: Option<bool>,

    /// Whether the answer is sent as it is made.
    stream: Option<bool>,
    /// How it is sent then.
    stream_options: Option<StreamOptions>,

    /// Text that follows the answer. Prompts are read as the text before it then, without control
    /// tokens. Refused where the vocabulary has no tokens around a gap in a text.
    suffix: Option<String>,
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
    /// Refuses what the server cannot do.
    fn check(&self) -> ApiResult<()> {
        let any_text = "answers here are any text: use /v1/chat/completions";
        let refused = [
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
    let Request { body, ignored } = read::<Sampled<CompletionRequest>>(body)?;
    let Sampled { request: body, sampling } = body;
    let ignored = ignored.accept(&app)?;
    app.check_name(body.model.as_deref())?;
    body.check()?;
    let streaming = Streaming::of(body.stream, body.stream_options.as_ref(), None);
    let mut settings = sampling.settings(&app)?;
    settings.max_tokens = match body.max_tokens.or(body.n_predict) {
        Some(Limit(limit)) => limit,
        None => Some(DEFAULT_TOKENS),
    };
    settings.top_logprobs = body.logprobs.map(|Integer(top)| top);
    let echo = body.echo.unwrap_or(false);
    let suffix = body.suffix.filter(|text| !text.is_empty());
    let scores_prompts = echo && settings.top_logprobs.is_some();
    if scores_prompts && suffix.is_some() {
        let problem = "it does not go together with echo and logprobs";
        return Err(ApiError::field("suffix", problem));
    }
    let prompt = body.prompt;
    let shared = Arc::clone(&app);
    let prompts = offload(move || prompt.read(&shared, suffix.as_deref(), echo)).await??;
    let echoes: Vec<String> = prompts.iter().map(|prompt| prompt.echo.clone()).collect();
    let with_logprobs = settings.top_logprobs.is_some();
    let head = Head::new(&app, "cmpl-", settings.n, with_logprobs);
    let firsts = prompts.iter().map(|prompt| prompt.prepared.turn.tokens.first().copied());
    let firsts: Vec<Option<TokenId>> =
        firsts.map(|first| first.filter(|_| scores_prompts)).collect();
    let prompts = prompts.into_iter().map(|prompt| prompt.prepared).collect();
    let answers =
        submit(&app, PreparedRequest { prompts, pictures: Vec::new(), settings, scores_prompts })?;
    let echoed: Vec<Echoed> =
        echoes.into_iter().zip(firsts).map(|(text, first)| Echoed { text, first }).collect();
    if streaming.is_on {
        let encoder = TextStream::new(app, head, streaming, echoed);
        return Ok(ignored.mark(events::stream(EventStream::new(answers, Box::new(encoder)))));
    }
    let all = collect(answers).await?;
    Ok(ignored.mark(reply::json(hyper::StatusCode::OK, &whole(&app, &head, &echoed, all))))
}

/// Text that continues a prompt.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Completion<'a> {
    /// Its identifier.
    id: &'a str,
    /// `text_completion`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The model's name.
    model: &'a str,
    /// Tells models and arithmetics apart.
    system_fingerprint: &'a str,
    /// The answers.
    #[schemars(length(min = 1))]
    choices: Vec<TextChoice>,
    /// Tokens that they took.
    usage: Usage,
}

/// A text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct TextChoice {
    /// Which answer it is, from 0: those to the first prompt come first.
    index: usize,
    /// The text.
    text: String,
    /// The logarithms of the tokens' probabilities, where they are wanted.
    logprobs: Option<logprobs::Lists>,
    /// Why the text ended; null in the parts of a stream before.
    finish_reason: Option<TextEnd>,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TextEnd {
    /// A stop text, or the end of the text.
    Stop,
    /// A limit was reached.
    Length,
}

impl TextEnd {
    fn of(finish: Finish) -> TextEnd {
        match finish {
            Finish::MaxTokens | Finish::ContextFull => TextEnd::Length,
            Finish::EndOfText | Finish::Stop | Finish::Cancelled => TextEnd::Stop,
        }
    }
}

/// A prompt in front of its answers.
#[derive(Debug, Default)]
struct Echoed {
    text: String,
    /// Its first token, where the probabilities of the others are wanted.
    first: Option<TokenId>,
}

impl Echoed {
    /// The lists of the prompt's tokens, of which those behind the first have probabilities.
    fn lists(&self, tokenizer: &Tokenizer, scored: &[TokenLogprob]) -> logprobs::Lists {
        let mut lists = logprobs::Lists::begun(tokenizer, self.first);
        lists.extend(tokenizer, scored);
        lists
    }
}

fn whole<'a>(
    app: &'a App,
    head: &'a Head,
    echoes: &[Echoed],
    all: Vec<WholeAnswer>,
) -> Completion<'a> {
    let mut usage = ask::Usage::default();
    let mut choices = Vec::with_capacity(all.len());
    for (index, whole) in all.into_iter().enumerate() {
        let finish_reason = whole.answer.as_ref().map(|answer| {
            usage.add(index, head.n, answer);
            TextEnd::of(answer.finish)
        });
        let tokenizer = app.text.tokenizer();
        let echo = &echoes[index / head.n];
        let lists = || {
            let mut lists = echo.lists(tokenizer, &whole.scored);
            lists.extend(tokenizer, &whole.logprobs);
            lists
        };
        let logprobs = head.with_logprobs.then(lists);
        let text = format!("{}{}", echo.text, whole.content);
        choices.push(TextChoice { index, text, logprobs, finish_reason });
    }
    Completion {
        id: &head.id,
        object: OBJECT,
        created: head.created,
        model: app.model_name(),
        system_fingerprint: &app.fingerprint,
        choices,
        usage: usage.into(),
    }
}

/// Text as it comes.
struct TextStream {
    app: Arc<App>,
    head: Head,
    streaming: Streaming,
    echoes: Vec<Echoed>,
    /// Tokens of the prompt of each answer, until they are sent.
    scored: Vec<Vec<TokenLogprob>>,
    /// Whether a prompt with its probabilities is still to be sent, by answer.
    is_owed: Vec<bool>,
    /// Characters of each answer so far.
    offsets: Vec<usize>,
    has_ended: Vec<bool>,
    usage: ask::Usage,
}

impl TextStream {
    fn new(app: Arc<App>, head: Head, streaming: Streaming, echoes: Vec<Echoed>) -> TextStream {
        let offsets = vec![0; echoes.len() * head.n];
        let has_ended = vec![false; offsets.len()];
        let scored = vec![Vec::new(); offsets.len()];
        let is_owed = (0..offsets.len()).map(|i| echoes[i / head.n].first.is_some()).collect();
        let usage = ask::Usage::default();
        TextStream { app, head, streaming, echoes, scored, is_owed, offsets, has_ended, usage }
    }

    /// Sends a prompt with the probabilities of its tokens, which are known when its answer begins.
    fn send_prompt(&mut self, i: usize, out: &mut Events) {
        if !std::mem::take(&mut self.is_owed[i]) {
            return;
        }
        let scored = std::mem::take(&mut self.scored[i]);
        let echo = &self.echoes[i / self.head.n];
        let lists = echo.lists(self.app.text.tokenizer(), &scored);
        self.offsets[i] = lists.n_chars();
        let (text, logprobs) = (echo.text.clone(), Some(lists));
        self.send(TextChoice { index: i, text, logprobs, finish_reason: None }, out);
    }

    fn send(&self, choice: TextChoice, out: &mut Events) {
        let usage = self.streaming.usage_before_end();
        out.data(&self.head.chunk(&self.app, OBJECT, vec![choice], usage));
    }

    /// Sends text without probabilities.
    fn text(&self, index: usize, text: String, out: &mut Events) {
        self.send(TextChoice { index, text, logprobs: None, finish_reason: None }, out);
    }
}

impl Encoder for TextStream {
    fn begin(&mut self, out: &mut Events) {
        for i in 0..self.offsets.len() {
            let echo = &self.echoes[i / self.head.n].text;
            if !echo.is_empty() && !self.is_owed[i] {
                self.text(i, echo.clone(), out);
            }
        }
    }

    fn update(&mut self, i: usize, update: Update, out: &mut Events) {
        let (deltas, all, answer) = match update {
            Update::Prompt { .. } => return,
            Update::Scored(tokens) => return self.scored[i].extend(tokens),
            Update::Failed(error) => {
                out.data(&ErrorReply::new(&error, Dialect::OpenAi));
                return out.fail();
            }
            Update::Deltas(deltas, all) => (deltas, all, None),
            Update::Done(deltas, answer) => (deltas, Vec::new(), Some(answer)),
        };
        self.send_prompt(i, out);
        let mut text = String::new();
        for delta in deltas {
            if let Delta::Content(more) = delta {
                text.push_str(&more);
            }
        }
        let mut logprobs = None;
        if self.head.with_logprobs && !all.is_empty() {
            let tokenizer = self.app.text.tokenizer();
            let mut lists = logprobs::Lists::behind(self.offsets[i]);
            lists.extend(tokenizer, &all);
            self.offsets[i] = lists.n_chars();
            logprobs = Some(lists);
        }
        let finish_reason = answer.as_ref().map(|answer| {
            self.has_ended[i] = true;
            self.usage.add(i, self.head.n, answer);
            TextEnd::of(answer.finish)
        });
        self.send(TextChoice { index: i, text, logprobs, finish_reason }, out);
    }

    fn alive(&mut self, out: &mut Events) {
        if let Some(i) = self.has_ended.iter().position(|ended| !ended) {
            self.text(i, String::new(), out);
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.streaming.with_usage {
            let usage = ChunkUsage::Here(self.usage.into());
            out.data(&self.head.chunk::<TextChoice>(&self.app, OBJECT, Vec::new(), usage));
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
            TextStream::new(Arc::clone(&app), head, Streaming::default(), vec![Echoed::default()]);
        let events = slow::stream(answers, sender, Box::new(encoder), &["Hello"]).await;
        let events = slow::values(&events);
        let texts: Vec<&str> =
            events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert!(texts.len() > 50);
        assert_eq!(texts.concat(), "Hello");
    }
}
