//! Requests with many tools.

use serde_json::{Map, Value, json};

/// As many as the server takes.
const N_TOOLS: usize = 512;

fn tools(n: usize, make: impl Fn(usize) -> Value) -> Vec<Value> {
    let tool = |i: usize| {
        let name = format!("tool_number_{i}");
        json!({"type": "function", "function": {"name": name, "parameters": make(i)}})
    };
    (0..n).map(tool).collect()
}

fn object(n: usize, make: impl Fn(usize) -> (String, Value)) -> Value {
    let properties: Map<String, Value> = (0..n).map(make).collect();
    let required: Vec<String> = properties.keys().take(n / 2).cloned().collect();
    json!({"type": "object", "properties": properties, "required": required})
}

/// Properties of every type, named differently in each tool.
fn typed(i: usize, n: usize) -> Value {
    let kinds = ["string", "integer", "number", "boolean", "array", "object"];
    object(n, |j| (format!("field_{i}_{j}"), json!({"type": kinds[j % kinds.len()]})))
}

/// Requests with a name each.
pub(super) fn all() -> Vec<(&'static str, Vec<Value>)> {
    let inner = |i: usize| object(2, |j| (format!("inner{j}"), typed(i, 9)));
    vec![
        ("two hundred", tools(200, |i| typed(i, 8))),
        ("with many arguments", tools(N_TOOLS, |i| typed(i, 30))),
        ("with objects of many fields", tools(N_TOOLS, inner)),
    ]
}
