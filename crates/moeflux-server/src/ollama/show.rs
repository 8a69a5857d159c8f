//! `/api/show`: what is known of the model.

use std::fmt::Write;
use std::sync::Arc;

use axum::http::StatusCode;
use moeflux::Sampling;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::models::{Details, capabilities, details, modified_at};
use super::names;

use crate::app::App;
use crate::error::ApiResult;
use crate::model::Model;
use crate::reply::{self, Reply};
use crate::request::{Body, Request, object, read};

/// A request for what is known of a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ShowRequest {
    /// The model's name.
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
}

/// What is known of a model.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    modelfile: String,
    parameters: String,
    template: &'a str,
    details: Details<'a>,
    model_info: Map<String, Value>,
    capabilities: Vec<&'static str>,
    modified_at: String,
}

object!(ShowRequest);

impl Body for ShowRequest {
    const HINTS: &'static [&'static [&'static str]] =
        &[&["verbose", "system", "template", "options"]];
}

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = read::<ShowRequest>(body)?;
    let name = body.model.filter(|name| !name.is_empty()).or(body.name).unwrap_or_default();
    names::check(&app, &name)?;
    let has_tools = app.text.format().syntax().is_some();
    let template = app.text.tokenizer().chat_template_source(has_tools).unwrap_or_default();
    let shown = Shown {
        modelfile: format!("# A model that moeflux serves.\nFROM {}\n", app.model_name()),
        parameters: parameters(&app),
        template,
        details: details(&app),
        model_info: model_info(&app),
        capabilities: capabilities(&app),
        modified_at: modified_at(&app),
    };
    Ok(ignored.accept(&app)?.mark(reply::json(StatusCode::OK, &shown)))
}

/// How answers are made where a request does not say it: a line for each option.
fn parameters(model: &Model) -> String {
    let defaults = model.text.tokenizer().generation_defaults();
    let Sampling { temperature, top_p, min_p, repeat_penalty, top_k, .. } =
        Sampling::recommended(defaults);
    // Where nothing is named all of what is usual applies.
    let is_usual = !defaults.names_sampling();
    let numbers = [
        (
            "temperature",
            temperature,
            is_usual || temperature == 0.0 || defaults.temperature.is_some(),
        ),
        ("top_p", top_p, is_usual || defaults.top_p.is_some()),
        ("min_p", min_p, is_usual || defaults.min_p.is_some()),
        ("repeat_penalty", repeat_penalty, defaults.repetition_penalty.is_some()),
    ];
    let mut text = String::new();
    for (name, number, is_shown) in numbers {
        if is_shown {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<30} {number}");
        }
    }
    if is_usual || defaults.top_k.is_some() {
        let _ = writeln!(text, "{:<30} {top_k}", "top_k");
    }
    let _ = write!(text, "{:<30} {}", "num_ctx", model.text.ctx());
    text
}

/// Figures by the names that GGUF files have for them. The context is the one that the server
/// planned: what clients may use.
fn model_info(app: &App) -> Map<String, Value> {
    let (family, shape) = (app.loaded.engine().family(), app.loaded.engine().shape());
    let mut info = Map::new();
    info.insert("general.architecture".into(), family.into());
    info.insert("general.basename".into(), app.model_name().into());
    for (name, number) in [
        ("context_length", app.loaded.engine().plan().ctx),
        ("embedding_length", shape.hidden),
        ("block_count", shape.n_layers),
        ("expert_count", shape.n_experts),
        ("expert_used_count", shape.top_k),
        ("vocab_size", shape.vocab),
    ] {
        info.insert(format!("{family}.{name}"), number.into());
    }
    info
}
