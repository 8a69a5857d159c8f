//! What is recorded of a request while it is handled: for its reply's headers and for the log.
//!
//! The task that handles a request has its record (`current`); answers that it queues count their
//! tokens there.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use axum::extract::MatchedPath;
use axum::http::header::{HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method};
use moeflux_engine::Event;
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::callers::Caller;
use crate::common::Common;
use crate::error::ApiResult;
use crate::guarded::Guard;
use crate::limits::Quota;
use crate::log::time;
use crate::metrics::{Labels, Used};
use crate::reply::{Dialect, Reply};

/// The header with a request's id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The same header for clients of Anthropic's API.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Bytes of an id that a client may choose.
const LONGEST_ID: usize = 128;

/// The status in the log of a request whose client left before its reply began, as nginx writes it.
const CLIENT_LEFT: u16 = 499;

tokio::task_local! {
    static RECORD: Arc<Record>;
}

/// What is known of a request.
#[derive(Debug)]
pub(crate) struct Record {
    id: HeaderValue,
    api: Api,
    caller: OnceLock<Arc<Caller>>,
    /// Whose turn it is to get a session, where keys share the server.
    owner: OnceLock<Arc<str>>,
    /// The model that answers.
    model: OnceLock<Box<str>>,
    /// Whether the answers count among those of the key.
    is_taken: AtomicBool,
    counts: Mutex<Option<Counts>>,
}

/// What the answers to a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    n_prompt: usize,
    n_reused: usize,
    n_generated: usize,
    has_failed: bool,
}

/// The API that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Api {
    OpenAi,
    Anthropic,
    Ollama,
    LlamaServer,
    Moeflux,
}

impl Api {
    /// The API of a route; paths without a route belong to none of the others.
    fn of(route: &str) -> Api {
        match route {
            _ if route.starts_with("/v1/messages") => Api::Anthropic,
            _ if route.starts_with("/v1/") => Api::OpenAi,
            _ if route.starts_with("/api/") => Api::Ollama,
            "/infill" | "/apply-template" | "/tokenize" | "/detokenize" | "/props" | "/slots" => {
                Api::LlamaServer
            }
            _ => Api::Moeflux,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Api::OpenAi => "openai",
            Api::Anthropic => "anthropic",
            Api::Ollama => "ollama",
            Api::LlamaServer => "llama-server",
            Api::Moeflux => "moeflux",
        }
    }
}

/// The record of the request that this task handles. Tests queue prompts outside of requests.
pub(crate) fn current() -> Option<Arc<Record>> {
    RECORD.try_with(Arc::clone).ok()
}

impl Record {
    fn lock(&self) -> MutexGuard<'_, Option<Counts>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whose key the request showed, and whether it shares the server with others.
    pub(crate) fn set_caller(&self, caller: Arc<Caller>, is_shared: bool) {
        if is_shared {
            self.owner.get_or_init(|| Arc::clone(&caller.name));
        }
        self.caller.get_or_init(|| caller);
    }

    /// Notes which model answers.
    pub(crate) fn set_model(&self, name: &str) {
        self.model.get_or_init(|| name.into());
    }

    /// What the key may use.
    fn quota(&self) -> Option<&Quota> {
        self.caller.get().map(|caller| &caller.quota)
    }

    /// Whose answers take turns.
    pub(crate) fn owner(&self) -> Option<Arc<str>> {
        self.owner.get().cloned()
    }

    /// What the key may take of the threads, where keys share the server.
    pub(crate) fn threads(&self) -> Option<Arc<Semaphore>> {
        self.owner.get()?;
        self.caller.get().map(|caller| Arc::clone(&caller.threads))
    }

    /// Takes what `n_answers` to prompts of `n_tokens` need of the key's limits.
    pub(crate) fn take(&self, n_answers: usize, n_tokens: usize, common: &Common) -> ApiResult<()> {
        let Some(caller) = self.caller.get() else { return Ok(()) };
        let n_answers = u32::try_from(n_answers).unwrap_or(u32::MAX);
        caller.quota.take(n_answers, n_tokens, Instant::now()).map_err(|exceeded| {
            common.metrics.limited(&caller.name, exceeded.limit.name());
            caller.refusal(&exceeded)
        })?;
        self.is_taken.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back what a request took that was not queued.
    pub(crate) fn give_back(&self, n_tokens: usize) {
        if let Some(quota) = self.quota() {
            quota.give_back(n_tokens);
        }
    }

    /// Handles a request that has this record.
    pub(crate) fn held_by<F: Future>(
        self: &Arc<Record>,
        handling: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        RECORD.scope(Arc::clone(self), handling)
    }

    /// Gives a reply the id, and what there is of the key's limits.
    pub(crate) fn set_headers(&self, reply: &mut Reply, dialect: Dialect) {
        if let Some(caller) = self.caller.get() {
            caller.set_levels(reply, dialect);
        }
        let headers = reply.headers_mut();
        headers.insert(REQUEST_ID, self.id.clone());
        if dialect == Dialect::Anthropic {
            headers.insert(ANTHROPIC_REQUEST_ID, self.id.clone());
        }
    }
}

/// Counts the tokens of an answer as they are made.
pub(crate) struct AnswerCount {
    record: Arc<Record>,
    /// Whether the prompt counts, which other answers may have, too.
    counts_prompt: bool,
    n_generated: usize,
}

impl AnswerCount {
    pub(crate) fn new(record: Arc<Record>, counts_prompt: bool) -> AnswerCount {
        record.lock().get_or_insert_default();
        AnswerCount { record, counts_prompt, n_generated: 0 }
    }

    pub(crate) fn note(&mut self, event: &Event) {
        let mut counts = self.record.lock();
        let counts = counts.get_or_insert_default();
        match event {
            Event::Prompt { n_total, n_reused, .. } if self.counts_prompt => {
                self.counts_prompt = false;
                counts.n_prompt += n_total;
                counts.n_reused += n_reused;
                self.record.quota().inspect(|quota| quota.reuse_tokens(*n_reused));
            }
            Event::Prompt { .. } | Event::Scored(_) => {}
            // About a token: the end has their number.
            Event::Text(_) => {
                self.n_generated += 1;
                counts.n_generated += 1;
            }
            Event::Done(answer) => {
                counts.n_generated += answer.n_generated;
                self.record.quota().inspect(|quota| quota.add_tokens(answer.n_generated));
                counts.n_generated -= self.n_generated.min(counts.n_generated);
            }
            Event::Failed(_) => counts.has_failed = true,
        }
    }
}

impl Drop for AnswerCount {
    fn drop(&mut self) {
        if let Some(quota) = self.record.quota()
            && self.record.is_taken.load(Ordering::Relaxed)
        {
            quota.end_answer();
        }
    }
}

/// The id that a client chose for its request, if logs and headers can have it.
fn chosen_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(REQUEST_ID)?;
    let is_fine = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@~".contains(byte);
    let bytes = value.as_bytes();
    let fits = (1..=LONGEST_ID).contains(&bytes.len()) && bytes.iter().all(is_fine);
    fits.then(|| value.clone())
}

/// The line of a request in the log, which is written when this is dropped: with the end of the
/// reply's body, or when the client leaves.
pub(crate) struct AccessLine {
    common: Arc<Common>,
    record: Arc<Record>,
    method: Method,
    /// Paths are the clients' own and may hold what they asked.
    route: Option<MatchedPath>,
    began: Instant,
    status: Option<u16>,
    has_ended: bool,
}

impl AccessLine {
    pub(crate) fn new(
        common: &Arc<Common>,
        method: &Method,
        route: Option<MatchedPath>,
        headers: &HeaderMap,
    ) -> AccessLine {
        let own_id =
            || HeaderValue::from_str(&common.ids.draw("req_")).expect("an id is a word of letters");
        let record = Record {
            id: chosen_id(headers).unwrap_or_else(own_id),
            api: Api::of(route.as_ref().map_or("unknown", MatchedPath::as_str)),
            caller: OnceLock::new(),
            owner: OnceLock::new(),
            model: OnceLock::new(),
            is_taken: AtomicBool::new(false),
            counts: Mutex::default(),
        };
        AccessLine {
            common: Arc::clone(common),
            record: Arc::new(record),
            method: method.clone(),
            route,
            began: Instant::now(),
            status: None,
            // A reply to HEAD has no body that could be taken.
            has_ended: *method == Method::HEAD,
        }
    }

    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Notes that the reply begins.
    pub(crate) fn replied(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// The model that answers, or would.
    fn model_name(&self) -> &str {
        self.record.model.get().map_or(self.common.only_name(), |name| name)
    }

    fn entry(&self) -> Entry<'_> {
        let counts = *self.record.lock();
        let end = match (self.status, counts) {
            (_, Some(counts)) if counts.has_failed => Some("failed"),
            (None, _) => Some("left"),
            (Some(_), _) => (!self.has_ended).then_some("left"),
        };
        Entry {
            time: time(),
            method: self.method.as_str(),
            path: self.route.as_ref().map_or("unknown", MatchedPath::as_str),
            status: self.status.unwrap_or(CLIENT_LEFT),
            seconds: (self.began.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            id: self.record.id.to_str().unwrap_or_default(),
            key: self.record.caller.get().map(|caller| &*caller.name),
            api: self.record.api.name(),
            model: counts.map(|_| self.model_name()),
            tokens_in: counts.map(|counts| counts.n_prompt),
            tokens_cached: counts.map(|counts| counts.n_reused),
            tokens_out: counts.map(|counts| counts.n_generated),
            end,
        }
    }
}

impl Guard for AccessLine {
    fn ended(&mut self) {
        self.has_ended = true;
    }
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        let entry = self.entry();
        let labels = Labels {
            model: self.model_name().to_owned(),
            api: self.record.api.name(),
            key: entry.key.unwrap_or_default().to_owned(),
        };
        let metrics = &self.common.metrics;
        metrics.ended(&labels, entry.status);
        if let Some(counts) = *self.record.lock() {
            let Counts { n_prompt, n_reused, n_generated, .. } = counts;
            metrics.used(&labels, Used { n_prompt, n_reused, n_generated });
            metrics.lasted(&labels, self.began.elapsed());
        }
        if self.common.options.log_requests {
            self.common.options.log_format.log_entry(&entry);
        }
    }
}

/// A request in the log.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    time: String,
    method: &'a str,
    path: &'a str,
    status: u16,
    seconds: f64,
    id: &'a str,
    key: Option<&'a str>,
    api: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_in: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_cached: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_out: Option<usize>,
    /// What ended a reply that is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
}

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { time, method, path, status, seconds, id, api, .. } = self;
        let key = self.key.unwrap_or("-");
        write!(f, "{time} {method} {path} {status} {seconds:.3} s id={id} key={key} api={api}")?;
        if let (Some(model), Some(n_in), Some(n_cached), Some(n_out)) =
            (self.model, self.tokens_in, self.tokens_cached, self.tokens_out)
        {
            write!(f, " model={model} in={n_in} cached={n_cached} out={n_out}")?;
        }
        self.end.map_or(Ok(()), |end| write!(f, " end={end}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_the_client_is_kept_where_a_header_and_a_log_can_have_it() {
        let chosen = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(id.as_bytes()).unwrap());
            chosen_id(&headers).map(|id| id.to_str().unwrap().to_owned())
        };
        let long = "a".repeat(LONGEST_ID);
        for id in ["abc-1", "550e8400-e29b-41d4-a716-446655440000", "Root=1-5759e988", &long] {
            assert_eq!(chosen(id).as_deref(), Some(id));
        }
        for id in ["", "a b", "a\tb", "é", "\"", &(long.clone() + "a")] {
            assert_eq!(chosen(id), None, "{id:?}");
        }
        assert_eq!(chosen_id(&HeaderMap::new()), None);
    }

    #[test]
    fn routes_belong_to_apis() {
        for (route, api) in [
            ("/v1/chat/completions", "openai"),
            ("/v1/models/{*model}", "openai"),
            ("/v1/messages/count_tokens", "anthropic"),
            ("/api/chat", "ollama"),
            ("/infill", "llama-server"),
            ("/metrics", "moeflux"),
            ("unknown", "moeflux"),
        ] {
            assert_eq!(Api::of(route).name(), api, "{route}");
        }
    }
}
