//! `/infill` of llama-server: what stands in the gap of a text, which editors ask for.

use std::sync::Arc;

use moeflux_engine::{Answer, Finish};
use moeflux_text::{AnswerShape, Delta, Infill, NamedText};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::app::App;
use crate::ask::{Update, collect};
use crate::error::{ApiError, ApiResult};
use crate::events::{self, Encoder, EventStream, Events};
use crate::offload::offload;
use crate::prepare::{GapFields, prepare_infill, submit_prepared};
use crate::reply::{self, Dialect, ErrorReply, Reply};
use crate::request::{Body, Given, Limit, List, Request, hints, object, read};
use crate::sampling::Sampled;

/// Texts in addition to that with the gap, at most.
const MAX_OTHERS: usize = 1024;

/// Tokens for which other texts leave room where the answer has no limit.
const DEFAULT_ROOM: usize = 256;

/// A request for what stands in the gap of a text. None of the texts becomes a control token.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct InfillRequest {
    /// The model's name; it may be left out.
    model: Option<String>,
    /// What comes before the gap.
    input_prefix: String,
    /// What comes behind it.
    input_suffix: String,
    /// Other texts that help, the most helpful one last. Those that do not fit are left out.
    input_extra: Option<List<OtherText, MAX_OTHERS>>,
    /// The beginning of the answer: it stands behind `input_prefix`.
    prompt: Option<String>,
    /// Tokens of the answer at most; -1 for no limit but the context's, 0 to read the texts only.
    n_predict: Option<Limit<0>>,
    /// Another name of `n_predict`.
    max_tokens: Option<Limit<0>>,
    /// Whether the answer is sent as it is made.
    stream: Option<bool>,
    /// Refused: answers here are any text.
    grammar: Option<Given>,
    /// Refused: answers here are any text.
    json_schema: Option<Given>,
    /// Refused: adapters.
    lora: Option<Given>,
}

/// A text with a name.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct OtherText {
    /// The name of its file.
    filename: Option<String>,
    /// The text.
    text: String,
}

object!(InfillRequest, OtherText);

/// Fields that change nothing here.
const HINTS: &[&str] = &["t_max_prompt_ms", "input_extra[].time"];

impl Body for InfillRequest {
    const HINTS: &'static [&'static [&'static str]] = &[hints::REQUEST, HINTS];
}

impl InfillRequest {
    /// Refuses what the server cannot do.
    fn check(&self) -> ApiResult<()> {
        let any_text = "answers here are any text: leave it out";
        let refused = [
            ("grammar", self.grammar, any_text),
            ("json_schema", self.json_schema, any_text),
            ("lora", self.lora, "this server has no adapters: leave it out"),
        ];
        match refused.iter().find(|(_, field, _)| *field == Some(Given(true))) {
            Some((name, _, why)) => Err(ApiError::not_supported(name, why)),
            None => Ok(()),
        }
    }

    /// The text with its gap.
    fn text(self, n_answer: Option<usize>) -> Infill {
        let List(others) = self.input_extra.unwrap_or_default();
        let named = |other: OtherText| NamedText {
            name: other.filename.unwrap_or_default(),
            text: other.text,
        };
        Infill {
            prefix: self.input_prefix + &self.prompt.unwrap_or_default(),
            suffix: self.input_suffix,
            others: others.into_iter().map(named).collect(),
            n_answer: n_answer.unwrap_or(DEFAULT_ROOM),
        }
    }
}

/// `/infill`
pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = read::<Sampled<InfillRequest>>(body)?;
    let Sampled { request: body, sampling } = body;
    let ignored = ignored.accept(&app)?;
    app.check_name(body.model.as_deref())?;
    body.check()?;
    let mut settings = sampling.settings(&app)?;
    if settings.n != 1 {
        return Err(ApiError::field("n", "there is one answer here: leave it out"));
    }
    let limit = body.n_predict.or(body.max_tokens).and_then(|Limit(limit)| limit);
    // The logits of a token are what shows that the texts were read.
    let is_read_only = limit == Some(0);
    settings.max_tokens = limit.map(|limit| limit.max(1));
    let is_stream = body.stream.unwrap_or(false);
    let shared = Arc::clone(&app);
    let infill = body.text(limit);
    let text = AnswerShape::Text;
    let prepared = offload(move || prepare_infill(&shared, &infill, &text, GapFields::INPUT));
    let answers = submit_prepared(&app, prepared.await??, Vec::new(), settings)?;
    if is_stream {
        let encoder = Parts { app, is_read_only };
        return Ok(ignored.mark(events::stream(EventStream::new(answers, Box::new(encoder)))));
    }
    let whole = collect(answers).await?.into_iter().next().unwrap_or_default();
    let content = if is_read_only { String::new() } else { whole.content };
    let filled = Filled::new(&app, content, whole.answer.as_ref());
    Ok(ignored.mark(reply::json(hyper::StatusCode::OK, &filled)))
}

/// What stands in a gap, or a part of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Filled<'a> {
    /// Always 0.
    index: usize,
    /// The text.
    content: String,
    /// The model's name.
    model: &'a str,
    /// Whether this is the last part.
    stop: bool,
    /// Why the text ended and what it took, with the last part.
    #[serde(flatten)]
    figures: Option<Figures>,
}

/// Why a text ended and what it took.
#[derive(Debug, Serialize, JsonSchema)]
struct Figures {
    /// Why the text ended.
    stop_type: StopType,
    /// The stop text that ended it.
    stopping_word: String,
    /// Tokens of the prompt.
    tokens_evaluated: usize,
    /// Tokens of the answer.
    tokens_predicted: usize,
    /// Tokens of both.
    tokens_cached: usize,
    /// Always false: texts are never cut.
    truncated: bool,
    /// Times and rates.
    timings: Timings,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum StopType {
    /// A token that ends texts.
    Eos,
    /// A limit was reached.
    Limit,
    /// A stop text.
    Word,
}

/// Times and rates of a text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Timings {
    /// Tokens of the prompt that were evaluated.
    prompt_n: usize,
    /// Milliseconds that they took.
    prompt_ms: f64,
    /// Tokens of the prompt in a second.
    prompt_per_second: f64,
    /// Tokens of the answer.
    predicted_n: usize,
    /// Milliseconds that they took.
    predicted_ms: f64,
    /// Tokens of the answer in a second.
    predicted_per_second: f64,
}

impl Figures {
    fn of(answer: &Answer) -> Figures {
        let stop_type = match answer.finish {
            Finish::MaxTokens | Finish::ContextFull => StopType::Limit,
            Finish::Stop => StopType::Word,
            Finish::EndOfText | Finish::Cancelled => StopType::Eos,
        };
        let first_token = answer.first_token.unwrap_or(answer.queued);
        let prompt = first_token.saturating_sub(answer.queued).as_secs_f64();
        let decode = answer.decode.as_secs_f64();
        let rate = |n: usize, seconds: f64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let prompt_n = answer.n_prompt.saturating_sub(answer.n_reused);
        Figures {
            stop_type,
            stopping_word: answer.stop.clone().unwrap_or_default(),
            tokens_evaluated: answer.n_prompt,
            tokens_predicted: answer.n_generated,
            tokens_cached: answer.n_prompt + answer.n_generated,
            truncated: false,
            timings: Timings {
                prompt_n,
                prompt_ms: prompt * 1e3,
                prompt_per_second: rate(prompt_n, prompt),
                predicted_n: answer.n_generated,
                predicted_ms: decode * 1e3,
                predicted_per_second: rate(answer.n_generated.saturating_sub(1), decode),
            },
        }
    }
}

impl<'a> Filled<'a> {
    fn new(app: &'a App, content: String, answer: Option<&Answer>) -> Filled<'a> {
        let figures = answer.map(Figures::of);
        Filled { index: 0, content, model: app.model_name(), stop: figures.is_some(), figures }
    }
}

/// An answer as it comes.
struct Parts {
    app: Arc<App>,
    is_read_only: bool,
}

impl Encoder for Parts {
    fn begin(&mut self, _: &mut Events) {}

    fn update(&mut self, _: usize, update: Update, out: &mut Events) {
        let (deltas, answer) = match update {
            Update::Prompt { .. } | Update::Scored(_) => return,
            Update::Failed(error) => {
                out.data(&ErrorReply::new(&error, Dialect::OpenAi));
                return out.fail();
            }
            Update::Deltas(deltas, _) => (deltas, None),
            Update::Done(deltas, answer) => (deltas, Some(answer)),
        };
        let mut text = String::new();
        for delta in deltas.into_iter().filter(|_| !self.is_read_only) {
            if let Delta::Content(more) = delta {
                text.push_str(&more);
            }
        }
        if !text.is_empty() || answer.is_some() {
            out.data(&Filled::new(&self.app, text, answer.as_ref()));
        }
    }

    fn alive(&mut self, out: &mut Events) {
        out.data(&Filled::new(&self.app, String::new(), None));
    }

    fn end(&mut self, _: &mut Events) {}
}
