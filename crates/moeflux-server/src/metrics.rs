//! `/metrics`: figures in the text format of Prometheus.

use std::sync::Arc;
use std::time::Duration;

use moeflux_engine::{Answer, Finish};

use crate::limits::Limit;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// Counters with one label.
type Labelled = Family<[(&'static str, &'static str); 1], Counter>;

/// What is counted by model, API and key. All three are the server's own words: clients add none.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Labels {
    pub(crate) model: String,
    pub(crate) api: &'static str,
    /// Empty without a key.
    pub(crate) key: String,
}

impl Labels {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let (model, api, key) = (self.model.clone(), self.api.to_owned(), self.key.clone());
        vec![("model", model), ("api", api), ("key", key)]
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) n_prompt: usize,
    pub(crate) n_reused: usize,
    pub(crate) n_generated: usize,
}

/// Counters with several labels.
type ByLabels = Family<Vec<(&'static str, String)>, Counter>;

/// Counters of the server's own. Those of the engine are read when they are asked for.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    requests: Labelled,
    answers: Labelled,
    key_requests: ByLabels,
    key_prompt: ByLabels,
    key_cached: ByLabels,
    key_generated: ByLabels,
    limited: ByLabels,
    seconds: Family<Vec<(&'static str, String)>, Histogram>,
    refused: Counter,
    failed: Counter,
    first_token: Histogram,
    queued: Histogram,
}

impl Metrics {
    pub(crate) fn new(keys: &[Arc<str>]) -> Metrics {
        let metrics = Metrics {
            registry: Registry::default(),
            requests: Labelled::default(),
            answers: Labelled::default(),
            key_requests: ByLabels::default(),
            key_prompt: ByLabels::default(),
            key_cached: ByLabels::default(),
            key_generated: ByLabels::default(),
            limited: ByLabels::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
            refused: Counter::default(),
            failed: Counter::default(),
            first_token: Histogram::new(BOUNDS),
            queued: Histogram::new(BOUNDS),
        };
        // Series that are there from the beginning show the first increase.
        for class in ["2xx", "4xx", "5xx"] {
            drop(metrics.requests.get_or_create(&[("status", class)]));
        }
        for reason in ["stop", "length"] {
            drop(metrics.answers.get_or_create(&[("finish", reason)]));
        }
        for key in keys {
            for limit in Limit::ALL {
                drop(metrics.limited.get_or_create(&of_limit(key, limit.name())));
            }
        }
        metrics.registered()
    }

    fn registered(mut self) -> Metrics {
        let registry = &mut self.registry;
        let requests = self.requests.clone();
        registry.register("moeflux_requests", "Requests by status class", requests);
        let answers = self.answers.clone();
        registry.register("moeflux_answers", "Answers by how they ended", answers);
        for (name, help, family) in [
            ("moeflux_key_requests", "Requests by model, API, key and status", &self.key_requests),
            (
                "moeflux_key_prompt_tokens",
                "Tokens of prompts by model, API and key",
                &self.key_prompt,
            ),
            ("moeflux_key_cached_tokens", "Those that needed no evaluation", &self.key_cached),
            (
                "moeflux_key_generated_tokens",
                "Tokens of answers by model, API and key",
                &self.key_generated,
            ),
            ("moeflux_key_limited", "Requests that a limit of their key refused", &self.limited),
        ] {
            registry.register(name, help, family.clone());
        }
        let help = "Time of requests for answers to the end of their replies";
        registry.register("moeflux_request_seconds", help, self.seconds.clone());
        let help = "Requests that the queue had no room for";
        registry.register("moeflux_refused", help, self.refused.clone());
        registry.register("moeflux_failed", "Answers that a failure ended", self.failed.clone());
        let help = "Time from a request's arrival to its first token";
        registry.register("moeflux_first_token_seconds", help, self.first_token.clone());
        let help = "Time from a request's arrival until it had a session";
        registry.register("moeflux_queue_seconds", help, self.queued.clone());
        self
    }

    /// Counts a reply by its status.
    pub(crate) fn replied(&self, status: u16) {
        self.requests.get_or_create(&[("status", class(status))]).inc();
    }

    /// Counts a request whose reply has ended.
    pub(crate) fn ended(&self, labels: &Labels, status: u16) {
        let mut pairs = labels.pairs();
        pairs.push(("status", class(status).to_owned()));
        self.key_requests.get_or_create(&pairs).inc();
    }

    /// Counts the tokens of a request.
    pub(crate) fn used(&self, labels: &Labels, used: Used) {
        let pairs = labels.pairs();
        for (family, n) in [
            (&self.key_prompt, used.n_prompt),
            (&self.key_cached, used.n_reused),
            (&self.key_generated, used.n_generated),
        ] {
            family.get_or_create(&pairs).inc_by(n as u64);
        }
    }

    /// Observes how long a request for answers took. Keys are no label of it: it has many series.
    pub(crate) fn lasted(&self, labels: &Labels, time: Duration) {
        let mut pairs = labels.pairs();
        pairs.retain(|(name, _)| *name != "key");
        self.seconds.get_or_create(&pairs).observe(time.as_secs_f64());
    }

    /// Counts a request that a limit of its key refused.
    pub(crate) fn limited(&self, key: &str, limit: &str) {
        self.limited.get_or_create(&of_limit(key, limit)).inc();
    }

    /// Counts a request that found the queue full.
    pub(crate) fn refused(&self) {
        self.refused.inc();
    }

    /// Counts an answer that a failure ended.
    pub(crate) fn failed(&self) {
        self.failed.inc();
    }

    /// Counts an answer that has ended, and observes its times.
    pub(crate) fn answered(&self, answer: &Answer) {
        let reason = match answer.finish {
            Finish::MaxTokens | Finish::ContextFull => "length",
            _ => "stop",
        };
        self.answers.get_or_create(&[("finish", reason)]).inc();
        let observe = |histogram: &Histogram, time: Duration| histogram.observe(time.as_secs_f64());
        observe(&self.queued, answer.queued);
        if let Some(time) = answer.first_token {
            observe(&self.first_token, time);
        }
    }
}

fn class(status: u16) -> &'static str {
    match status {
        0..400 => "2xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}

fn of_limit(key: &str, limit: &str) -> Vec<(&'static str, String)> {
    vec![("key", key.to_owned()), ("limit", limit.to_owned())]
}
