//! `/api/show`: what is known of a model.

use std::fmt::Write;
use std::sync::Arc;

use axum::http::StatusCode;
use moeflux::Sampling;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::models::{Details, details, modified_at};
use super::names;

use crate::error::ApiResult;
use crate::fleet::About;
use crate::reply::{self, Reply};
use crate::request::{Body, Request, object, read};
use crate::site::Site;

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
    details: Details,
    model_info: Map<String, Value>,
    capabilities: Vec<&'static str>,
    modified_at: String,
}

object!(ShowRequest);

impl Body for ShowRequest {
    const HINTS: &'static [&'static [&'static str]] =
        &[&["verbose", "system", "template", "options"]];
}

pub(crate) async fn handle(site: Arc<Site>, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = read::<ShowRequest>(body)?;
    let asked = body.model.filter(|name| !name.is_empty()).or(body.name).unwrap_or_default();
    names::check_given(&asked)?;
    let found = site.fleet.model(&asked)?;
    let ignored = ignored.accept_by(&site.common.journal)?;
    let name = found.name();
    let about = site.fleet.catalog.about(name).await?;
    let shown = Shown {
        modelfile: format!("# A model that moeflux serves.\nFROM {name}\n"),
        parameters: parameters(&about),
        template: &about.template,
        details: details(&about),
        model_info: model_info(&about, name),
        capabilities: about.capabilities(),
        modified_at: modified_at(&site.fleet, &found),
    };
    Ok(ignored.mark(reply::json(StatusCode::OK, &shown)))
}

/// How answers are made where a request does not say it: a line for each option.
fn parameters(about: &About) -> String {
    let defaults = &about.defaults;
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
    let _ = write!(text, "{:<30} {}", "num_ctx", about.ctx);
    text
}

/// Figures by the names that GGUF files have for them. The context is the one that the server
/// planned: what clients may use.
fn model_info(about: &About, name: &str) -> Map<String, Value> {
    let (family, shape) = (about.family, &about.shape);
    let mut info = Map::new();
    info.insert("general.architecture".into(), family.into());
    info.insert("general.basename".into(), name.into());
    for (name, number) in [
        ("context_length", about.ctx),
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
