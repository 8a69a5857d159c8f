//! Schemas as clients send them: what a grammar cannot have is left to the model, part by part.

mod cases;
mod many_tools;
mod tangles;

use crate::templates;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use moeflux_core::Dialects;
use moeflux_text::{
    AnswerShape, Constraint, ConstraintError, Grammar, Grammars, Markup, OutputFormat,
    OutputParser, Tokenizer,
};
use serde_json::{Map, Value, json};

use self::cases::Case;

use proptest::prelude::*;

/// The demo model's vocabulary with a template that has calls in a syntax.
struct Model {
    tokenizer: Arc<Tokenizer>,
    grammars: Grammars,
    format: OutputFormat,
}

static JSON_CALLS: LazyLock<Model> = LazyLock::new(|| model("{{ tools }}<tool_call>"));
static TAGGED_CALLS: LazyLock<Model> =
    LazyLock::new(|| model("{{ tools }}<tool_call>\n<function=name>\n<parameter="));
static BARE_CALLS: LazyLock<Model> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    templates::write_tokenizer(dir.path(), include_str!("../templates/gemma4.jinja"), &[]);
    open(dir.path())
});

fn model(template: &str) -> Model {
    let demo: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    let dir = tempfile::tempdir().unwrap();
    for file in ["generation_config.json", "config.json", "tokenizer.json"] {
        fs::copy(demo.join(file), dir.path().join(file)).unwrap();
    }
    let config = fs::read(demo.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["chat_template"] = json!(template);
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    open(dir.path())
}

fn open(dir: &Path) -> Model {
    let tokenizer = Arc::new(Tokenizer::from_dir(dir, &Dialects::default()).unwrap());
    let format = OutputFormat::of(&tokenizer);
    assert!(format.syntax().is_some());
    Model { grammars: Grammars::new(&tokenizer).unwrap(), tokenizer, format }
}

impl Model {
    fn grammar(&self, shape: AnswerShape, tools: Vec<Value>) -> Grammar {
        Grammar {
            format: self.format.clone(),
            is_thinking: false,
            shape,
            must_call: !tools.is_empty(),
            tools,
            may_call_many: false,
        }
    }

    /// A forced call, where the tools are `t` with such parameters and `other`.
    fn tool(&self, parameters: &Value) -> Constraint {
        let tools = vec![tool("other", &json!({"type": "object"})), tool("t", parameters)];
        self.grammars.compile(&self.grammar(AnswerShape::Text, tools)).unwrap()
    }

    fn strict(&self, schema: &Value) -> Result<Constraint, ConstraintError> {
        self.grammars.compile(&self.grammar(AnswerShape::Json(schema.clone()), Vec::new()))
    }

    /// Whether an answer may be this text.
    fn allows(&self, constraint: &Constraint, text: &str) -> bool {
        let mut constraint = constraint.clone();
        let tokens = self.tokenizer.encode(text, Markup::Parse).unwrap();
        let mut logits = vec![0.0; self.tokenizer.vocab_size()];
        for (i, token) in tokens.iter().enumerate() {
            logits.fill(0.0);
            constraint.restrict(&mut logits).unwrap();
            if logits[token.0 as usize] != 0.0 {
                return false;
            }
            if constraint.accept(*token).unwrap() {
                return i + 1 == tokens.len();
            }
        }
        logits.fill(0.0);
        constraint.restrict(&mut logits).unwrap();
        logits[self.tokenizer.eos_ids()[0].0 as usize] == 0.0
    }

    fn allows_arguments(&self, constraint: &Constraint, arguments: &str) -> bool {
        let call =
            format!("<tool_call>\n{{\"name\": \"t\", \"arguments\": {arguments}}}\n</tool_call>");
        self.allows(constraint, &call)
    }
}

fn tool(name: &str, parameters: &Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

/// JSON as templates write it.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(k, v)| format!("{}: {}", json!(k), spaced(v)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn check(parameters: &Value, case: &Case) {
    let head: String = parameters.to_string().chars().take(200).collect();
    let started = Instant::now();
    let constraint = JSON_CALLS.tool(parameters);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}: {head}");
    let left: Vec<String> = constraint.left_to_model().iter().map(ToString::to_string).collect();
    if case.left != ["*"] {
        let paths: Vec<&str> =
            constraint.left_to_model().iter().map(|item| item.path.as_str()).collect();
        let wanted: Vec<String> = case
            .left
            .iter()
            .map(|path| format!("properties.x.{path}").trim_end_matches('.').to_owned())
            .collect();
        assert_eq!(paths, wanted, "{head}: {left:#?}");
    }
    assert_eq!(left.is_empty(), case.left.is_empty(), "{head}");
    assert!(
        constraint.left_to_model().iter().all(|item| item.tool == "t" && !item.reason.is_empty())
    );
    for (texts, is_valid) in [(case.valid, true), (case.invalid, false)] {
        for text in texts {
            let allowed = JSON_CALLS.allows_arguments(&constraint, &format!("{{\"x\": {text}}}"));
            assert_eq!(allowed, is_valid, "{text} for {head}: {left:#?}");
        }
    }
    // Arguments in tags have a grammar each.
    let mut tagged = TAGGED_CALLS.tool(parameters);
    let mut logits = vec![0.0; TAGGED_CALLS.tokenizer.vocab_size()];
    tagged.restrict(&mut logits).unwrap();
    // The same schema holds answers, or is refused with the place.
    match JSON_CALLS.strict(parameters) {
        Ok(_) => assert!(left.is_empty(), "{head}: {left:#?}"),
        Err(ConstraintError::Schema { path, reason }) => {
            assert!(reason.lines().count() == 1 && !reason.contains("regex parse"), "{reason}");
            assert!(
                path.starts_with("properties.") || path.starts_with("$defs."),
                "{path}: {head}"
            );
        }
        Err(other) => panic!("{head}: {other}"),
    }
}

#[test]
fn every_kind_of_property_is_held_as_far_as_grammars_go() {
    let cases: Vec<Case> =
        [cases::numbers(), cases::texts(), cases::shapes()].into_iter().flatten().collect();
    for case in cases {
        let parameters = json!({"type": "object", "properties": {"x": case.property.clone()}, "required": ["x"]});
        check(&parameters, &case);
        // In a list it is the same.
        let items = json!({"type": "object", "properties": {"x": {"type": "array", "items": case.property.clone()}}});
        let constraint = JSON_CALLS.tool(&items);
        for (texts, is_valid) in [(case.valid, true), (case.invalid, false)] {
            for text in texts {
                let arguments = format!("{{\"x\": [{text}]}}");
                let allowed = JSON_CALLS.allows_arguments(&constraint, &arguments);
                assert_eq!(allowed, is_valid, "[{text}] for {items}");
            }
        }
    }
}

#[test]
fn what_must_be_given_and_has_no_value_is_left_to_the_model() {
    for case in cases::contradictions() {
        let parameters = json!({"type": "object", "properties": {"x": case.property.clone()}, "required": ["x"]});
        check(&parameters, &case);
    }
}

#[test]
fn references_are_resolved_against_the_whole_schema() {
    for (parameters, case) in cases::references() {
        check(&parameters, &case);
    }
}

/// Any JSON, often with words of JSON Schema.
#[test]
fn parts_that_take_the_grammar_library_long_are_left_to_the_model() {
    let object = |i: usize| {
        let name = format!("field_{i}");
        json!({"type": "object", "properties": {name.clone(): {"type": "string"}}, "required": [name]})
    };
    let many: Vec<Value> = (0..3000).map(object).collect();
    let large: Vec<Value> = (0..500).map(|i| json!({"name": "x".repeat(500), "i": i})).collect();
    for (keyword, value) in [
        ("oneOf", json!(many)),
        ("anyOf", json!(many)),
        ("allOf", json!(many)),
        ("enum", json!(large)),
        ("const", json!("y".repeat(1 << 20))),
    ] {
        let start = Instant::now();
        let parameters = json!({"type": "object", "properties": {"a": {keyword: value}}});
        let constraint = JSON_CALLS.tool(&parameters);
        let left: Vec<&str> =
            constraint.left_to_model().iter().map(|item| item.path.as_str()).collect();
        assert_eq!(left, [format!("properties.a.{keyword}")]);
        assert!(start.elapsed() < Duration::from_secs(5), "{keyword}: {:?}", start.elapsed());
        assert!(JSON_CALLS.strict(&parameters).is_err(), "{keyword}");
    }
}

#[test]
fn thousands_of_short_choices_are_held() {
    let names: Vec<Value> = (0..5000).map(|i| json!(format!("choice number {i}"))).collect();
    let titled = |one: &Value| json!({"const": one, "title": one});
    let titled: Vec<Value> = names.iter().take(5000).map(titled).collect();
    for choices in [json!({"enum": names}), json!({"anyOf": titled}), json!({"oneOf": titled})] {
        let parameters = json!({"type": "object", "properties": {"a": choices}});
        let start = Instant::now();
        let constraint = JSON_CALLS.tool(&parameters);
        assert!(constraint.left_to_model().is_empty());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert!(JSON_CALLS.strict(&parameters).is_ok());
    }
}

/// Schemas whose parts refer to each other: in every notation they make a grammar that leads on, and
/// calls are read, in a bounded time.
#[test]
fn tangled_schemas_end_soon_in_every_notation() {
    for (name, parameters) in tangles::all() {
        for model in [&*JSON_CALLS, &*TAGGED_CALLS, &*BARE_CALLS] {
            let started = Instant::now();
            let mut constraint = model.tool(&parameters);
            walk(model, &mut constraint);
            let tools = json!([tool("t", &parameters)]);
            let mut parser = OutputParser::new(&model.format, Some(&tools), false);
            let call = "<tool_call>\n<function=t>\n<parameter=p1>\n1\n</parameter>\n</function>";
            drop(parser.push(call));
            drop(parser.finish());
            let took = started.elapsed();
            assert!(took < Duration::from_secs(2), "{name}: {took:?} {:?}", model.format.syntax());
        }
        let started = Instant::now();
        if let Err(err) = JSON_CALLS.strict(&parameters) {
            assert_eq!(err.to_string().lines().count(), 1, "{name}: {err}");
        }
        let took = started.elapsed();
        assert!(took < Duration::from_secs(2), "{name} as a format: {took:?}");
    }
}

/// As many tools as the server takes.
#[test]
fn many_tools_make_a_grammar_soon_in_every_notation() {
    for (name, tools) in many_tools::all() {
        for model in [&*JSON_CALLS, &*TAGGED_CALLS, &*BARE_CALLS] {
            let grammar = model.grammar(AnswerShape::Text, tools.clone());
            let started = Instant::now();
            let mut constraint = model.grammars.compile(&grammar).unwrap();
            walk(model, &mut constraint);
            let took = started.elapsed();
            // The size bounds the time; the limit leaves room for other tests on a slow machine.
            assert!(constraint.text().len() < 400_000, "{name}: {:?}", model.format.syntax());
            assert!(took < Duration::from_secs(5), "{name}: {took:?} {:?}", model.format.syntax());
            let n_left = constraint.left_to_model().len();
            assert_eq!(n_left > 0, tools.len() > 200, "{name}: {n_left}");
        }
    }
}

/// Patterns that the library takes are followed to the end, or the request says so at once.
#[test]
fn patterns_that_cannot_be_followed_are_refused_and_left_to_the_model() {
    let schema = |pattern: &str| json!({"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}});
    for pattern in [r"^((a{1,20}){1,20}){1,20}$", r"^(\S{1,100}\s?){1,100}$", "^(a?){500}a{500}$"] {
        match JSON_CALLS.strict(&schema(pattern)) {
            Err(ConstraintError::Schema { path, .. }) => {
                assert_eq!(path, "properties.x.pattern", "{pattern}");
            }
            other => panic!("{pattern}: {:?}", other.err()),
        }
        let named = json!({"type": "object", "patternProperties": {pattern: {"type": "null"}}});
        let constraint = JSON_CALLS.tool(&schema(pattern));
        assert_eq!(constraint.left_to_model()[0].path, "properties.x.pattern", "{pattern}");
        assert!(JSON_CALLS.strict(&named).is_err(), "{pattern}");
    }
    for pattern in [
        "^.{1,5000}$",
        r"^\p{L}{1,500}$",
        r"^(\w{0,50}\s){0,50}$",
        "^([a-z]{1,30}[0-9]{1,30}){1,20}$",
        "^[0-9]{4}-[0-9]{2}$",
    ] {
        let mut constraint = JSON_CALLS.strict(&schema(pattern)).unwrap();
        walk(&JSON_CALLS, &mut constraint);
    }
}

#[test]
fn many_patterns_with_large_counts_are_tried_soon_and_the_same_one_once() {
    let fields = |make: &dyn Fn(usize) -> String| {
        let field = |i| (format!("f{i}"), json!({"type": "string", "pattern": make(i)}));
        json!({"type": "object", "properties": (0..40).map(field).collect::<serde_json::Map<_, _>>()})
    };
    let same = fields(&|_| String::from("^.{1,500}$"));
    let different = fields(&|i| format!("^.{{1,{}}}$", 300 + i));
    for schema in [same, different] {
        let started = Instant::now();
        let mut constraint = JSON_CALLS.strict(&schema).unwrap();
        walk(&JSON_CALLS, &mut constraint);
        let took = started.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}

fn junk() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "type",
        "properties",
        "required",
        "items",
        "enum",
        "const",
        "anyOf",
        "allOf",
        "oneOf",
        "not",
        "$ref",
        "$defs",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "minLength",
        "maxItems",
        "if",
        "additionalProperties",
        "patternProperties",
        "prefixItems",
        "multipleOf",
        "minProperties",
        "nullable",
        "$id",
        "$anchor",
        "exclusiveMinimum",
        "unevaluatedProperties",
        "x-guidance",
        "a",
        "string",
        "integer",
        "object",
        "array",
        "#",
        "#/properties/a",
        "#/$defs/a",
        "^a(?!b)$",
        "[",
        "(a|b)*a(a|b){9}",
        "date-time",
        "",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-5_i64..9).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
        "\\PC{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 6, move |inner| {
        let fields = prop::collection::vec((word.clone(), inner.clone()), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            fields.prop_map(|all| all.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

/// Goes along what a grammar allows for a while; it never breaks.
fn walk(model: &Model, constraint: &mut Constraint) {
    let mut logits = vec![0.0; model.tokenizer.vocab_size()];
    for step in 0..12 {
        logits.fill(0.0);
        constraint.restrict(&mut logits).unwrap();
        let allowed: Vec<usize> = (0..logits.len()).filter(|i| logits[*i] == 0.0).collect();
        let next = allowed[step * 7919 % allowed.len()];
        if constraint.accept(moeflux_core::TokenId(next as u32)).unwrap() {
            return;
        }
    }
}

/// A schema of supported keywords and a value that it allows.
fn with_instance() -> impl Strategy<Value = (Value, Value)> {
    let leaf = prop_oneof![
        Just((json!({"type": "null"}), Value::Null)),
        any::<bool>().prop_map(|b| (json!({"type": "boolean"}), json!(b))),
        (any::<i32>(), 0..1000_i64, 0..1000_i64).prop_map(|(n, less, more)| {
            let n = i64::from(n);
            (json!({"type": "integer", "minimum": n - less, "maximum": n + more}), json!(n))
        }),
        (any::<i64>()).prop_map(|n| {
            (json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}), json!(n))
        }),
        "[a-z]{0,8}".prop_map(|text| {
            let n = text.len();
            (json!({"type": "string", "minLength": n, "maxLength": n + 3}), json!(text))
        }),
        "[a-z]{1,5}[0-9]{2}".prop_map(|text| {
            (json!({"type": "string", "pattern": "^(?!0)[a-z]+\\d{2}$"}), json!(text))
        }),
        "[a-z \"é]{0,4}"
            .prop_map(|text| { (json!({"enum": ["other", 7, text.clone(), null]}), json!(text)) }),
        "[a-z]{1,4}".prop_map(|text| (json!({"const": text.clone()}), json!(text))),
        Just((json!({"type": "string", "format": "nonsense"}), json!("x"))),
        Just((json!({"$ref": "#/$defs/word"}), json!("word"))),
        Just((json!({"type": "string", "nullable": true}), Value::Null)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let fields = prop::collection::vec((inner.clone(), any::<bool>(), any::<bool>()), 0..4);
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|all| {
                let (schemas, values): (Vec<Value>, Vec<Value>) = all.into_iter().unzip();
                (json!({"type": "array", "items": {"anyOf": schemas}, "minItems": values.len()}), json!(values))
            }),
            prop::collection::vec(inner.clone(), 0..4).prop_map(|all| {
                let (schemas, values): (Vec<Value>, Vec<Value>) = all.into_iter().unzip();
                (json!({"type": "array", "prefixItems": schemas, "items": false}), json!(values))
            }),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| {
                (json!({"anyOf": [other.0, one.0]}), one.1)
            }),
            fields.prop_map(|all| {
                let (mut properties, mut required, mut value) = (Map::new(), Vec::new(), Map::new());
                for (i, ((schema, inner), is_required, is_there)) in all.into_iter().enumerate() {
                    let name = format!("p{i}");
                    if is_required {
                        required.push(name.clone());
                    }
                    if is_required || is_there {
                        value.insert(name.clone(), inner);
                    }
                    properties.insert(name, schema);
                }
                (
                    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false}),
                    Value::Object(value),
                )
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_json_as_parameters_makes_a_grammar(parameters in junk(), property in junk()) {
        for parameters in [parameters, json!({"type": "object", "properties": {"a": property}})] {
            for model in [&*JSON_CALLS, &*TAGGED_CALLS] {
                let started = Instant::now();
                let mut constraint = model.tool(&parameters);
                let took = started.elapsed();
                prop_assert!(took < Duration::from_secs(1), "{:?}", took);
                walk(model, &mut constraint);
            }
        }
    }

    #[test]
    fn any_json_as_a_format_makes_a_grammar_or_is_refused_with_its_place(schema in junk()) {
        match JSON_CALLS.strict(&schema) {
            Ok(mut constraint) => walk(&JSON_CALLS, &mut constraint),
            Err(err) => prop_assert_eq!(err.to_string().lines().count(), 1, "{}", err),
        }
    }

    #[test]
    fn what_a_schema_allows_can_be_written((schema, value) in with_instance()) {
        let parameters = json!({
            "type": "object", "properties": {"x": schema}, "required": ["x"],
            "$defs": {"word": {"type": "string", "maxLength": 5}},
        });
        let constraint = JSON_CALLS.tool(&parameters);
        let arguments = spaced(&json!({"x": value}));
        prop_assert!(
            JSON_CALLS.allows_arguments(&constraint, &arguments),
            "{} {:?}", arguments, constraint.left_to_model()
        );
    }
}
