//! `/metrics`: figures in the text format of Prometheus.

use std::time::Duration;

use axum::http::StatusCode;
use moeflux_engine::{Answer, Finish};
use prometheus_client::encoding::prometheus_text::{CONTENT_TYPE, encode};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::app::App;
use crate::reply::{self, Reply};
use crate::status::memory_bytes;

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// Counters with one label.
type Labelled = Family<[(&'static str, &'static str); 1], Counter>;

/// Counters of the server's own. Those of the engine are read when they are asked for.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Labelled,
    answers: Labelled,
    refused: Counter,
    failed: Counter,
    first_token: Histogram,
    queued: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let metrics = Metrics {
            registry: Registry::default(),
            requests: Labelled::default(),
            answers: Labelled::default(),
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
        metrics.registered()
    }

    fn registered(mut self) -> Metrics {
        let registry = &mut self.registry;
        let requests = self.requests.clone();
        registry.register("moeflux_requests", "Requests by status class", requests);
        let answers = self.answers.clone();
        registry.register("moeflux_answers", "Answers by how they ended", answers);
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
        let class = match status {
            0..400 => "2xx",
            400..500 => "4xx",
            _ => "5xx",
        };
        self.requests.get_or_create(&[("status", class)]).inc();
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

/// `/metrics`
pub(crate) fn reply(app: &App) -> Reply {
    let mut text = String::new();
    for registry in [&app.metrics.registry, &engine_figures(app)] {
        // Writing to a string does not fail.
        let _ = encode(&mut text, registry);
    }
    reply::bytes(StatusCode::OK, CONTENT_TYPE, text)
}

/// What the engine counts, now.
fn engine_figures(app: &App) -> Registry {
    let load = app.scheduler.load();
    let store = app.engine.stats();
    let read_seconds = store.read_ns as f64 / 1e9;
    let mut registry = Registry::default();
    for (name, help, value) in [
        ("moeflux_prompt_tokens", "Tokens of prompts that were evaluated", load.n_prompt),
        ("moeflux_reused_tokens", "Tokens of prompts that needed no evaluation", load.n_reused),
        ("moeflux_generated_tokens", "Tokens generated", load.n_generated),
        ("moeflux_guessed_tokens", "Tokens drafted", load.drafts.guessed),
        ("moeflux_right_guesses", "Drafted tokens that were accepted", load.drafts.right),
        ("moeflux_steps", "Steps of the engine", load.n_steps),
        ("moeflux_rows", "Rows of these steps", load.n_rows),
        ("moeflux_expert_hits", "Experts that were in memory when needed", store.hits),
        ("moeflux_expert_misses", "Experts that were not", store.misses),
        ("moeflux_expert_bytes_read", "Bytes of experts read", store.bytes_read),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    for (name, help, value) in [
        ("moeflux_busy_seconds", "Time of the engine's steps", load.busy.as_secs_f64()),
        ("moeflux_expert_read_seconds", "Time of the reads of experts", read_seconds),
        (
            "moeflux_expert_stall_seconds",
            "Time spent waiting for experts",
            store.stall_ns as f64 / 1e9,
        ),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    for (name, help, value) in [
        ("moeflux_running", "Requests that have a session", load.n_running as u64),
        ("moeflux_waiting", "Requests that wait for a session", load.n_waiting as u64),
        ("moeflux_sessions", "Sessions", app.options.n_sessions as u64),
        ("moeflux_expert_cache_bytes", "Size of the cache of experts", store.cache_bytes),
        ("moeflux_planned_bytes", "Memory that was planned for", app.engine.plan().total_bytes()),
        ("moeflux_resident_bytes", "Resident memory of the process", memory_bytes().unwrap_or(0)),
    ] {
        registry.register(name, help, ConstGauge::new(value));
    }
    for (name, help, value) in [
        ("moeflux_expert_hit_rate", "Share of experts that were in memory", store.hit_rate()),
        (
            "moeflux_expert_bytes_per_token",
            "Bytes of experts read for each row",
            store.bytes_read as f64 / load.n_rows.max(1) as f64,
        ),
        (
            "moeflux_drive_gigabytes_per_second",
            "Rate of the reads of experts",
            store.bytes_read as f64 / 1e9 / read_seconds.max(1e-9),
        ),
    ] {
        registry.register(name, help, ConstGauge::new(value));
    }
    registry
}
