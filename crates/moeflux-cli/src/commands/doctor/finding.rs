//! One thing that was looked at.

use serde_json::{Value, json};

use crate::words::wrapped;

/// Columns of a report.
const WIDTH: usize = 100;

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// Models run, and slower or with fewer features than they could.
    Poor,
    /// Models do not run.
    Fail,
    /// The system does not say.
    Unknown,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Good => "ok",
            State::Note => "note",
            State::Poor => "poor",
            State::Fail => "FAIL",
            State::Unknown => "?",
        }
    }
}

/// What was looked at, what it is, and what to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    pub(super) state: State,
    pub(super) text: String,
    pub(super) remedy: Option<String>,
    /// The figures of `text`, for programs.
    pub(super) facts: Value,
}

impl Finding {
    pub(super) fn new(name: &'static str, state: State, text: impl Into<String>) -> Finding {
        Finding { name, state, text: text.into(), remedy: None, facts: json!({}) }
    }

    /// What the system does not say.
    pub(super) fn unknown(name: &'static str, why: impl Into<String>) -> Finding {
        Finding::new(name, State::Unknown, why)
    }

    /// What to do about it.
    pub(super) fn remedy(self, remedy: impl Into<String>) -> Finding {
        Finding { remedy: Some(remedy.into()), ..self }
    }

    pub(super) fn facts(self, facts: Value) -> Finding {
        Finding { facts, ..self }
    }

    pub(super) fn to_text(&self) -> String {
        const INDENT: &str = "                    ";
        let indented = |text: &str| {
            let lines = wrapped(text, WIDTH - INDENT.len());
            lines.lines().map(str::trim_start).collect::<Vec<_>>().join(&format!("\n{INDENT}"))
        };
        let mut text =
            format!("{:<5} {:<13} {}\n", self.state.name(), self.name, indented(&self.text));
        if let Some(remedy) = &self.remedy {
            text.push_str(&format!("{INDENT}to do: {}\n", indented(remedy)));
        }
        text
    }

    pub(super) fn to_json(&self) -> Value {
        let state = match self.state {
            State::Good => "good",
            State::Note => "note",
            State::Poor => "poor",
            State::Fail => "fail",
            State::Unknown => "unknown",
        };
        json!({
            "name": self.name,
            "state": state,
            "text": self.text,
            "remedy": self.remedy,
            "facts": self.facts,
        })
    }
}
