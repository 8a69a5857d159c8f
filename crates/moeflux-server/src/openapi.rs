//! The description of the API, for tools and for tests.

use serde_json::{Value, json};

use crate::app::App;

/// Kept as a file: `MODEL` stands for the models' names, `LAST_TOKEN` for the largest id of a token.
const DESCRIPTION: &str = include_str!("openapi.json");

/// The description of this server.
pub(crate) fn describe(app: &App) -> Value {
    let mut value: Value = serde_json::from_str(DESCRIPTION).expect("a file of ours is JSON");
    value["info"]["version"] = Value::from(env!("CARGO_PKG_VERSION"));
    let last = app.engine.shape().vocab.saturating_sub(1);
    fill_in(&mut value, &json!(app.options.model_names), &json!(last));
    if !app.format.can_think() {
        leave_thinking_out(&mut value["components"]["schemas"]);
    }
    // A prompt can be looked at without naming the model.
    let schemas = &mut value["components"]["schemas"];
    schemas["TemplateRequest"] = schemas["ChatRequest"].clone();
    schemas["TemplateRequest"]["required"] = json!(["messages"]);
    value
}

fn fill_in(value: &mut Value, names: &Value, last_token: &Value) {
    match value {
        Value::Array(items) if *items == [json!("MODEL")] => *value = names.clone(),
        Value::String(text) if text == "LAST_TOKEN" => *value = last_token.clone(),
        Value::Array(items) => items.iter_mut().for_each(|it| fill_in(it, names, last_token)),
        Value::Object(fields) => {
            fields.values_mut().for_each(|it| fill_in(it, names, last_token));
        }
        _ => {}
    }
}

/// Describes what may be asked of a model that does not think.
fn leave_thinking_out(schemas: &mut Value) {
    let none = json!(["none", null]);
    schemas["ChatRequest"]["properties"]["reasoning_effort"]["enum"] = none.clone();
    schemas["ResponseRequest"]["properties"]["reasoning"]["properties"]["effort"]["enum"] = none;
    for name in ["MessageRequest", "CountRequest"] {
        schemas[name]["properties"]["thinking"] = json!({
            "type": ["object", "null"],
            "properties": {"type": {"enum": ["disabled"]}},
            "required": ["type"],
            "additionalProperties": false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes;

    #[test]
    fn describes_every_route_and_no_other() {
        let value: Value = serde_json::from_str(DESCRIPTION).unwrap();
        let mut described: Vec<&str> =
            value["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let routes = routes::described();
        let mut paths: Vec<String> =
            routes.iter().map(|(path, _)| path.replace("{*", "{")).collect();
        described.sort_unstable();
        paths.sort_unstable();
        assert_eq!(described, paths);
    }

    #[test]
    fn says_what_the_file_leaves_open() {
        let mut value = json!({"a": [{"enum": ["MODEL"]}], "b": ["x"], "maximum": "LAST_TOKEN"});
        fill_in(&mut value, &json!(["m", "n"]), &json!(9));
        assert_eq!(value, json!({"a": [{"enum": ["m", "n"]}], "b": ["x"], "maximum": 9}));
    }

    #[test]
    fn fields_about_thinking_are_where_they_are_left_out() {
        let whole: Value = serde_json::from_str(DESCRIPTION).unwrap();
        let whole = &whole["components"]["schemas"];
        let mut without = whole.clone();
        leave_thinking_out(&mut without);
        for path in [
            "/ChatRequest/properties/reasoning_effort",
            "/ResponseRequest/properties/reasoning/properties/effort",
            "/MessageRequest/properties/thinking",
            "/CountRequest/properties/thinking",
        ] {
            assert!(whole.pointer(path).is_some(), "{path}");
            assert_ne!(whole.pointer(path), without.pointer(path), "{path}");
        }
    }
}
