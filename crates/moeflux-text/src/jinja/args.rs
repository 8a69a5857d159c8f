//! The arguments of filters, methods and functions, by position or by name as Python takes them.

use minijinja::value::{Kwargs, Rest, Value, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind};

/// What a filter or a function gets.
pub(super) type Given = Rest<ValueOrKwargs>;

/// Arguments of one call that are still to be taken.
pub(super) struct Args {
    positional: std::vec::IntoIter<Value>,
    kwargs: Kwargs,
}

impl Args {
    pub(super) fn new(args: &[Value]) -> Result<Args, Error> {
        let (Rest(positional), kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
        Ok(Args { positional: positional.into_iter(), kwargs })
    }

    pub(super) fn of(given: Given) -> Result<Args, Error> {
        Args::new(&given.into_values())
    }

    /// The next argument by position, or the one called `name`.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<Value>, Error> {
        match self.positional.next() {
            Some(value) => Ok(Some(value)),
            None if self.kwargs.has(name) => self.kwargs.get(name).map(Some),
            None => Ok(None),
        }
    }

    /// The next argument by position, or the one called `name`, which must be there.
    pub(super) fn need(&mut self, name: &str) -> Result<Value, Error> {
        self.take(name)?.ok_or_else(|| {
            Error::new(ErrorKind::MissingArgument, format!("argument {name} is missing"))
        })
    }

    /// A text, or nothing for `none` and a missing argument.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        match self.take(name)? {
            None => Ok(None),
            Some(value) if value.is_none() => Ok(None),
            Some(value) => expect_text(&value, name).map(|text| Some(text.to_owned())),
        }
    }

    /// An integer, or nothing for `none` and a missing argument.
    pub(super) fn integer(&mut self, name: &str) -> Result<Option<i64>, Error> {
        match self.take(name)? {
            None => Ok(None),
            Some(value) if value.is_none() => Ok(None),
            Some(value) => i64::try_from(value).map(Some),
        }
    }

    /// Whether an argument is true as Python sees it.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool, Error> {
        Ok(self.take(name)?.is_some_and(|value| value.is_true()))
    }

    /// The next argument by position.
    pub(super) fn positional(&mut self) -> Option<Value> {
        self.positional.next()
    }

    /// All arguments by name.
    pub(super) fn keywords(&self) -> Result<Vec<(String, Value)>, Error> {
        let get = |name: &str| Ok((name.to_owned(), self.kwargs.get(name)?));
        self.kwargs.args().map(get).collect()
    }

    /// An error if there are more arguments.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        if self.positional.next().is_some() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        self.kwargs.assert_all_used()
    }
}

pub(super) fn expect_text<'a>(value: &'a Value, name: &str) -> Result<&'a str, Error> {
    value.as_str().ok_or_else(|| invalid(format!("{name} must be a text, not {}", value.kind())))
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}
