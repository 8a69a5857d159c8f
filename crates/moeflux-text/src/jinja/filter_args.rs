//! Arguments of filters.

use minijinja::Error;

use super::args::{Args, expect_text};
use super::python::check_width;

/// The width of an indentation or a column that a filter got.
pub(super) fn width_argument(args: &mut Args, name: &str, default: i64) -> Result<usize, Error> {
    check_width(args.integer(name)?.unwrap_or(default))
}

/// The text that a filter got as an argument.
pub(super) fn text_argument(args: &mut Args, name: &str, default: &str) -> Result<String, Error> {
    match args.take(name)? {
        Some(value) => expect_text(&value, name).map(str::to_owned),
        None => Ok(default.to_owned()),
    }
}
