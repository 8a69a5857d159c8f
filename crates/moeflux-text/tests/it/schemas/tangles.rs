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

/// Parts side by side.
fn wide() -> Vec<(String, Value)> {
    let leaf = |i: usize| json!({"type": ["string", "integer", "null"], "description": i});
    let small = |i: usize| object(fields(&format!("f{i}_"), 2, leaf));
    let many = |n: usize| (0..n).map(small).collect::<Vec<Value>>();
    let tree = |width, depth| {
        nested(depth, leaf(0), |inner| object(fields("m", width, |_| inner.clone())))
    };
    let alternatives =
        |width: usize, depth| nested(depth, leaf(0), |inner| json!({"anyOf": vec![inner; width]}));
    let mut shared = object(fields("p", 2, |_| object(fields("m", 900, |i| reference(i % 100)))));
    shared["$defs"] = Value::Object(fields(
        "d",
        100,
        |i| json!({"enum": (0..1000).map(|j| i * j).collect::<Vec<_>>()}),
    ));
    vec![
        ("many alternatives".to_owned(), object(fields("p", 3, |_| json!({"anyOf": many(100)})))),
        (
            "too many alternatives".to_owned(),
            object(fields("p", 3, |_| json!({"oneOf": many(1000)}))),
        ),
        ("many arguments".to_owned(), object(fields("p", 200, small))),
        ("too many arguments".to_owned(), object(fields("p", 20_000, leaf))),
        ("many parts of arguments".to_owned(), json!({"allOf": many(2000)})),
        (
            "many names of types".to_owned(),
            object(fields(
                "p",
                2,
                |_| json!({"type": (0..50_000).map(|i| format!("t{i}")).collect::<Vec<_>>()}),
            )),
        ),
        ("a tree of objects".to_owned(), tree(6, 4)),
        ("a wide tree of objects".to_owned(), tree(30, 2)),
        ("a tree of alternatives".to_owned(), object(fields("p", 2, |_| alternatives(8, 3)))),
        ("a wide tree of alternatives".to_owned(), object(fields("p", 2, |_| alternatives(30, 2)))),
        ("definitions that many members share".to_owned(), shared),
    ]
}

/// Lists, names and patterns that are long.
fn long() -> Vec<(String, Value)> {
    let text = || json!({"type": "string"});
    let one = |schema: Value| object(Map::from_iter([("p".to_owned(), schema)]));
    let pattern = |pattern: String| one(json!({"type": "string", "pattern": pattern}));
    let texts = |n: usize| (0..n).map(|i| json!(format!("value {i}"))).collect::<Vec<Value>>();
    let crowd = |k: usize| object(fields(&format!("m{k}_"), 1000, |_| text()));
    let mut required = object(fields("p", 1000, |_| text()));
    required["required"] = (0..50_000).map(|i| json!(format!("q{i}"))).collect();
    vec![
        ("many values".to_owned(), one(json!({"enum": texts(100_000)}))),
        (
            "many lists of values".to_owned(),
            object(fields("p", 40, |_| json!({"enum": texts(500)}))),
        ),
        (
            "many items".to_owned(),
            one(json!({"prefixItems": vec![object(fields("m", 2, |_| text())); 2000]})),
        ),
        ("many names that must be there".to_owned(), required),
        ("many crowded objects".to_owned(), object(fields("p", 16, crowd))),
        ("long names".to_owned(), object(fields(&"n".repeat(50_000), 20, |_| text()))),
        ("long names of brackets".to_owned(), object(fields(&"<".repeat(50_000), 20, |_| text()))),
        ("braces without an end".to_owned(), pattern("a{".repeat(8000))),
        ("a long pattern".to_owned(), pattern("a[bc]d|".repeat(20_000))),
        (
            "a pattern with large counts".to_owned(),
            pattern("^((a{1,100}){1,100}){1,100}$".to_owned()),
        ),
    ]
}

/// What holds for one value together.
fn joined() -> Vec<(String, Value)> {
    let ends = |i: usize| json!({"type": "string", "pattern": format!("(a|b)*a(a|b){{{i}}}")});
    let all_of = |parts: Vec<Value>| json!({"allOf": parts});
    let mut chain = defined(20, |i| all_of(vec![ends(i), reference((i + 1) % 20)]));
    chain["$defs"]["d19"] = ends(19);
    let members = (1..20).map(|i| object(Map::from_iter([("p".to_owned(), ends(i))]))).collect();
    vec![
        (
            "joined patterns".to_owned(),
            object(fields("p", 2, |_| all_of((1..20).map(ends).collect()))),
        ),
        ("joined patterns of definitions".to_owned(), chain),
        ("joined patterns of a member".to_owned(), all_of(members)),
        (
            "large divisors".to_owned(),
            object(fields("p", 100, |i| json!({"type": "integer", "multipleOf": 9973 + i}))),
        ),
        (
            "divisors whose product overflows".to_owned(),
            object(fields("p", 2, |_| {
                all_of(
                    [70_001, 70_003].map(|n| json!({"type": "integer", "multipleOf": n})).to_vec(),
                )
            })),
        ),
    ]
}

/// All of them, with a name each.
pub(super) fn all() -> Vec<(String, Value)> {
    [mutual(), deep(), wide(), long(), joined()].concat()
}
