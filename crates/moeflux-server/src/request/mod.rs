//! How the body of a request is read: into a struct, with the path of the part that is wrong, and
//! with a list of the fields that the struct does not have.
//!
//! Fields are of three classes. A field that the struct has is used or, where the server cannot do
//! what it asks for, refused by name. A *hint* ([`Body::HINTS`]) changes nothing here and is
//! dropped. Any other field is dropped as well, but named in the log and in a header of the answer;
//! `--strict` refuses it.
//!
//! Structs are read from JSON objects only and are declared with [`object`]. Enums with a tag would
//! lose paths and unknown fields: a struct with the fields of all variants is read instead, and
//! code looks at its `type`.

mod alternative;
pub(crate) mod hints;
mod ignored;
mod number;
mod object;
mod part;
mod place;
mod problem;
pub(crate) mod schema;
mod string_or;
mod toggle;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use alternative::Alternative;
pub(crate) use ignored::{Accepted, Ignored};
pub(crate) use number::{Integer, Limit, Number, Seed, TokenNumber};
pub(crate) use object::{FromMap, List, object, read_map};
pub(crate) use string_or::StringOr;
pub(crate) use toggle::{Given, Refused, Toggle};

use part::{Notes, Part};

use crate::error::{ApiError, ApiResult};

/// The body of a request.
pub(crate) trait Body: DeserializeOwned {
    /// Fields that are taken and dropped. `[]` stands for the index of an item:
    /// `messages[].cache_control`.
    const HINTS: &'static [&'static [&'static str]];
}

/// A request as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Request<T> {
    pub(crate) body: T,
    /// Fields that are not known here.
    pub(crate) ignored: Ignored,
}

/// Reads a request. Its unknown fields are not yet [accepted](Ignored::accept).
pub(crate) fn read<T: Body>(value: Value) -> ApiResult<Request<T>> {
    if !value.is_object() {
        return Err(ApiError::field("body", "it must be a JSON object"));
    }
    let notes = Notes::new(Ignored::new(T::HINTS));
    match T::deserialize(Part::body(value, &notes)) {
        Ok(body) => Ok(Request { body, ignored: notes.ignored.into_inner() }),
        Err(err) => Err(problem::refusal("", &notes.failed_at(), &err)),
    }
}

/// Reads the part of a request that stands at a path. Unknown fields are dropped.
pub(crate) fn read_part<T: DeserializeOwned>(value: Value, at: &str) -> ApiResult<T> {
    let notes = Notes::new(Ignored::default());
    let part = T::deserialize(Part::body(value, &notes));
    part.map_err(|err| problem::refusal(at, &notes.failed_at(), &err))
}

#[cfg(test)]
mod tests;
