//! Which part of a schema the grammar library refuses.
//!
//! The library refuses a schema as a whole and says why, not where. Trials compile parts of it
//! until the smallest one is found that is refused by itself. A vocabulary of single bytes makes a
//! trial take about a millisecond.

use std::collections::HashMap;
use std::time::Instant;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::ApproximateTokEnv;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::limits;
use super::schema::{LeftOut, Path, children_mut, remove_with_dependents};
use crate::guard::catch_panic;

/// Keywords in the order in which they are tried to be left out: those that say most come last.
const KEYWORDS: [&str; 24] = [
    "pattern",
    "format",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "patternProperties",
    "enum",
    "const",
    "oneOf",
    "anyOf",
    "allOf",
    "$ref",
    "prefixItems",
    "items",
    "type",
];

/// Compiles schemas without a model's vocabulary.
pub(super) struct Trials {
    factory: ParserFactory,
}

/// How schemas are tried.
#[derive(Clone, Copy)]
pub(super) struct TrialOptions {
    /// Whether the library may itself ignore what it cannot hold a model to.
    pub(super) is_lenient: bool,
    /// When there is no more time: the whole part that is looked at is then left out.
    pub(super) deadline: Instant,
}

/// A schema whose refused parts are being left out.
struct Search<'a> {
    trials: &'a Trials,
    options: TrialOptions,
    definitions: Value,
    /// Whether references count as any value.
    hides_references: bool,
    left_out: Vec<LeftOut>,
}

impl Trials {
    pub(super) fn new() -> Result<Trials, String> {
        let factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env());
        let mut factory = factory.map_err(|err| err.to_string())?;
        factory.quiet();
        limits::bound(factory.limits_mut());
        Ok(Trials { factory })
    }

    /// Leaves out what the library refuses of a schema, and says what that was.
    ///
    /// `places` says where the schema's definitions were in the original.
    pub(super) fn loosen(
        &self,
        schema: &mut Value,
        places: &HashMap<String, Path>,
        options: TrialOptions,
    ) -> Vec<LeftOut> {
        let definitions = schema.as_object_mut().and_then(|fields| fields.remove("$defs"));
        let mut search = Search {
            trials: self,
            options,
            definitions: definitions.clone().unwrap_or_default(),
            hides_references: true,
            left_out: Vec::new(),
        };
        if let Some(Value::Object(mut definitions)) = definitions {
            for (name, definition) in &mut definitions {
                search.loosen(definition, &places.get(name).cloned().unwrap_or_default());
            }
            search.definitions = Value::Object(definitions);
        }
        search.loosen(schema, &Path::default());
        search.hides_references = false;
        // Calls in tags have a grammar for each argument.
        for (child, path) in children_mut(schema, &Path::default()) {
            search.loosen(child, &path);
        }
        search.loosen(schema, &Path::default());
        if let (Some(fields), Value::Object(all)) = (schema.as_object_mut(), search.definitions) {
            fields.insert(String::from("$defs"), Value::Object(all));
        }
        search.left_out
    }

    fn compile(&self, schema: Value, is_lenient: bool) -> Result<(), String> {
        let mut schema = schema;
        schema["x-guidance"] = json!({"whitespace_flexible": false, "lenient": is_lenient});
        let lark = format!("start: %json {schema}");
        let compiled = catch_panic(|| {
            let mut matcher =
                Matcher::new(self.factory.create_parser(TopLevelGrammar::from_lark(lark)));
            // What is too complex may show with the first step only.
            let first = matcher.compute_mask();
            matcher.get_error().or(first.err().map(|err| err.to_string()))
        });
        match compiled {
            Ok(None) => Ok(()),
            Ok(Some(problem)) | Err(problem) => Err(reason(&problem)),
        }
    }
}

impl Search<'_> {
    fn compile(&self, schema: &Value) -> Result<(), String> {
        let mut whole = match schema {
            Value::Object(_) => schema.clone(),
            Value::Bool(false) => json!({"not": {}}),
            _ => return Ok(()),
        };
        if self.hides_references {
            hide_references(&mut whole);
        } else if self.definitions.is_object() {
            whole["$defs"] = self.definitions.clone();
        }
        self.trials.compile(whole, self.options.is_lenient)
    }

    fn loosen(&mut self, schema: &mut Value, path: &Path) {
        if Instant::now() >= self.options.deadline {
            self.leave_out(path, "it takes too long to compile");
            *schema = json!({});
            return;
        }
        let Err(mut problem) = self.compile(schema) else { return };
        if Instant::now() < self.options.deadline {
            for (child, path) in children_mut(schema, path) {
                self.loosen(child, &path);
            }
            match self.compile(schema) {
                Ok(()) => return,
                Err(other) => problem = other,
            }
            if self.leave_one_out(schema, path, &problem) {
                return;
            }
        }
        self.leave_out(path, &problem);
        *schema = json!({});
    }

    /// Leaves out the keyword without which a schema compiles, or several. Whether that was enough.
    fn leave_one_out(&mut self, schema: &mut Value, path: &Path, problem: &str) -> bool {
        let present = KEYWORDS.iter().filter(|key| schema.get(**key).is_some());
        let present: Vec<&str> = present.copied().collect();
        for key in &present {
            let mut without = schema.clone();
            remove_with_dependents(&mut without, key);
            if self.compile(&without).is_ok() {
                *schema = without;
                self.leave_out(&path.key(key), problem);
                return true;
            }
            if Instant::now() >= self.options.deadline {
                return false;
            }
        }
        let mut without = schema.clone();
        let mut lost = Vec::new();
        for key in present {
            remove_with_dependents(&mut without, key);
            lost.push(key);
            if self.compile(&without).is_ok() {
                *schema = without;
                lost.iter().for_each(|key| self.leave_out(&path.key(key), problem));
                return true;
            }
        }
        false
    }

    fn leave_out(&mut self, path: &Path, reason: &str) {
        self.left_out.push(LeftOut { path: path.shown(), reason: reason.to_owned() });
    }
}

fn hide_references(schema: &mut Value) {
    remove_with_dependents(schema, "$ref");
    for (child, _) in children_mut(schema, &Path::default()) {
        hide_references(child);
    }
}

/// What the library says, in one line and without the place in a grammar that clients never see.
pub(super) fn reason(problem: &str) -> String {
    const MAX_CHARS: usize = 160;
    let text = problem.split_once("JSON schema: ").map_or(problem, |(_, text)| text);
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    // Errors of regular expressions draw the place first.
    let line = lines().find_map(|line| line.strip_prefix("error: ")).or_else(|| lines().next());
    line.unwrap_or("the grammar library refuses it").chars().take(MAX_CHARS).collect()
}
