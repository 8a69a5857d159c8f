//! The model as Ollama lists it.

use axum::http::StatusCode;
use chrono::{DateTime, Days, SecondsFormat, Utc};
use serde_json::{Value, json};

use super::names::tagged;
use crate::app::App;
use crate::reply::{self, Reply};

/// The version of Ollama whose API this is. Clients compare it with the oldest that they work with,
/// and some read nothing but three numbers.
const VERSION: &str = "0.32.0";

/// Days until a model that stays loaded is unloaded.
const FOREVER: Days = Days::new(36_500);

/// `/api/version`
pub(crate) fn version() -> Reply {
    reply::json(StatusCode::OK, &json!({"version": VERSION}))
}

/// `/api/tags`: an entry for every name.
pub(crate) fn tags(app: &App) -> Reply {
    let models: Vec<Value> = app.facts.names.iter().map(|name| entry(app, name)).collect();
    reply::json(StatusCode::OK, &json!({"models": models}))
}

/// `/api/ps`
pub(crate) fn running(app: &App) -> Reply {
    let mut model = entry(app, app.model_name());
    let until = Utc::now().checked_add_days(FOREVER).unwrap_or(DateTime::<Utc>::MAX_UTC);
    model["expires_at"] = Value::from(until.to_rfc3339_opts(SecondsFormat::Secs, true));
    let plan = app.loaded.engine().plan();
    model["size"] = Value::from(plan.total_bytes());
    model["size_vram"] = Value::from(plan.device_expert_bytes.unwrap_or(0));
    model["context_length"] = Value::from(plan.ctx);
    reply::json(StatusCode::OK, &json!({"models": [model]}))
}

fn entry(app: &App, name: &str) -> Value {
    let plan = app.loaded.engine().plan();
    json!({
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": modified_at(app),
        "size": plan.resident_bytes + plan.expert_bytes,
        "digest": app.loaded.engine().identity(),
        "details": details(app),
        "capabilities": capabilities(app),
    })
}

/// When the server started: files may be older.
pub(super) fn modified_at(app: &App) -> String {
    let seconds = i64::try_from(app.created).unwrap_or_default();
    DateTime::from_timestamp(seconds, 0)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Secs, true)
}

pub(super) fn details(app: &App) -> Value {
    let family = app.loaded.engine().family();
    json!({
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": "",
        "context_length": app.loaded.engine().plan().ctx,
        "embedding_length": app.loaded.engine().shape().hidden,
    })
}

/// What the model can do.
pub(super) fn capabilities(app: &App) -> Vec<&'static str> {
    let tools = app.text.format().syntax().map(|_| "tools");
    let thinking = app.text.format().can_think().then_some("thinking");
    ["completion"].into_iter().chain(tools).chain(thinking).collect()
}
