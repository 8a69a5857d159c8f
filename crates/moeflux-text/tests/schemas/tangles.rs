//! Schemas that are small to send and large to follow.

use serde_json::{Map, Value, json};

/// `n` fields, of which `make` gives the schema by its number.
fn fields(prefix: &str, n: usize, make: impl Fn(usize) -> Value) -> Map<String, Value> {
    (0..n).map(|i| (format!("{prefix}{i}"), make(i))).collect()
}

fn reference(i: usize) -> Value {
    json!({"$ref": format!("#/$defs/d{i}")})
}

fn references(n: usize) -> Vec<Value> {
    (0..n).map(reference).collect()
}

fn object(properties: Map<String, Value>) -> Value {
    json!({"type": "object", "properties": properties})
}

/// Arguments that refer to `n` definitions.
fn defined(n: usize, make: impl Fn(usize) -> Value) -> Value {
    let mut schema = object(fields("p", n.min(200), reference));
    schema["$defs"] = Value::Object(fields("d", n, make));
    schema
}

/// `schema` inside of `wrap`, `n` times. Readers of JSON take 128 levels.
fn nested(n: usize, schema: Value, wrap: impl Fn(Value) -> Value) -> Value {
    (0..n).fold(schema, |inner, _| wrap(inner))
}

/// Parts that refer to each other.
fn mutual() -> Vec<(String, Value)> {
    const N: usize = 30;
    let mut all: Vec<(String, Value)> = ["anyOf", "oneOf", "allOf"]
        .iter()
        .map(|key| (format!("{key} of all"), defined(N, |_| json!({*key: references(N)}))))
        .collect();
    let members = defined(N, |_| object(fields("m", N, reference)));
    all.push(("objects of all".to_owned(), members));
    let lists = defined(N, |_| json!({"type": "array", "items": {"anyOf": references(N)}}));
    all.push(("lists of all".to_owned(), lists));
    let mixed = defined(N, |i| {
        let field = object(fields("m", 3, |j| json!({"anyOf": references(N.min(i + j))})));
        json!({"anyOf": [field, {"type": "array", "items": reference((i + 1) % N)}]})
    });
    all.push(("objects and lists of alternatives".to_owned(), mixed));
    all
}

/// Parts that lead from one to the next.
fn deep() -> Vec<(String, Value)> {
    let next = |i: usize| reference((i + 1) % 300);
    let text = || json!({"type": "string"});
    let p = |inner: Value| json!({"type": "object", "properties": {"p1": inner}});
    vec![
        ("itself".to_owned(), json!({"$ref": "#"})),
        ("an argument that is all of it".to_owned(), p(json!({"$ref": "#"}))),
        ("a definition that is itself".to_owned(), defined(1, |_| reference(0))),
        ("a circle of references".to_owned(), defined(300, next)),
        ("a circle of alternatives".to_owned(), defined(300, |i| json!({"anyOf": [next(i)]}))),
        ("a circle of objects".to_owned(), defined(300, |i| p(next(i)))),
        ("nested objects".to_owned(), nested(50, text(), p)),
        (
            "nested lists".to_owned(),
            p(nested(50, text(), |inner| json!({"type": "array", "items": inner}))),
        ),
        (
            "nested alternatives".to_owned(),
            p(nested(50, text(), |inner| json!({"anyOf": [inner, {"type": "null"}]}))),
        ),
    ]
}

/// All of them, with a name each.
pub(super) fn all() -> Vec<(String, Value)> {
    [mutual(), deep()].concat()
}
