//! Bodies of requests: refusals, numbers, and the list of unknown fields.

use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
struct Outer {
    name: String,
    count: Option<Integer<1, 16>>,
    share: Option<Number<0, 2>>,
    limit: Option<Limit<1>>,
    seed: Option<Seed>,
    items: Option<List<StringOr<Inner>, 3>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
struct Inner {
    kind: String,
    is_on: Option<bool>,
    text: Option<StringOr<Vec<String>>>,
}

object!(Outer, Inner);

impl Body for Outer {
    const HINTS: &'static [&'static [&'static str]] = &[&["hint"], &["items[].hint"]];
}

fn read_outer(value: Value) -> ApiResult<Request<Outer>> {
    read::<Outer>(value)
}

fn refused(value: Value) -> (String, String) {
    let error = read_outer(value).unwrap_err();
    (error.param.unwrap(), error.message)
}

#[test]
fn refusals_name_the_path_and_say_what_is_needed() {
    let cases = [
        (json!([]), "body", "it must be a JSON object"),
        (json!({}), "name", "it is missing"),
        (json!({"name": null}), "name", "it is missing"),
        (json!({"name": 3}), "name", "it must be a string"),
        (json!({"name": "", "count": 0}), "count", "it must be a whole number, from 1 to 16"),
        (json!({"name": "", "count": 1.5}), "count", "it must be a whole number, from 1 to 16"),
        (json!({"name": "", "count": "1"}), "count", "it must be a whole number, from 1 to 16"),
        (json!({"name": "", "share": 2.5}), "share", "it must be a number from 0 to 2"),
        (json!({"name": "", "share": []}), "share", "it must be a number from 0 to 2"),
        (
            json!({"name": "", "limit": -2}),
            "limit",
            "it must be a whole number, 1 or more, or -1 for no limit",
        ),
        (json!({"name": "", "seed": 1e30}), "seed", "it must be a whole number of 64 bits"),
        (json!({"name": "", "items": {}}), "items", "it must be a list"),
        (json!({"name": "", "items": ["", "", "", ""]}), "items", "it may hold at most 3"),
        (json!({"name": "", "items": ["", 5]}), "items[1]", "it must be a string or an object"),
        (json!({"name": "", "items": ["", ["x"]]}), "items[1]", "it must be a string or an object"),
        (json!({"name": "", "items": ["", {}]}), "items[1].kind", "it is missing"),
        (
            json!({"name": "", "items": [{"kind": "", "is_on": 1}]}),
            "items[0].is_on",
            "it must be true or false",
        ),
        (
            json!({"name": "", "items": [{"kind": "", "text": {}}]}),
            "items[0].text",
            "it must be a string or a list",
        ),
        (
            json!({"name": "", "items": [{"kind": "", "text": ["", 1]}]}),
            "items[0].text[1]",
            "it must be a string",
        ),
    ];
    for (value, param, problem) in cases {
        let shown = value.to_string();
        assert_eq!(refused(value), (param.into(), format!("{param}: {problem}")), "{shown}");
    }
}

#[test]
fn whole_numbers_may_be_written_as_others_and_saturate() {
    let value = json!({"name": "", "count": 3.0, "limit": 1e30, "seed": -5.0, "share": 1});
    let body = read_outer(value).unwrap().body;
    assert_eq!(body.count, Some(Integer(3)));
    assert_eq!(body.limit, Some(Limit(Some(usize::MAX))));
    assert_eq!(body.seed, Some(Seed(Some(-5i64 as u64))));
    assert_eq!(body.share, Some(Number(1.0)));
    let value = json!({"name": "", "limit": -1, "seed": -1, "count": null});
    let body = read_outer(value).unwrap().body;
    assert_eq!((body.limit, body.seed, body.count), (Some(Limit(None)), Some(Seed(None)), None));
}

#[test]
fn unknown_fields_are_listed_and_hints_are_not() {
    let value = json!({
        "name": "", "hint": 1, "mood": null, "a\nb,c": {"d": 1},
        "items": [
            {"kind": "", "hint": 1},
            {"kind": "", "tone": 1},
            {"kind": "", "tone": 1, "x".repeat(100): 1},
        ],
    });
    let ignored = read_outer(value).unwrap().ignored;
    let long = format!("items[2].{}...", "x".repeat(64));
    assert_eq!(ignored.header().unwrap(), format!("mood, a?b?c, items[1].tone, {long}"));
    let patterns: Vec<&str> = ignored.patterns().take(3).collect();
    assert_eq!(patterns, ["mood", "a?b?c", "items[].tone"]);
    assert!(read_outer(json!({"name": ""})).unwrap().ignored.header().is_none());
}

#[test]
fn a_list_of_unknown_fields_is_bounded() {
    let mut value = json!({"name": ""});
    for i in 0..1000 {
        value[format!("field_of_a_rather_long_name_{i}_{}", "x".repeat(30))] = json!(i);
    }
    let header = read_outer(value).unwrap().ignored.header().unwrap();
    assert!(header.len() < 1100 && header.ends_with(" more"), "{header}");
    let n: usize = header.rsplit(' ').nth(1).unwrap().parse().unwrap();
    assert_eq!(header.matches(", ").count() + n, 1000);
}
