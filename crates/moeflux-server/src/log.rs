//! Lines on standard error.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::str::FromStr;

use chrono::{SecondsFormat, Utc};
use moeflux_core::visible;
use serde::Serialize;

/// How lines of the log are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(String::from("write text or json")),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        })
    }
}

/// A line that says something in words.
#[derive(Debug, Serialize)]
struct Words<'a> {
    time: String,
    message: &'a str,
}

impl LogFormat {
    /// Writes a line.
    pub(crate) fn log(self, text: &str) {
        match self {
            LogFormat::Text => write(text),
            LogFormat::Json => write_json(&Words { time: time(), message: text }),
        }
    }

    /// Writes a line about what has a form of its own in each format.
    pub(crate) fn log_entry(self, entry: &(impl fmt::Display + Serialize)) {
        match self {
            LogFormat::Text => write(&entry.to_string()),
            LogFormat::Json => write_json(entry),
        }
    }
}

/// The time of day as logs have it, to a millisecond.
pub(crate) fn time() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}

fn write(text: &str) {
    let mut out = io::stderr();
    let text = if out.is_terminal() { visible(text) } else { text.into() };
    // There is no other place to say that standard error is closed.
    let _ = writeln!(out, "moeflux: {text}");
}

fn write_json(entry: &impl Serialize) {
    let mut line = serde_json::to_vec(entry).expect("entries are plain data with texts for keys");
    line.push(b'\n');
    let _ = io::stderr().write_all(&line);
}
