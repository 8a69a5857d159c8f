//! `/metrics`: figures in the text format of Prometheus.

use std::time::Duration;

use moeflux_engine::{Answer, Finish};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// Counters with one label.
type Labelled = Family<[(&'static str, &'static str); 1], Counter>;

/// Counters of the server's own. Those of the engine are read when they are asked for.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
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
