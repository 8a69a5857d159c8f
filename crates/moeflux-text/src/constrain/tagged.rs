//! The arguments of a call between tags, one by one, as rules of a grammar.

use serde_json::Value;

use super::members::{Level, Members, names_but};
use super::rules::{Rules, lenient};
use crate::{Kind, Parameters, TaggedCalls};

/// Arguments between tags.
pub(super) fn tagged_arguments(
    rules: &mut Rules<'_>,
    calls: &TaggedCalls,
    schema: &Value,
    level: Level,
) -> String {
    let mut parameters = Parameters::of(schema);
    let n_required = parameters.put_required_first();
    let mut members = Members { n_required, ..Members::default() };
    for (key, property) in &parameters.properties {
        if rules.is_too_large() {
            break;
        }
        let name = rules.literal(&format!("{}{key}", calls.key));
        let name = rules.rule(&name);
        let kind = Kind::of(property, schema);
        let property = rules.with_definitions(property, schema);
        members.counted.push(tagged(rules, calls, &name, &kind, &property));
    }
    if let Some(others) = &parameters.others {
        let names = names_but(&parameters, str::to_owned);
        let name = rules.once("KEY", &format!("/[^<>\"=\\n]{{1,100}}/{names}"));
        let name = format!("{} {name}", rules.literal(&calls.key));
        let name = rules.rule(&name);
        let kind = Kind::of(others, schema);
        let others = rules.with_definitions(others, schema);
        members.free.push(tagged(rules, calls, &name, &kind, &others));
    }
    members.unordered(rules, level)
}

/// One argument: the rule of its name, its value, and the tags around that.
fn tagged(
    rules: &mut Rules<'_>,
    calls: &TaggedCalls,
    name: &str,
    kind: &Kind,
    schema: &Value,
) -> String {
    let end = rules.loose(&calls.value_end);
    let value = rules.loose(&calls.value);
    let mut forms = Vec::new();
    if let Some(choices) = kind.choices.as_ref().filter(|_| kind.is_text()) {
        let choices = rules.one_of(choices).unwrap_or_default();
        forms.push(format!("{name} {value} ({choices}) {end}"));
    } else if kind.text {
        let text = rules.text_until(&calls.value_end);
        forms.push(format!("{name} {value} {text}"));
    }
    let before_json = match &calls.json_value {
        Some(text) => Some(rules.loose(text)),
        None => (!kind.text).then_some(value),
    };
    if let Some(value) = before_json.filter(|_| !kind.is_text()) {
        let mut ways = vec![rules.json(&lenient(schema))];
        if calls.json_value.is_none() {
            // Some templates show their models constants as Python writes them.
            let has = |name: &str| kind.types.iter().any(|known| known == name);
            ways.extend(has("boolean").then(|| String::from("\"True\" | \"False\"")));
            ways.extend(has("null").then(|| String::from("\"None\"")));
        }
        forms.push(format!("{name} {value} ({}) {end}", ways.join(" | ")));
    }
    rules.rule(&forms.join(" | "))
}
