//! Places in a body.

use std::fmt::{self, Display};

/// Where a part of a body stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    Body,
    Item { list: &'a Place<'a>, index: usize },
    Field { object: &'a Place<'a>, name: &'a str },
}

impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Body => Ok(()),
            Place::Item { list, index } => write!(f, "{list}[{index}]"),
            Place::Field { object: Place::Body, name } => f.write_str(name),
            Place::Field { object, name } => write!(f, "{object}.{name}"),
        }
    }
}
