//! The description of the API (OpenAPI 3.1), made of the types that requests are read into and
//! that answers are written from.

mod operations;

use moeflux_core::OptionId;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::request::schema::ANY_TOKEN;
use crate::site::Site;
use operations::{OPERATIONS, Operation};

/// The description of this server.
pub(crate) fn describe(site: &Site) -> Value {
    let mut value = description();
    let loaded = site.fleet.roster.loaded();
    let vocab = loaded.iter().map(|loaded| loaded.served.loaded.engine().shape().vocab);
    fill_in(&mut value, &site.fleet.catalog.names(), vocab.max().map(|n| n.saturating_sub(1)));
    value
}

/// What each path takes and gives, and the schemas of requests and of answers by their names.
fn documents() -> (Map<String, Value>, [Map<String, Value>; 2]) {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut requests = settings.clone().for_deserialize().into_generator();
    let mut answers = settings.for_serialize().into_generator();
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let described = describe_operation(operation, &mut requests, &mut answers);
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = described;
    }
    (paths, [requests.take_definitions(true), answers.take_definitions(true)])
}

/// The description of any server.
fn description() -> Value {
    let (paths, [mut schemas, answers]) = documents();
    schemas.extend(answers);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "moeflux",
            "version": env!("CARGO_PKG_VERSION"),
            "description": format!(
                "A Mixture-of-Experts model over the APIs of OpenAI and Anthropic. Fields that are \
                 not listed are not used: the header x-moeflux-ignored-fields of an answer names \
                 them, hints such as `user` left aside. With {} they are refused.",
                OptionId::Strict
            ),
        },
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

fn describe_operation(
    operation: &Operation,
    requests: &mut SchemaGenerator,
    answers: &mut SchemaGenerator,
) -> Value {
    let error = (operation.error)(answers);
    let mut responses = Map::new();
    let mut content = Map::new();
    content.insert(operation.mime.to_owned(), json!({"schema": (operation.answer)(answers)}));
    if operation.streams {
        let events = json!({"schema": {
            "type": "object",
            "description": "A server-sent event.",
            "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
            "required": ["data"],
        }});
        content.insert(String::from("text/event-stream"), events);
    }
    let mut answer = json!({"description": operation.summary, "content": content});
    answer["headers"] = json!({"x-request-id": {
        "description": "The request's id: the client's own of this name, else a new one.",
        "schema": {"type": "string"},
    }});
    if operation.request.is_some() {
        answer["headers"]["x-moeflux-ignored-fields"] = json!({
            "description": "Fields of the request that are not known here, separated by commas.",
            "schema": {"type": "string"},
        });
    }
    responses.insert(String::from("200"), answer);
    for (status, meaning) in operation.errors() {
        let error = json!({
            "description": meaning,
            "content": {"application/json": {"schema": error}},
        });
        responses.insert(status.to_owned(), error);
    }
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": responses,
    });
    if let Some(request) = operation.request {
        let schema = request(requests);
        described["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    if operation.is_public {
        described["security"] = json!([]);
    }
    let parameters = parameters(operation);
    if !parameters.is_empty() {
        described["parameters"] = Value::Array(parameters);
    }
    described
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let of_path = operation.path_fields().map(
        |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}),
    );
    let of_query = operation.query.iter().map(|field| {
        let schema = (field.schema)();
        json!({"name": field.name, "in": "query", "description": field.summary, "schema": schema})
    });
    of_path.chain(of_query).collect()
}

/// Says what only a running server knows: the names of its models, and the largest token of those that
/// are loaded.
fn fill_in(value: &mut Value, names: &[String], last_token: Option<usize>) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(|item| fill_in(item, names, last_token));
        }
        Value::Object(fields) => {
            if fields.get("maximum") == Some(&json!(ANY_TOKEN))
                && let Some(last_token) = last_token
            {
                fields.insert(String::from("maximum"), json!(last_token));
            }
            if fields.get("name") == Some(&json!("model")) && fields.contains_key("in") {
                fields["schema"]["enum"] = json!(names);
            }
            if let Some(model) = fields.get_mut("properties").and_then(|all| all.get_mut("model"))
                && model["type"] == json!(["string", "null"])
            {
                let all = names.iter().map(|name| json!(name)).chain([Value::Null]);
                model["enum"] = all.collect();
            }
            fields.values_mut().for_each(|field| fill_in(field, names, last_token));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes;

    #[test]
    fn describes_every_route_and_no_other() {
        let value = description();
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
    fn every_field_of_a_request_has_a_description_and_every_reference_a_schema() {
        let value = description();
        let schemas = value["components"]["schemas"].as_object().unwrap();
        for (name, schema) in schemas {
            for (field, described) in schema["properties"].as_object().into_iter().flatten() {
                assert!(described["description"].is_string(), "{name}.{field}");
            }
        }
        let text = value.to_string();
        for (_, rest) in
            text.match_indices("#/components/schemas/").map(|(i, m)| (i, &text[i + m.len()..]))
        {
            let name = rest.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
    }

    #[test]
    fn no_document_has_the_name_of_another() {
        let (_, [requests, answers]) = documents();
        let shared = requests.keys().find(|name| answers.contains_key(*name));
        assert_eq!(shared, None);
    }

    #[test]
    fn a_server_fills_in_its_names_and_its_largest_token() {
        let mut value = description();
        fill_in(&mut value, &[String::from("m")], Some(9));
        let schemas = &value["components"]["schemas"];
        assert_eq!(schemas["ChatRequest"]["properties"]["model"]["enum"], json!(["m", null]));
        let tokens = &schemas["DetokenizeRequest"]["properties"]["tokens"];
        assert_eq!(tokens["items"]["maximum"], json!(9));
        let parameter = &value["paths"]["/v1/models/{model}"]["get"]["parameters"][0];
        assert_eq!(parameter["schema"]["enum"], json!(["m"]));
    }
}
