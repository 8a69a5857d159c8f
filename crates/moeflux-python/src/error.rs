//! Errors as exceptions of the package.

use std::fmt;

use moeflux::{Error, ErrorKind, OptionId};
use moeflux_engine::EngineError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// What goes wrong, before it is an exception: made without Python's lock.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: &'static str,
    option: Option<String>,
    text: String,
}

impl Failure {
    /// An option that cannot be used. The text is one line.
    pub(crate) fn of_option(option: &str, text: String) -> Failure {
        Failure { kind: "option", option: Some(option.to_owned()), text }
    }

    /// A part of a request that cannot be used. The text is one line.
    pub(crate) fn of_request(option: &str, text: String) -> Failure {
        Failure { kind: "request", option: Some(option.to_owned()), text }
    }

    /// Something else. The text is one line.
    pub(crate) fn new(kind: &'static str, text: impl Into<String>) -> Failure {
        Failure { kind, option: None, text: text.into() }
    }

    /// The exception.
    pub(crate) fn raise(self, py: Python<'_>) -> PyErr {
        match self.exception(py) {
            Ok(exception) => PyErr::from_value(exception),
            Err(err) => err,
        }
    }

    fn exception(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let class = CLASS.get_or_try_init(py, || {
            let class = py.import("moeflux._errors")?.getattr("Error")?;
            PyResult::Ok(class.unbind())
        })?;
        class.bind(py).call1((self.text, self.kind, self.option))
    }
}

impl From<Error> for Failure {
    fn from(err: Error) -> Failure {
        let option = err.option().map(keyword);
        let text = match option {
            // What is said of a schema does not say what the schema is of.
            Some(option)
                if err.kind() == ErrorKind::Request && !err.to_string().contains(option) =>
            {
                format!("{option}: {err}")
            }
            _ => err.to_string(),
        };
        Failure { kind: kind(err.kind()), option: option.map(str::to_owned), text }
    }
}

impl From<EngineError> for Failure {
    fn from(err: EngineError) -> Failure {
        Error::from(err).into()
    }
}

/// The result of a call into the engine, for Python.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Failure>> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|err| err.into().raise(py))
    }
}

fn kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Model => "model",
        ErrorKind::Option => "option",
        ErrorKind::Memory => "memory",
        ErrorKind::Request => "request",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Busy => "busy",
        ErrorKind::Stopped => "stopped",
        _ => "machine",
    }
}

/// The keyword of an option.
pub(crate) fn keyword(option: OptionId) -> &'static str {
    match option {
        OptionId::Format => "response_format",
        option => option.name(),
    }
}

/// Writes the keyword of an option into messages.
pub(crate) fn write_keyword(option: OptionId, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(keyword(option))
}
