//! `/props` and `/slots`, by which clients of llama-server learn about a model and its load.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::reply::{self, Reply};
use crate::settings::Settings;

/// `/props`
pub(crate) fn props(app: &App) -> Reply {
    let token = |id| id_text(app, id);
    let calls_tools = app.text.format().syntax().is_some();
    let value = json!({
        "default_generation_settings": {
            "id": 0,
            "id_task": -1,
            "n_ctx": app.loaded.engine().plan().ctx,
            "speculative": false,
            "is_processing": false,
            "params": params(app),
            "prompt": "",
            "next_token": next_token(false),
        },
        "total_slots": app.options.n_sessions,
        "model_alias": app.model_name(),
        "model_path": app.loaded.engine().root().display().to_string(),
        "chat_template": app.text.tokenizer().chat_template_source(false).unwrap_or_default(),
        "chat_template_tool_use": app.text.tokenizer().chat_template_source(true).unwrap_or_default(),
        "chat_template_caps": {
            "supports_tools": calls_tools,
            "supports_tool_calls": calls_tools,
            "supports_parallel_tool_calls": calls_tools,
        },
        "modalities": {"vision": false, "audio": false},
        "bos_token": app.text.tokenizer().bos_id().map(token).unwrap_or_default(),
        "eos_token": app.text.tokenizer().eos_ids().first().copied().map(token).unwrap_or_default(),
        "build_info": concat!("moeflux-", env!("CARGO_PKG_VERSION")),
        "endpoint_slots": true,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "webui": true,
        "is_sleeping": false,
    });
    reply::json(StatusCode::OK, &value)
}

fn id_text(app: &App, id: moeflux_engine::TokenId) -> String {
    String::from_utf8_lossy(app.text.tokenizer().token_bytes(id)).into_owned()
}

/// The query of `/slots`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct SlotsQuery {
    fail_on_no_slot: Option<String>,
}

/// `/slots`: an entry for each session. Sessions are alike, so the first ones stand for those that
/// are at work.
pub(crate) async fn slots(
    State(app): State<Arc<App>>,
    query: Result<Query<SlotsQuery>, QueryRejection>,
) -> ApiResult<Reply> {
    let n_running = app.loaded.scheduler().stats().n_running;
    let fails = query.ok().and_then(|Query(query)| query.fail_on_no_slot);
    if fails.is_some_and(|value| value != "0") && n_running >= app.options.n_sessions {
        let message = "all sessions are at work";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    let slot = |id: usize| {
        json!({
            "id": id,
            "id_task": -1,
            "n_ctx": app.loaded.engine().plan().ctx,
            "speculative": false,
            "is_processing": id < n_running,
            "params": params(&app),
            "next_token": next_token(id < n_running),
        })
    };
    let slots: Vec<Value> = (0..app.options.n_sessions).map(slot).collect();
    Ok(reply::json(StatusCode::OK, &Value::from(slots)))
}

/// Settings of a request that names none.
fn params(app: &App) -> Value {
    let sampler = Settings::of(app).sampler;
    let max_tokens = app.options.max_tokens.map_or(json!(-1), |n| json!(n));
    json!({
        "n_predict": max_tokens,
        "max_tokens": max_tokens,
        "seed": u32::MAX,
        "temperature": sampler.temperature,
        "top_k": sampler.top_k,
        "top_p": sampler.top_p,
        "min_p": sampler.min_p,
        "repeat_penalty": sampler.repeat_penalty,
        "repeat_last_n": sampler.repeat_window.map_or(json!(-1), |n| json!(n)),
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": [],
        "ignore_eos": false,
        "stream": true,
        "n_probs": 0,
    })
}

fn next_token(is_processing: bool) -> Value {
    json!({
        "has_next_token": is_processing,
        "has_new_line": false,
        "n_remain": -1,
        "n_decoded": 0,
        "stopping_word": "",
    })
}
