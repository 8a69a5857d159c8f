//! The model as Ollama lists it.

use axum::http::StatusCode;
use chrono::{DateTime, Days, SecondsFormat, Utc};
use serde::Serialize;

use super::names::tagged;
use crate::app::App;
use crate::reply::{self, Reply};

/// The version of Ollama whose API this is. Clients compare it with the oldest that they work with,
/// and some read nothing but three numbers.
const VERSION: &str = "0.32.0";

/// Days until a model that stays loaded is unloaded.
const FOREVER: Days = Days::new(36_500);

/// A version.
#[derive(Debug, Serialize)]
struct Version {
    version: &'static str,
}

/// A list of models.
#[derive(Debug, Serialize)]
struct Models<'a> {
    models: Vec<Entry<'a>>,
}

#[derive(Debug, Serialize)]
struct Entry<'a> {
    name: String,
    model: String,
    modified_at: String,
    size: u64,
    digest: &'a str,
    details: Details<'a>,
    capabilities: Vec<&'static str>,
    #[serde(flatten)]
    running: Option<Running>,
}

/// What is known of a model that runs.
#[derive(Debug, Serialize)]
struct Running {
    expires_at: String,
    size_vram: u64,
    context_length: usize,
}

/// What a model is.
#[derive(Debug, Serialize)]
pub(super) struct Details<'a> {
    parent_model: &'static str,
    format: &'static str,
    family: &'a str,
    families: [&'a str; 1],
    parameter_size: &'static str,
    quantization_level: &'static str,
    context_length: usize,
    embedding_length: usize,
}

/// `/api/version`
pub(crate) fn version() -> Reply {
    reply::json(StatusCode::OK, &Version { version: VERSION })
}

/// `/api/tags`: an entry for every name.
pub(crate) fn tags(app: &App) -> Reply {
    let models = app.facts.names.iter().map(|name| entry(app, name)).collect();
    reply::json(StatusCode::OK, &Models { models })
}

/// `/api/ps`
pub(crate) fn running(app: &App) -> Reply {
    let until = Utc::now().checked_add_days(FOREVER).unwrap_or(DateTime::<Utc>::MAX_UTC);
    let plan = app.loaded.engine().plan();
    let running = Running {
        expires_at: until.to_rfc3339_opts(SecondsFormat::Secs, true),
        size_vram: plan.device_expert_bytes.unwrap_or(0),
        context_length: plan.ctx,
    };
    let entry = entry(app, app.model_name());
    let entry = Entry { size: plan.total_bytes(), running: Some(running), ..entry };
    reply::json(StatusCode::OK, &Models { models: vec![entry] })
}

fn entry<'a>(app: &'a App, name: &str) -> Entry<'a> {
    let plan = app.loaded.engine().plan();
    Entry {
        name: tagged(name),
        model: tagged(name),
        modified_at: modified_at(app),
        size: plan.resident_bytes + plan.expert_bytes,
        digest: app.loaded.engine().identity(),
        details: details(app),
        capabilities: capabilities(app),
        running: None,
    }
}

/// When the server started: files may be older.
pub(super) fn modified_at(app: &App) -> String {
    let seconds = i64::try_from(app.created).unwrap_or_default();
    DateTime::from_timestamp(seconds, 0)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Secs, true)
}

pub(super) fn details(app: &App) -> Details<'_> {
    let family = app.loaded.engine().family();
    Details {
        parent_model: "",
        format: "safetensors",
        family,
        families: [family],
        parameter_size: "",
        quantization_level: "",
        context_length: app.loaded.engine().plan().ctx,
        embedding_length: app.loaded.engine().shape().hidden,
    }
}

/// What the model can do.
pub(super) fn capabilities(app: &App) -> Vec<&'static str> {
    let tools = app.text.format().syntax().map(|_| "tools");
    let thinking = app.text.format().can_think().then_some("thinking");
    let insert = app.text.can_infill().then_some("insert");
    ["completion"].into_iter().chain(tools).chain(thinking).chain(insert).collect()
}
