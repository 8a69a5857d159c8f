//! What the log has about requests: lines that many of them may cause are there once.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::log::LogFormat;

/// Lines that are remembered so that the log has them once.
const MAX_REMEMBERED: usize = 1000;

/// The log of requests, and whether what they have in excess is refused.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// How it writes lines.
    pub(crate) format: LogFormat,
    /// Whether it has a line for every request.
    pub(crate) has_requests: bool,
    /// Whether fields that are not known are refused.
    pub(crate) is_strict: bool,
    logged: Mutex<HashSet<String>>,
}

impl Journal {
    pub(crate) fn new(format: LogFormat, has_requests: bool, is_strict: bool) -> Journal {
        Journal { format, has_requests, is_strict, logged: Mutex::default() }
    }

    /// Logs a line.
    pub(crate) fn log(&self, line: &str) {
        self.format.log(line);
    }

    /// Logs a line that many requests may cause: for each of them where requests are logged, else
    /// once.
    pub(crate) fn log_once(&self, line: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() == MAX_REMEMBERED {
            logged.clear();
        }
        if logged.insert(line.to_owned()) || self.has_requests {
            self.log(line);
        }
    }
}
