//! `/v1/models`.

use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiResult;

fn model(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "moeflux",
        // Anthropic's clients read the same list.
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "context_length": app.engine.plan().ctx,
    })
}

pub(crate) fn list(app: &App) -> Value {
    let names = &app.options.model_names;
    let data: Vec<Value> = names.iter().map(|it| model(app, it)).collect();
    json!({
        "object": "list",
        "data": data,
        "has_more": false,
        "first_id": names.first(),
        "last_id": names.last(),
    })
}

pub(crate) fn one(app: &App, name: &str) -> ApiResult<Value> {
    app.check_model(name)?;
    Ok(model(app, name))
}
