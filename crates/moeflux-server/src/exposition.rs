//! Figures of the engine and of the server, as Prometheus reads them.

use axum::http::StatusCode;
use moeflux_core::system::resident_memory_bytes;

use crate::app::App;
use crate::reply::{self, Reply};
use prometheus_client::encoding::prometheus_text::{CONTENT_TYPE, encode};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

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
    let load = app.loaded.scheduler().stats();
    let store = app.loaded.engine().stats();
    let rows = app.loaded.engine().row_stats().unwrap_or_default();
    let read_seconds = store.read_ns as f64 / 1e9;
    let mut registry = Registry::default();
    for (name, help, value) in [
        ("moeflux_prompt_tokens", "Tokens of prompts that were evaluated", load.n_prompt),
        ("moeflux_reused_tokens", "Tokens of prompts that needed no evaluation", load.n_reused),
        ("moeflux_generated_tokens", "Tokens generated", load.n_generated),
        ("moeflux_draft_tokens", "Tokens drafted", load.speculation.drafted),
        ("moeflux_accepted_tokens", "Drafted tokens that were accepted", load.speculation.accepted),
        ("moeflux_steps", "Steps of the engine", load.n_steps),
        ("moeflux_rows", "Rows of these steps", load.n_rows),
        ("moeflux_expert_hits", "Experts that were in memory when needed", store.hits),
        ("moeflux_expert_misses", "Experts that were not", store.misses),
        ("moeflux_expert_bytes_read", "Bytes of experts read", store.bytes_read),
        ("moeflux_table_rows", "Rows of tables that tokens needed", rows.rows),
        ("moeflux_table_row_hits", "Those that were in memory when needed", rows.ready),
        ("moeflux_table_rows_read", "Rows of tables read", rows.rows_read),
        ("moeflux_table_reads", "Reads of these rows", rows.reads),
        ("moeflux_table_bytes_read", "Bytes of these reads", rows.bytes_read),
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
        (
            "moeflux_table_stall_seconds",
            "Time spent waiting for rows of tables",
            rows.stall_ns as f64 / 1e9,
        ),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    for (name, help, value) in [
        ("moeflux_running", "Requests that have a session", load.n_running as u64),
        ("moeflux_waiting", "Requests that wait for a session", load.n_waiting as u64),
        ("moeflux_sessions", "Sessions", app.options.n_sessions as u64),
        ("moeflux_expert_cache_bytes", "Size of the cache of experts", store.cache_bytes),
        (
            "moeflux_planned_bytes",
            "Memory that was planned for",
            app.loaded.engine().plan().total_bytes(),
        ),
        (
            "moeflux_resident_bytes",
            "Resident memory of the process",
            resident_memory_bytes().unwrap_or(0),
        ),
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
    let open = Family::<[(&str, String); 1], Gauge>::default();
    for caller in app.callers.all() {
        let n_open = i64::from(caller.quota.n_open());
        open.get_or_create(&[("key", caller.name.to_string())]).set(n_open);
    }
    registry.register("moeflux_key_open", "Answers of a key that are made or wait", open);
    registry
}
