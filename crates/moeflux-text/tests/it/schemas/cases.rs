//! Kinds of schemas, and values that they allow and refuse.

use serde_json::{Map, Value, json};

/// One kind of schema: a property `x` of a tool.
pub(crate) struct Case {
    pub(crate) property: Value,
    /// Paths that are left to the model, below the property.
    pub(crate) left: &'static [&'static str],
    pub(crate) valid: &'static [&'static str],
    pub(crate) invalid: &'static [&'static str],
}

fn case(
    property: Value,
    left: &'static [&'static str],
    valid: &'static [&'static str],
    invalid: &'static [&'static str],
) -> Case {
    Case { property, left, valid, invalid }
}

pub(crate) fn numbers() -> Vec<Case> {
    const MAX: &str = "9223372036854775807";
    const MIN: &str = "-9223372036854775808";
    vec![
        case(
            json!({"type": "number", "minimum": -f64::MAX, "maximum": f64::MAX}),
            &["minimum", "maximum"],
            &["1.5", "1e300"],
            &["true"],
        ),
        case(json!({"type": "number", "maximum": 1e20}), &["maximum"], &["3", "-4.5"], &["\"3\""]),
        case(
            json!({"type": "number", "minimum": 0, "maximum": 1e20}),
            &["maximum"],
            &["3"],
            &["-4"],
        ),
        case(json!({"type": "number", "minimum": 1e-320}), &["minimum"], &["0.5"], &["[]"]),
        case(
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            &["minimum"],
            &["0", "1234567890123456789", MAX, MIN],
            &["1.5", "9223372036854775808"],
        ),
        case(
            json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}),
            &[],
            &["0", MAX],
            &["-1", "9223372036854775808"],
        ),
        case(
            json!({"type": "integer", "exclusiveMinimum": i64::MIN}),
            &["exclusiveMinimum"],
            &["0", MAX],
            &["1.5"],
        ),
        case(
            json!({"type": "integer", "maximum": u64::MAX}),
            &["maximum"],
            &["0", MAX, "18446744073709551615"],
            &["1.5"],
        ),
        case(
            json!({"type": "integer", "minimum": 4_000_000_000_000_000_000_i64}),
            &[],
            &["4000000000000000000", MAX],
            &["5"],
        ),
        case(
            json!({"type": "integer", "maximum": -4_000_000_000_000_000_000_i64}),
            &[],
            &["-4000000000000000000"],
            &["-5", "5"],
        ),
        case(
            json!({"type": "integer", "maximum": 9_007_199_254_740_993_i64}),
            &[],
            &["9007199254740993"],
            &["9007199254740999"],
        ),
        case(
            json!({"type": "integer", "minimum": 5, "exclusiveMinimum": true}),
            &[],
            &["6"],
            &["5"],
        ),
        case(
            json!({"type": "integer", "maximum": 5, "exclusiveMaximum": false}),
            &[],
            &["5"],
            &["6"],
        ),
        case(json!({"type": "integer", "minimum": "0"}), &["minimum"], &["-1"], &["1.5"]),
        case(json!({"type": "integer", "minimum": null}), &[], &["-1"], &["1.5"]),
        case(json!({"type": "integer", "format": "int64"}), &[], &["1"], &["1.5"]),
        case(json!({"type": "number", "multipleOf": 0.01}), &[], &["0.25"], &["0.255"]),
        case(json!({"type": "number", "multipleOf": 0}), &["multipleOf"], &["0.255"], &["null"]),
        case(json!({"type": "number", "multipleOf": -3}), &["multipleOf"], &["4"], &["null"]),
        case(json!({"type": "integer", "multipleOf": 1e-300}), &["multipleOf"], &["4"], &["4.5"]),
        case(json!({"type": "number", "multipleOf": 1e20}), &["multipleOf"], &["4"], &["null"]),
        case(
            json!({"enum": [1_234_567_890_123_456_789_i64]}),
            &["enum"],
            &["1234567890123456789"],
            &[],
        ),
        case(
            json!({"const": 18_446_744_073_709_551_615_u64}),
            &["const"],
            &["18446744073709551615"],
            &[],
        ),
    ]
}

pub(crate) fn texts() -> Vec<Case> {
    let pattern = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let zod_email = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
    vec![
        case(
            json!({"type": "string", "format": "email", "pattern": zod_email}),
            &["pattern"],
            &["\"a.b@c.de\""],
            &["\"a.b\"", "3"],
        ),
        case(pattern("(?=.*[0-9]).{3,}"), &["pattern"], &["\"ab1\""], &["\"a1\""]),
        case(pattern("^(?<!x)a(?<=a)$"), &["pattern"], &["\"a\""], &["\"b\""]),
        case(pattern(r"\bcat\b"), &["pattern"], &["\"a cat.\""], &["\"dog\""]),
        case(pattern(r"^(a|b)\1$"), &["pattern"], &["\"aa\""], &["\"c\""]),
        case(pattern(r"^(?<q>['x]).*\k<q>$"), &["pattern"], &["\"xax\""], &["\"axx\""]),
        case(pattern(r"^\d+$"), &[], &["\"42\""], &["\"x\"", "\"٣\""]),
        case(pattern(r"^[[a]+[^]$"), &[], &["\"[a?\""], &["\"b?\""]),
        case(pattern(r"^\/\_\@\<\u0041\x42\cJ?[\w-.]$"), &[], &["\"/_@<AB-\""], &["\"/_@AB-\""]),
        case(pattern(r"^{a}$"), &[], &["\"{a}\""], &["\"a\""]),
        case(pattern(r"^\ud83d\ude00$"), &[], &["\"😀\""], &["\"a\""]),
        case(pattern(r"^[&&~~-]+$"), &[], &["\"&~-\""], &["\"a\""]),
        case(pattern(r"\Aab\Z"), &[], &["\"ab\""], &["\"abc\""]),
        case(pattern("^(?P<year>[0-9]{4})$"), &[], &["\"2024\""], &["\"24\""]),
        case(pattern("(?i)^ab$"), &[], &["\"AB\""], &["\"x\""]),
        case(pattern("a^b$c"), &["pattern"], &["\"x\""], &["3"]),
        case(pattern(r"[\ud800-\udfff]"), &["pattern"], &["\"x\""], &["3"]),
        case(pattern("("), &["pattern"], &["\"x\""], &["3"]),
        case(pattern("*"), &["pattern"], &["\"x\""], &["3"]),
        case(pattern(r"\p{Nonsense}"), &["pattern"], &["\"x\""], &["3"]),
        case(json!({"type": "string", "pattern": 7}), &["pattern"], &["\"x\""], &["3"]),
        case(json!({"type": "string", "format": "cuid2"}), &["format"], &["\"x\""], &["3"]),
        case(json!({"type": "string", "format": null}), &[], &["\"x\""], &["3"]),
        case(
            json!({"type": "string", "minLength": 2.0, "maxLength": "9"}),
            &["maxLength"],
            &["\"xx\""],
            &["\"x\""],
        ),
        case(json!({"type": "string", "maxLength": 1e300}), &["maxLength"], &["\"xx\""], &["3"]),
    ]
}

pub(crate) fn shapes() -> Vec<Case> {
    let ten_thousand: Map<String, Value> =
        (0..10_000).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
    let deep = (0..1000).fold(json!({"type": "null"}), |inner, _| json!({"items": inner}));
    vec![
        case(json!({"type": "file"}), &["type"], &["\"x\"", "{\"a\": 1}"], &[]),
        case(json!({"type": ["string", "file"]}), &["type"], &["1"], &[]),
        case(json!({"type": []}), &["type"], &["1"], &[]),
        case(json!({"type": 3}), &["type"], &["1"], &[]),
        case(json!({"type": ["string", "null", "null"]}), &[], &["null", "\"x\""], &["1"]),
        case(json!({"type": "string", "nullable": true}), &[], &["null", "\"x\""], &["1"]),
        case(json!({"enum": ["a"], "nullable": true}), &[], &["null", "\"a\""], &["\"b\""]),
        case(json!(true), &[], &["1"], &[]),
        case(json!("string"), &[""], &["1"], &[]),
        case(json!(null), &[], &["1"], &[]),
        case(json!({"enum": []}), &["enum"], &["1"], &[]),
        case(json!({"enum": "abc"}), &["enum"], &["1"], &[]),
        case(
            json!({"enum": [1, "a", null, [2], {"b": true}]}),
            &[],
            &["1", "\"a\"", "null", "[2]", "{\"b\": true}"],
            &["2"],
        ),
        case(json!({"const": null}), &[], &["null"], &["0"]),
        case(json!({"type": "object", "properties": [], "required": null}), &[], &["{}"], &["3"]),
        case(
            json!({"type": "object", "properties": "none"}),
            &["properties"],
            &["{\"a\": 1}"],
            &["3"],
        ),
        case(
            json!({"type": "object", "properties": {"a": {}}, "required": true}),
            &["required"],
            &["{}"],
            &["3"],
        ),
        case(
            json!({"type": "object", "properties": {"a": {}}, "required": ["a", "a", 3]}),
            &["required"],
            &["{\"a\": 1}"],
            &["{}"],
        ),
        case(
            json!({"type": "object", "required": ["b"], "properties": {"a": {}}, "additionalProperties": false}),
            &["required"],
            &["{\"a\": 1}"],
            &["{\"c\": 1}"],
        ),
        case(
            json!({"type": "object", "properties": ten_thousand, "additionalProperties": false}),
            &["properties"],
            &["{\"p1\": \"x\"}"],
            &["3"],
        ),
        case(deep, &["*"], &["[[[[]]]]"], &[]),
        case(
            json!({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}),
            &["minProperties"],
            &["{\"a\": 1}"],
            &["3"],
        ),
        case(
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"pattern": "^a"}}),
            &["propertyNames"],
            &["{\"b\": 1}"],
            &["{\"b\": \"x\"}"],
        ),
        case(
            json!({"type": "object", "propertyNames": {"type": "string"}}),
            &[],
            &["{\"b\": 1}"],
            &["3"],
        ),
        case(
            json!({"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": false}),
            &[],
            &["{\"a1\": 1}"],
            &["{\"a1\": \"x\"}"],
        ),
        case(
            json!({"type": "object", "patternProperties": {"^(?!a)": {"type": "integer"}}, "additionalProperties": false}),
            &["patternProperties[\"^(?!a)\"]"],
            &["{\"b\": 1}"],
            &["3"],
        ),
        case(
            json!({"type": "object", "patternProperties": {"^a": {}, "b$": {}}}),
            &["patternProperties"],
            &["{\"ab\": 1}"],
            &["3"],
        ),
        case(
            json!({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": false}),
            &[],
            &["{\"a\": 1}"],
            &["{\"b\": 1}"],
        ),
        case(
            json!({"type": "object", "allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false}),
            &["unevaluatedProperties"],
            &["{\"a\": 1}"],
            &["{\"b\": 1}"],
        ),
        case(
            json!({"type": "object", "properties": {"a": {}}, "dependentRequired": {"a": ["b"]}}),
            &["dependentRequired"],
            &["{\"a\": 1}"],
            &["3"],
        ),
        case(
            json!({"type": "array", "items": [{"type": "integer"}], "additionalItems": false}),
            &[],
            &["[1]"],
            &["[1, 2]", "[\"x\"]"],
        ),
        case(
            json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": false}),
            &[],
            &["[1]"],
            &["[1, 2]"],
        ),
        case(
            json!({"type": "array", "prefixItems": 3, "items": false}),
            &["prefixItems"],
            &["[1]"],
            &["3"],
        ),
        case(
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            &["uniqueItems"],
            &["[\"x\"]"],
            &["[1]"],
        ),
        case(json!({"type": "array", "contains": {"const": 1}}), &["contains"], &["[2]"], &["3"]),
        case(json!({"type": "array", "minItems": -1}), &["minItems"], &["[2]"], &["3"]),
        case(json!({"not": {"type": "string"}}), &["not"], &["2"], &[]),
        case(
            json!({"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 5}}),
            &["if"],
            &["9"],
            &["\"x\""],
        ),
        case(json!({"anyOf": []}), &["anyOf"], &["2"], &[]),
        case(json!({"oneOf": {"type": "string"}}), &["oneOf"], &["2"], &[]),
        case(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), &[], &["2"], &["\"x\""]),
        case(
            json!({"anyOf": [{"type": "string", "pattern": "(?!a)"}, {"type": "null"}]}),
            &["anyOf[0].pattern"],
            &["null", "\"a\""],
            &["2"],
        ),
    ]
}

/// Schemas that no value has.
pub(crate) fn contradictions() -> Vec<Case> {
    vec![
        case(
            json!({"type": "integer", "minimum": 9, "maximum": 3}),
            &["minimum"],
            &["1"],
            &["1.5"],
        ),
        case(
            json!({"type": "string", "minLength": 9, "maxLength": 3}),
            &["minLength"],
            &["\"xx\""],
            &["\"xxxx\""],
        ),
        case(json!({"type": "integer", "enum": ["1", "2"]}), &["enum"], &["1"], &["\"1\""]),
        case(
            json!({"type": "array", "minItems": 3, "maxItems": 1}),
            &["minItems"],
            &["[2]"],
            &["[1, 2]"],
        ),
        case(json!({"allOf": [{"type": "integer"}, {"type": "string"}]}), &["allOf"], &["2"], &[]),
    ]
}

/// Cases of a property `x` that is a reference, each with the schema that it refers into.
pub(crate) fn references() -> Vec<(Value, Case)> {
    let to = |target: &str| json!({"$ref": target});
    let word = json!({"type": "string"});
    vec![
        reference(
            json!({"properties": {"a": word}}),
            to("#/properties/a"),
            &[],
            &["\"x\""],
            &["3"],
        ),
        reference(
            json!({"properties": {"a": {"items": word}}}),
            to("#/properties/a/items"),
            &[],
            &["\"x\""],
            &["3"],
        ),
        reference(
            json!({"properties": {"a": {"anyOf": [word]}}}),
            to("#/properties/a/anyOf/0"),
            &[],
            &["\"x\""],
            &["3"],
        ),
        reference(json!({"$defs": {"W": word}}), to("#/$defs/W"), &[], &["\"x\""], &["3"]),
        reference(
            json!({"definitions": {"a/b~c d%": word}}),
            to("#/definitions/a~1b~0c%20d%25"),
            &[],
            &["\"x\""],
            &["3"],
        ),
        reference(
            json!({"components": {"schemas": {"W": word}}}),
            to("#/components/schemas/W"),
            &[],
            &["\"x\""],
            &["3"],
        ),
        reference(
            json!({"$defs": {"W": {"$anchor": "word", "type": "string"}}}),
            to("#word"),
            &[],
            &["\"x\""],
            &["3"],
        ),
        reference(
            json!({"$defs": {"W": {"$id": "https://example.com/word", "type": "string"}}}),
            to("https://example.com/word"),
            &[],
            &["\"x\""],
            &["3"],
        ),
        reference(
            json!({"$id": "https://example.com/all", "$defs": {"W": word}}),
            to("https://example.com/all#/$defs/W"),
            &[],
            &["\"x\""],
            &["3"],
        ),
        reference(
            json!({"$defs": {"V": to("#/$defs/W"), "W": word}}),
            to("#/$defs/V"),
            &[],
            &["\"x\""],
            &["3"],
        ),
        reference(
            json!({"$defs": {"W": word}}),
            json!({"$ref": "#/$defs/W", "maxLength": 1, "description": "d"}),
            &[],
            &["\"x\""],
            &["\"xy\""],
        ),
        reference(
            json!({"$defs": {"W": word}}),
            json!({"$ref": "#/$defs/W", "nullable": true}),
            &[],
            &["\"x\"", "null"],
            &["3"],
        ),
        reference(
            json!({"$defs": {"W": word}}),
            json!({"allOf": [to("#/$defs/W")], "default": "d"}),
            &[],
            &["\"x\""],
            &["3"],
        ),
        reference(json!({}), to("#/$defs/Gone"), &["$ref"], &["3"], &[]),
        reference(json!({}), to("https://example.com/x.json"), &["$ref"], &["3"], &[]),
        reference(json!({}), to("other.json#/a"), &["$ref"], &["3"], &[]),
        reference(json!({}), to("#nowhere"), &["$ref"], &["3"], &[]),
        reference(json!({}), json!({"$ref": 3}), &["$ref"], &["3"], &[]),
        reference(json!({"title": "t"}), to("#/title"), &["$ref"], &["3"], &[]),
        reference(json!({}), to("#/properties/x"), &["$ref"], &["3"], &[]),
        reference(
            json!({"additionalProperties": false}),
            to("#"),
            &[],
            &["{\"x\": {}}"],
            &["3", "{\"y\": 1}"],
        ),
        reference(
            json!({"$defs": {"N": {"type": "object", "properties": {"next": to("#/$defs/N"), "v": {"type": "integer"}}, "required": ["v"]}}}),
            to("#/$defs/N"),
            &[],
            &["{\"next\": {\"v\": 2}, \"v\": 1}"],
            &["{\"next\": {}, \"v\": 1}"],
        ),
        reference(
            json!({"$defs": {"N": {"type": "object", "properties": {"next": to("#/$defs/N")}, "required": ["next"]}}}),
            to("#/$defs/N"),
            &["*"],
            &["{\"next\": 3}"],
            &["{}"],
        ),
        reference(
            json!({"$defs": {"A": to("#/$defs/B"), "B": to("#/$defs/A")}}),
            to("#/$defs/A"),
            &["*"],
            &["3"],
            &[],
        ),
        reference(
            json!({"$defs": {"W": {"type": "string", "pattern": "a$b"}}}),
            to("#/$defs/W"),
            &["*"],
            &["\"x\""],
            &["3"],
        ),
    ]
}

/// A tool whose property `x` is a reference into the rest of its schema.
fn reference(
    whole: Value,
    property: Value,
    left: &'static [&'static str],
    valid: &'static [&'static str],
    invalid: &'static [&'static str],
) -> (Value, Case) {
    let mut whole = whole;
    whole["type"] = json!("object");
    whole["properties"]["x"] = property.clone();
    (whole, case(property, left, valid, invalid))
}
