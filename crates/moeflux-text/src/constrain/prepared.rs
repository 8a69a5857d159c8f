//! Grammars whose schemas the library compiles.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::error::ConstraintError;
use super::lark::{AnswerShape, Grammar};
use super::patterns::PatternTrials;
use super::schema::{
    Budget, LeftOut, Path, Simplified, any_arguments, close, simplify, simplify_arguments,
};
use super::trials::{TrialOptions, Trials};

/// How long parts of one request's schemas are tried.
const TRIAL_TIME: Duration = Duration::from_millis(300);

/// A part of a tool's schema that the grammar does not hold the model to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftToModel {
    /// The tool's name.
    pub tool: String,
    /// Where the part is in the schema of the tool's arguments, such as
    /// `properties.to.items.pattern`; empty for all of it.
    pub path: String,
    /// Why, as half a sentence.
    pub reason: String,
}

impl fmt::Display for LeftToModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftToModel { tool, path, reason } = self;
        let path = if path.is_empty() { "its arguments" } else { path };
        write!(f, "tool {tool:?}, {path}: left to the model: {reason}")
    }
}

/// A grammar with simplified schemas.
pub(super) struct Prepared {
    pub(super) grammar: Grammar,
    pub(super) left_to_model: Vec<LeftToModel>,
    /// Where the definitions of the schema of answers were.
    shape_places: HashMap<String, Path>,
    /// Those of the tools.
    tool_places: Vec<HashMap<String, Path>>,
}

impl Prepared {
    /// # Errors
    /// Where a part of the schema of answers would be left out.
    pub(super) fn of(grammar: &Grammar) -> Result<Prepared, ConstraintError> {
        let mut prepared = Prepared {
            grammar: grammar.clone(),
            left_to_model: Vec::new(),
            shape_places: HashMap::new(),
            tool_places: Vec::new(),
        };
        let mut budget = Budget::default();
        if let AnswerShape::Json(schema) = &grammar.shape {
            let Simplified { mut schema, left_out, places } = simplify(schema, &mut budget);
            refuse(left_out)?;
            close(&mut schema);
            prepared.grammar.shape = AnswerShape::Json(schema);
            prepared.shape_places = places;
        }
        for (i, tool) in grammar.tools.iter().enumerate() {
            let Simplified { mut schema, left_out, places } =
                simplify_arguments(&tool["function"]["parameters"], &mut budget);
            close(&mut schema);
            prepared.set(i, schema, left_out);
            prepared.tool_places.push(places);
        }
        Ok(prepared)
    }

    /// Leaves out the patterns of tools that the library could not follow.
    ///
    /// # Errors
    /// Names one of the schema of answers.
    pub(super) fn check_patterns(
        &mut self,
        trials: &mut PatternTrials<'_>,
    ) -> Result<(), ConstraintError> {
        if let AnswerShape::Json(schema) = &self.grammar.shape {
            refuse(trials.loosen(&mut schema.clone(), &self.shape_places))?;
        }
        for i in 0..self.grammar.tools.len() {
            let mut schema = self.schema(i).clone();
            let left_out = trials.loosen(&mut schema, &self.tool_places[i]);
            if !left_out.is_empty() {
                self.set(i, schema, left_out);
            }
        }
        Ok(())
    }

    /// Looks for what the library refuses of the schema of answers.
    ///
    /// # Errors
    /// Names the part.
    pub(super) fn check_shape(&self, trials: &Trials) -> Result<(), ConstraintError> {
        let AnswerShape::Json(schema) = &self.grammar.shape else { return Ok(()) };
        let options = TrialOptions { is_lenient: false, deadline: Instant::now() + TRIAL_TIME };
        refuse(trials.loosen(&mut schema.clone(), &self.shape_places, options))
    }

    /// Leaves out what the library refuses of the tools' schemas, as far as there is time.
    pub(super) fn loosen_tools(&mut self, trials: &Trials) {
        let options = TrialOptions { is_lenient: true, deadline: Instant::now() + TRIAL_TIME };
        for i in 0..self.grammar.tools.len() {
            if Instant::now() >= options.deadline {
                return;
            }
            let mut schema = self.schema(i).clone();
            let left_out = trials.loosen(&mut schema, &self.tool_places[i], options);
            if !left_out.is_empty() {
                self.set(i, schema, left_out);
            }
        }
    }

    /// Allows any arguments for the `n` tools with the largest schemas; `false` where all tools
    /// allow any already.
    pub(super) fn free_largest_tools(&mut self, n: usize, problem: &str) -> bool {
        let any = any_arguments();
        let n_tools = self.grammar.tools.len();
        let mut held: Vec<usize> = (0..n_tools).filter(|i| *self.schema(*i) != any).collect();
        held.sort_by_cached_key(|i| std::cmp::Reverse(self.schema(*i).to_string().len()));
        for i in held.iter().take(n) {
            let reason = super::trials::reason(problem);
            self.set(*i, any.clone(), vec![LeftOut { path: String::new(), reason }]);
        }
        !held.is_empty()
    }

    /// Notes that the grammar has no room for the arguments of tools from the `n_held`-th on.
    pub(super) fn leave_tools_from(&mut self, n_held: usize) {
        let any = any_arguments();
        for i in n_held..self.grammar.tools.len() {
            if *self.schema(i) != any {
                let reason = String::from("the tools before it fill the grammar");
                self.set(i, any.clone(), vec![LeftOut { path: String::new(), reason }]);
            }
        }
    }

    fn schema(&self, i: usize) -> &Value {
        &self.grammar.tools[i]["function"]["parameters"]
    }

    fn set(&mut self, i: usize, schema: Value, left_out: Vec<LeftOut>) {
        let function = &mut self.grammar.tools[i]["function"];
        let name = function["name"].as_str().unwrap_or_default().to_owned();
        function["parameters"] = match schema {
            Value::Object(_) => schema,
            _ => json!({}),
        };
        let left = left_out.into_iter().map(|LeftOut { path, reason }| LeftToModel {
            tool: name.clone(),
            path,
            reason,
        });
        self.left_to_model.extend(left);
    }
}

/// Refuses a schema of which something was left out.
fn refuse(left_out: Vec<LeftOut>) -> Result<(), ConstraintError> {
    match left_out.into_iter().next() {
        Some(LeftOut { path, reason }) => Err(ConstraintError::Schema { path, reason }),
        None => Ok(()),
    }
}
