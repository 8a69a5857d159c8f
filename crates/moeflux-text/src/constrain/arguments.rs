//! The arguments of a call as rules of a grammar: tagged one by one, or as an object of JSON or of a
//! notation like it.
//!
//! Arguments come in any order, each at most once as far as a grammar of a bounded size can say
//! so. Nested objects may have their members in any order too, to a bounded depth.

use serde_json::Value;

use super::rules::{Rules, close, lenient, quoted, regex_char};
use crate::{Kind, Parameters, TaggedCalls};

/// Members of an object that are counted, for a grammar with few tools. Each doubles the rules.
const MAX_COUNTED: usize = 6;
/// Members of a nested object that are counted.
const MAX_COUNTED_NESTED: usize = 3;
/// Levels of nested objects whose members may come in any order.
pub(super) const MAX_NESTED: usize = 2;
/// Rules that the members of all tools may make.
pub(super) const MAX_RULES: usize = 2048;

/// Members of an object, in any order.
#[derive(Default)]
struct Members {
    /// Rules of those that are allowed once.
    counted: Vec<String>,
    /// How many of the first of them must be there.
    n_required: usize,
    /// Rules of those that may be repeated.
    free: Vec<String>,
    /// Between two members.
    separator: &'static str,
}

/// How deep an object is, and how many of its members are counted.
#[derive(Clone, Copy)]
pub(super) struct Level {
    pub(super) depth: usize,
    max_counted: usize,
}

impl Level {
    /// That of the arguments of one of `n_tools`.
    pub(super) fn of_arguments(n_tools: usize) -> Level {
        let rules_each = MAX_RULES / n_tools.max(1);
        let max_counted = rules_each.checked_ilog2().unwrap_or(0) as usize;
        Level { depth: 0, max_counted: max_counted.min(MAX_COUNTED) }
    }

    pub(super) fn inner(self) -> Level {
        Level {
            depth: self.depth + 1,
            max_counted: self.max_counted.saturating_sub(1).min(MAX_COUNTED_NESTED),
        }
    }
}

/// How an object is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notation<'a> {
    /// As JSON.
    Json,
    /// With names as they are, and strings between these.
    Bare { quote: &'a str },
}

impl Notation<'_> {
    /// The name of a member.
    fn key(self, name: &str) -> String {
        match self {
            Notation::Json => Value::from(name).to_string(),
            Notation::Bare { .. } => name.to_owned(),
        }
    }

    /// A regular expression for the names of further members.
    pub(super) fn any_key(self) -> &'static str {
        match self {
            Notation::Json => "/\"[^\"\\\\\\x00-\\x1f]{0,100}\"/",
            Notation::Bare { .. } => "/[^<>\"\\\\{}:,\\[\\]\\x00-\\x20]{1,100}/",
        }
    }
}

impl Rules<'_> {
    /// Arguments as one object. `root` has the definitions that the schema refers to.
    pub(super) fn object_arguments(
        &mut self,
        notation: Notation<'_>,
        schema: &Value,
        root: &Value,
        level: Level,
    ) -> String {
        let mut parameters = Parameters::within(schema, root);
        let n_required = parameters.put_required_first();
        let mut members = Members { n_required, separator: "COMMA", ..Members::default() };
        for (key, property) in &parameters.properties {
            if self.is_too_large() {
                break;
            }
            let key = quoted(&notation.key(key)).unwrap_or_default();
            let value = self.value(notation, property, root, level.inner());
            members.counted.push(self.rule(&format!("{key} COLON {value}")));
        }
        if let Some(others) = &parameters.others {
            let names =
                names_but(&parameters, |name| notation.key(name).trim_matches('"').to_owned());
            let key = self.once("KEY", &format!("{}{names}", notation.any_key()));
            let value = self.value(notation, others, root, level.inner());
            members.free.push(self.rule(&format!("{key} COLON {value}")));
        }
        let members = self.unordered(members, level);
        self.rule(&format!("\"{{\" {members} \"}}\""))
    }

    /// A value of that notation.
    pub(super) fn value(
        &mut self,
        notation: Notation<'_>,
        schema: &Value,
        root: &Value,
        level: Level,
    ) -> String {
        match notation {
            Notation::Json => self.json_value(schema, root, level),
            Notation::Bare { quote } => self.bare_value(quote, schema, root, level),
        }
    }

    /// A JSON value.
    fn json_value(&mut self, schema: &Value, root: &Value, level: Level) -> String {
        let is_object = schema["type"] == "object"
            && schema["properties"].as_object().is_some_and(|all| all.len() > 1)
            && !schema["additionalProperties"].is_object();
        if is_object && level.depth <= MAX_NESTED {
            return self.object_arguments(Notation::Json, schema, root, level);
        }
        let mut schema = lenient(&self.with_definitions(schema, root));
        close(&mut schema);
        self.json(&schema)
    }

    /// Arguments between tags.
    pub(super) fn tagged_arguments(
        &mut self,
        calls: &TaggedCalls,
        schema: &Value,
        level: Level,
    ) -> String {
        let mut parameters = Parameters::of(schema);
        let n_required = parameters.put_required_first();
        let mut members = Members { n_required, ..Members::default() };
        for (key, property) in &parameters.properties {
            if self.is_too_large() {
                break;
            }
            let name = self.literal(&format!("{}{key}", calls.key));
            let name = self.rule(&name);
            let kind = Kind::of(property, schema);
            let property = self.with_definitions(property, schema);
            members.counted.push(self.tagged(calls, &name, &kind, &property));
        }
        if let Some(others) = &parameters.others {
            let names = names_but(&parameters, str::to_owned);
            let name = self.once("KEY", &format!("/[^<>\"=\\n]{{1,100}}/{names}"));
            let name = format!("{} {name}", self.literal(&calls.key));
            let name = self.rule(&name);
            let kind = Kind::of(others, schema);
            let others = self.with_definitions(others, schema);
            members.free.push(self.tagged(calls, &name, &kind, &others));
        }
        self.unordered(members, level)
    }

    /// One argument: the rule of its name, its value, and the tags around that.
    fn tagged(&mut self, calls: &TaggedCalls, name: &str, kind: &Kind, schema: &Value) -> String {
        let end = self.loose(&calls.value_end);
        let value = self.loose(&calls.value);
        let mut forms = Vec::new();
        if let Some(choices) = kind.choices.as_ref().filter(|_| kind.is_text()) {
            let choices = self.one_of(choices).unwrap_or_default();
            forms.push(format!("{name} {value} ({choices}) {end}"));
        } else if kind.text {
            let text = self.text_until(&calls.value_end);
            forms.push(format!("{name} {value} {text}"));
        }
        let before_json = match &calls.json_value {
            Some(text) => Some(self.loose(text)),
            None => (!kind.text).then_some(value),
        };
        if let Some(value) = before_json.filter(|_| !kind.is_text()) {
            let mut ways = vec![self.json(&lenient(schema))];
            if calls.json_value.is_none() {
                // Some templates show their models constants as Python writes them.
                let has = |name: &str| kind.types.iter().any(|known| known == name);
                ways.extend(has("boolean").then(|| String::from("\"True\" | \"False\"")));
                ways.extend(has("null").then(|| String::from("\"None\"")));
            }
            forms.push(format!("{name} {value} ({}) {end}", ways.join(" | ")));
        }
        self.rule(&forms.join(" | "))
    }

    /// Members in any order: a rule for each set of members that were given already.
    fn unordered(&mut self, mut members: Members, level: Level) -> String {
        let n_counted = members.counted.len().min(level.max_counted);
        let free = [members.counted.split_off(n_counted), members.free].concat();
        let free = (!free.is_empty()).then(|| self.rule(&free.join(" | ")));
        let n_required = members.n_required.min(n_counted);
        let (all_required, n_sets) = ((1_usize << n_required) - 1, 1_usize << n_counted);
        let separator = members.separator;
        let mut after = vec![String::new(); n_sets];
        for given in (0..n_sets).rev() {
            let mut ways = next_members(&members.counted, &after, given, separator);
            if given & all_required == all_required {
                ways.push(String::from("\"\""));
            }
            let repeated =
                free.as_ref().map_or(String::new(), |free| format!("({separator} {free})* "));
            after[given] = self.rule(&format!("{repeated}({})", ways.join(" | ")));
        }
        if separator.is_empty() {
            return after.swap_remove(0);
        }
        // Nothing stands before the first member.
        let mut first = next_members(&members.counted, &after, 0, "");
        first.extend(free.iter().map(|member| format!("{member} {}", after[0])));
        first.extend((n_required == 0).then(|| String::from("\"\"")));
        self.rule(&first.join(" | "))
    }

    /// One of several texts, as a single terminal: the library takes long for thousands of
    /// alternatives. `None` where there is no text.
    pub(super) fn one_of(&mut self, texts: &[String]) -> Option<String> {
        let texts: Vec<String> = texts.iter().filter_map(|text| quoted(text)).collect();
        (!texts.is_empty()).then(|| self.once("ONE", &texts.join(" | ")))
    }
}

/// Each member that is not yet `given`, and what may follow it.
fn next_members(
    members: &[String],
    after: &[String],
    given: usize,
    separator: &str,
) -> Vec<String> {
    let missing = members.iter().enumerate().filter(|(i, _)| given >> i & 1 == 0);
    missing.map(|(i, member)| format!("{separator} {member} {}", after[given | 1 << i])).collect()
}

/// Excludes the names of known arguments from a terminal.
fn names_but(parameters: &Parameters, written: impl Fn(&str) -> String) -> String {
    let names = parameters.properties.iter().map(|(name, _)| written(name));
    let names: Vec<String> = names.map(|name| name.chars().map(regex_char).collect()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" & ~/\"?({})\"?/", names.join("|")),
    }
}
