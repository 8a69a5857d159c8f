//! The description of the API, for tools and for tests.

use serde_json::{Value, json};

use crate::app::App;

/// Kept as a file: `MODEL` stands for the models' names.
const DESCRIPTION: &str = include_str!("openapi.json");

/// The description of this server.
pub(crate) fn describe(app: &App) -> Value {
    let mut value: Value = serde_json::from_str(DESCRIPTION).expect("a file of ours is JSON");
    value["info"]["version"] = Value::from(env!("CARGO_PKG_VERSION"));
    name_models(&mut value, &json!(app.options.model_names));
    value
}

fn name_models(value: &mut Value, names: &Value) {
    match value {
        Value::Array(items) if *items == [json!("MODEL")] => *value = names.clone(),
        Value::Array(items) => items.iter_mut().for_each(|it| name_models(it, names)),
        Value::Object(fields) => fields.values_mut().for_each(|it| name_models(it, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::Route;

    #[test]
    fn describes_every_route_and_no_other() {
        let value: Value = serde_json::from_str(DESCRIPTION).unwrap();
        let described: Vec<(&str, &str)> = value["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, it)| {
                it.as_object().unwrap().keys().map(|it| (path.as_str(), it.as_str()))
            })
            .collect();
        for (path, method) in &described {
            let route =
                Route::find(&path.replace("{model}", "m")).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(route.method().as_str().to_lowercase(), *method, "{path}");
            assert_eq!(route.name(), *path);
        }
        for name in Route::DESCRIBED {
            assert!(described.iter().any(|(path, _)| *path == name), "{name}");
        }
        assert_eq!(described.len(), Route::DESCRIBED.len());
    }

    #[test]
    fn names_the_models() {
        let mut value = json!({"a": [{"enum": ["MODEL"]}], "b": ["x"]});
        name_models(&mut value, &json!(["m", "n"]));
        assert_eq!(value, json!({"a": [{"enum": ["m", "n"]}], "b": ["x"]}));
    }
}
