//! What the server has done, for Prometheus.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use moeflux_engine::{Answer, Finish};

use crate::app::App;
use crate::reply::{self, Reply};
use crate::status::memory_bytes;

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// Counters of the server's own; those of the engine are asked for when needed.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Requests by their answer's status: 2xx, 4xx, 5xx.
    statuses: [AtomicU64; 3],
    refused: AtomicU64,
    failed: AtomicU64,
    /// Answers by how they ended: a stop, the length.
    finished: [AtomicU64; 2],
    first_token: Histogram,
    queued: Histogram,
}

#[derive(Debug, Default)]
struct Histogram(Mutex<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    /// Not yet added up.
    counts: [u64; BOUNDS.len()],
    n: u64,
    sum: f64,
}

impl Histogram {
    fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let mut it = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            it.counts[i] += 1;
        }
        it.n += 1;
        it.sum += seconds;
    }

    fn write(&self, out: &mut Text, name: &str, help: &str) {
        let it = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.head(name, help, "histogram");
        let mut n = 0;
        for (bound, count) in BOUNDS.iter().zip(it.counts) {
            n += count;
            out.line(&format!("{name}_bucket{{le=\"{bound}\"}}"), n as f64);
        }
        out.line(&format!("{name}_bucket{{le=\"+Inf\"}}"), it.n as f64);
        out.line(&format!("{name}_sum"), it.sum);
        out.line(&format!("{name}_count"), it.n as f64);
    }
}

impl Metrics {
    /// A request was answered with this status.
    pub(crate) fn replied(&self, status: u16) {
        let i = match status {
            0..400 => 0,
            400..500 => 1,
            _ => 2,
        };
        self.statuses[i].fetch_add(1, Ordering::Relaxed);
    }

    /// The queue was full.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A step failed.
    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// An answer has ended.
    pub(crate) fn answered(&self, answer: &Answer) {
        let i = usize::from(matches!(answer.finish, Finish::MaxTokens | Finish::ContextFull));
        self.finished[i].fetch_add(1, Ordering::Relaxed);
        self.queued.add(answer.queued);
        if let Some(time) = answer.first_token {
            self.first_token.add(time);
        }
    }
}

/// The text format of Prometheus.
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, value: f64) {
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn one(&mut self, name: &str, help: &str, kind: &str, value: f64) {
        self.head(name, help, kind);
        self.line(name, value);
    }
}

/// `/metrics`
pub(crate) fn reply(app: &App) -> Reply {
    reply::bytes(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", render(app))
}

/// All figures as text.
fn render(app: &App) -> String {
    let mut out = Text(String::new());
    let metrics = &app.metrics;
    let count = |it: &AtomicU64| it.load(Ordering::Relaxed) as f64;
    out.head("moeflux_requests_total", "Requests by status class.", "counter");
    for (class, n) in ["2xx", "4xx", "5xx"].iter().zip(&metrics.statuses) {
        out.line(&format!("moeflux_requests_total{{status=\"{class}\"}}"), count(n));
    }
    out.head("moeflux_answers_total", "Answers by how they ended.", "counter");
    for (reason, n) in ["stop", "length"].iter().zip(&metrics.finished) {
        out.line(&format!("moeflux_answers_total{{finish=\"{reason}\"}}"), count(n));
    }
    let load = app.scheduler.load();
    let store = app.engine.stats();
    let plan = app.engine.plan();
    let mut counter = |name, help, value: f64| out.one(name, help, "counter", value);
    counter(
        "moeflux_refused_total",
        "Requests that the queue had no room for.",
        count(&metrics.refused),
    );
    counter("moeflux_failed_total", "Answers that a failure ended.", count(&metrics.failed));
    counter(
        "moeflux_prompt_tokens_total",
        "Tokens of prompts that were evaluated.",
        load.n_prompt as f64,
    );
    counter(
        "moeflux_reused_tokens_total",
        "Tokens of prompts that needed no evaluation.",
        load.n_reused as f64,
    );
    counter("moeflux_generated_tokens_total", "Tokens made.", load.n_generated as f64);
    counter("moeflux_guessed_tokens_total", "Tokens guessed.", load.drafts.guessed as f64);
    counter("moeflux_right_guesses_total", "Those that came.", load.drafts.right as f64);
    counter("moeflux_steps_total", "Steps of the engine.", load.n_steps as f64);
    counter("moeflux_rows_total", "Rows of these steps.", load.n_rows as f64);
    counter("moeflux_busy_seconds_total", "Time of these steps.", load.busy.as_secs_f64());
    counter(
        "moeflux_expert_hits_total",
        "Experts that were in memory when needed.",
        store.hits as f64,
    );
    counter("moeflux_expert_misses_total", "Experts that were not.", store.misses as f64);
    counter("moeflux_expert_bytes_read_total", "Bytes of experts read.", store.bytes_read as f64);
    counter(
        "moeflux_expert_read_seconds_total",
        "Time of these reads.",
        store.read_ns as f64 / 1e9,
    );
    counter(
        "moeflux_expert_stall_seconds_total",
        "Time spent waiting for them.",
        store.stall_ns as f64 / 1e9,
    );
    let mut gauge = |name, help, value: f64| out.one(name, help, "gauge", value);
    gauge("moeflux_running", "Requests that have a session.", load.n_running as f64);
    gauge("moeflux_waiting", "Requests that wait for one.", load.n_waiting as f64);
    gauge("moeflux_sessions", "Sessions.", app.options.n_sessions as f64);
    gauge("moeflux_expert_hit_rate", "Share of experts that were in memory.", store.hit_rate());
    let n_rows = load.n_rows.max(1) as f64;
    gauge(
        "moeflux_expert_bytes_per_token",
        "Bytes of experts read for each row.",
        store.bytes_read as f64 / n_rows,
    );
    let read_seconds = (store.read_ns as f64 / 1e9).max(1e-9);
    gauge(
        "moeflux_drive_gigabytes_per_second",
        "Rate of these reads.",
        store.bytes_read as f64 / 1e9 / read_seconds,
    );
    gauge("moeflux_expert_cache_bytes", "Size of the cache of experts.", store.cache_bytes as f64);
    gauge("moeflux_planned_bytes", "Memory that was planned for.", plan.total_bytes() as f64);
    gauge(
        "moeflux_resident_bytes",
        "Memory that the process has.",
        memory_bytes().unwrap_or(0) as f64,
    );
    metrics.first_token.write(
        &mut out,
        "moeflux_first_token_seconds",
        "Time from a request's arrival to its first token.",
    );
    metrics.queued.write(
        &mut out,
        "moeflux_queue_seconds",
        "Time from a request's arrival until it had a session.",
    );
    out.0
}
