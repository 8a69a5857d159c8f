//! The models as Ollama lists them.

use axum::http::StatusCode;
use chrono::{DateTime, Days, SecondsFormat, TimeDelta, Utc};
use moeflux_core::hex;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::names::tagged;
use crate::fleet::{About, Fleet, Loaded};
use crate::library::LibraryModel;
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
struct Models {
    models: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    model: String,
    modified_at: String,
    size: u64,
    digest: String,
    details: Details,
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

/// What a model is. Figures of a model that was never loaded are 0.
#[derive(Debug, Default, Serialize)]
pub(super) struct Details {
    parent_model: &'static str,
    format: &'static str,
    family: &'static str,
    families: Vec<&'static str>,
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
pub(crate) fn tags(fleet: &Fleet) -> Reply {
    let models = fleet.catalog.models();
    let named = models.iter().flat_map(|model| model.names.iter().map(move |name| (model, name)));
    let models = named.map(|(model, name)| entry(fleet, model, name)).collect();
    reply::json(StatusCode::OK, &Models { models })
}

/// `/api/ps`
pub(crate) fn running(fleet: &Fleet) -> Reply {
    let entry = |loaded: Loaded| {
        let name = loaded.served.model_name();
        let plan = loaded.served.loaded.engine().plan();
        let model = fleet.catalog.listed(name);
        let running = Running {
            expires_at: expires_at(&loaded),
            size_vram: plan.device_expert_bytes.unwrap_or(0),
            context_length: plan.ctx,
        };
        Entry { size: plan.total_bytes(), running: Some(running), ..entry(fleet, &model, name) }
    };
    let models = fleet.roster.loaded().into_iter().map(entry).collect();
    reply::json(StatusCode::OK, &Models { models })
}

/// When a model is unloaded if no request comes.
fn expires_at(loaded: &Loaded) -> String {
    let now = Utc::now();
    let forever = now.checked_add_days(FOREVER).unwrap_or(DateTime::<Utc>::MAX_UTC);
    let after = loaded.expires_in.and_then(|time| TimeDelta::from_std(time).ok());
    let until = after.and_then(|time| now.checked_add_signed(time)).unwrap_or(forever);
    until.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn entry(fleet: &Fleet, model: &LibraryModel, name: &str) -> Entry {
    let about = fleet.catalog.known(model.name());
    let about = about.as_deref();
    Entry {
        name: tagged(name),
        model: tagged(name),
        modified_at: modified_at(fleet, model),
        size: model.bytes,
        digest: digest(model),
        details: about.map(details).unwrap_or_default(),
        capabilities: about.map_or_else(|| vec!["completion"], About::capabilities),
        running: None,
    }
}

/// Tells a model's files from others, as far as this is known without reading them.
fn digest(model: &LibraryModel) -> String {
    let mut hash = Sha256::new();
    hash.update(model.name());
    hash.update(model.bytes.to_le_bytes());
    hex(&hash.finalize())
}

/// When a model's files were changed; where this is not known, when the server started.
pub(super) fn modified_at(fleet: &Fleet, model: &LibraryModel) -> String {
    let seconds = model.modified_at().unwrap_or(fleet.common.created);
    let seconds = i64::try_from(seconds).unwrap_or_default();
    DateTime::from_timestamp(seconds, 0)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Secs, true)
}

pub(super) fn details(about: &About) -> Details {
    Details {
        parent_model: "",
        format: "safetensors",
        family: about.family,
        families: vec![about.family],
        parameter_size: "",
        quantization_level: "",
        context_length: about.ctx,
        embedding_length: about.shape.hidden,
    }
}
