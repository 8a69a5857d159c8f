//! Figures of the engine and of the server, as Prometheus reads them.

use axum::http::StatusCode;
use moeflux_core::system::resident_memory_bytes;

use crate::fleet::Figures;
use crate::reply::{self, Reply};
use crate::served::Served;
use crate::site::Site;
use prometheus_client::encoding::prometheus_text::{CONTENT_TYPE, encode};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

/// `/metrics`
pub(crate) fn reply(site: &Site) -> Reply {
    let mut text = String::new();
    for registry in [&site.common.metrics.registry, &engine_figures(site)] {
        // Writing to a string does not fail.
        let _ = encode(&mut text, registry);
    }
    reply::bytes(StatusCode::OK, CONTENT_TYPE, text)
}

/// What the engines count, now.
fn engine_figures(site: &Site) -> Registry {
    let mut registry = Registry::default();
    let figures = site.fleet.roster.figures();
    register_counts(&mut registry, &figures);
    register_levels(&mut registry, site);
    register_rates(&mut registry, &figures);
    let open = Family::<[(&str, String); 1], Gauge>::default();
    for caller in site.common.callers.all() {
        let n_open = i64::from(caller.quota.n_open());
        open.get_or_create(&[("key", caller.name.to_string())]).set(n_open);
    }
    registry.register("moeflux_key_open", "Answers of a key that are made or wait", open);
    registry
}

/// What grows, of all models since the start.
fn register_counts(registry: &mut Registry, figures: &Figures) {
    for (name, help, value) in [
        ("moeflux_prompt_tokens", "Tokens of prompts that were evaluated", figures.n_prompt),
        ("moeflux_reused_tokens", "Tokens of prompts that needed no evaluation", figures.n_reused),
        ("moeflux_generated_tokens", "Tokens generated", figures.n_generated),
        ("moeflux_draft_tokens", "Tokens drafted", figures.n_drafted),
        ("moeflux_accepted_tokens", "Drafted tokens that were accepted", figures.n_accepted),
        ("moeflux_steps", "Steps of the engine", figures.n_steps),
        ("moeflux_rows", "Rows of these steps", figures.n_rows),
        ("moeflux_expert_hits", "Experts that were in memory when needed", figures.hits),
        ("moeflux_expert_misses", "Experts that were not", figures.misses),
        ("moeflux_expert_bytes_read", "Bytes of experts read", figures.bytes_read),
        ("moeflux_table_rows", "Rows of tables that tokens needed", figures.table_rows),
        ("moeflux_table_row_hits", "Those that were in memory when needed", figures.table_hits),
        ("moeflux_table_rows_read", "Rows of tables read", figures.table_rows_read),
        ("moeflux_table_reads", "Reads of these rows", figures.table_reads),
        ("moeflux_table_bytes_read", "Bytes of these reads", figures.table_bytes),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    for (name, help, time) in [
        ("moeflux_busy_seconds", "Time of the engine's steps", figures.busy),
        ("moeflux_expert_read_seconds", "Time of the reads of experts", figures.read_time),
        ("moeflux_expert_stall_seconds", "Time spent waiting for experts", figures.stall_time),
        (
            "moeflux_table_stall_seconds",
            "Time spent waiting for rows of tables",
            figures.table_stall,
        ),
    ] {
        registry.register(name, help, ConstCounter::new(time.as_secs_f64()));
    }
}

/// What goes up and down: of the models that are loaded.
fn register_levels(registry: &mut Registry, site: &Site) {
    let loaded = site.fleet.roster.loaded();
    let sum = |of: fn(&Served) -> u64| loaded.iter().map(|loaded| of(&loaded.served)).sum();
    let stats = |served: &Served| served.loaded.scheduler().stats();
    for (name, help, value) in [
        ("moeflux_models_loaded", "Models that are loaded", loaded.len() as u64),
        (
            "moeflux_models_waiting",
            "Requests that wait for a model to be loaded",
            site.fleet.roster.n_waiting() as u64,
        ),
        (
            "moeflux_running",
            "Requests that have a session",
            loaded.iter().map(|loaded| stats(&loaded.served).n_running as u64).sum(),
        ),
        (
            "moeflux_waiting",
            "Requests that wait for a session",
            loaded.iter().map(|loaded| stats(&loaded.served).n_waiting as u64).sum(),
        ),
        ("moeflux_sessions", "Sessions", sum(|served| served.n_sessions as u64)),
        (
            "moeflux_expert_cache_bytes",
            "Size of the cache of experts",
            sum(|served| served.loaded.engine().stats().cache_bytes),
        ),
        (
            "moeflux_planned_bytes",
            "Memory that was planned for",
            sum(|served| served.loaded.engine().plan().total_bytes()),
        ),
        (
            "moeflux_resident_bytes",
            "Resident memory of the process",
            resident_memory_bytes().unwrap_or(0),
        ),
    ] {
        registry.register(name, help, ConstGauge::new(value));
    }
}

/// Averages since the start.
fn register_rates(registry: &mut Registry, figures: &Figures) {
    let bytes_read = figures.bytes_read as f64;
    for (name, help, value) in [
        ("moeflux_expert_hit_rate", "Share of experts that were in memory", figures.hit_rate()),
        (
            "moeflux_expert_bytes_per_token",
            "Bytes of experts read for each row",
            bytes_read / figures.n_rows.max(1) as f64,
        ),
        (
            "moeflux_drive_gigabytes_per_second",
            "Rate of the reads of experts",
            bytes_read / 1e9 / figures.read_time.as_secs_f64().max(1e-9),
        ),
    ] {
        registry.register(name, help, ConstGauge::new(value));
    }
}
