//! Fields of a request that the server does not know.

use std::fmt::Write;

use hyper::header::{HeaderName, HeaderValue};

use super::place::Place;
use crate::error::{ApiError, ApiResult};
use crate::journal::Journal;
use crate::model::Model;
use crate::reply::Reply;

/// Names the fields of a request that were not used.
const HEADER: HeaderName = HeaderName::from_static("x-moeflux-ignored-fields");

/// Fields that are listed at most.
const MAX_LISTED: usize = 32;

/// Characters of a field's name that are shown.
const MAX_NAME: usize = 64;

/// Bytes of the list in a header.
const MAX_HEADER: usize = 1000;

/// Fields of a request that the server does not know, those of the items of a list once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ignored {
    hints: &'static [&'static [&'static str]],
    fields: Vec<Field>,
    /// Fields that are not listed.
    n_more: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// Where it stands: `messages[3].mood`.
    path: String,
    /// The path without its indices: `messages[].mood`.
    pattern: String,
}

impl Ignored {
    pub(super) fn new(hints: &'static [&'static [&'static str]]) -> Ignored {
        Ignored { hints, ..Ignored::default() }
    }

    /// Adds a field, unless it is a hint.
    pub(super) fn add(&mut self, place: &Place<'_>) {
        let mut field = Field { path: String::new(), pattern: String::new() };
        write_path(place, &mut field);
        self.push(field);
    }

    /// Adds a field of which code found that it is not known here.
    pub(crate) fn add_named(&mut self, path: &str) {
        let mut pattern = String::new();
        let mut is_index = false;
        for c in path.chars() {
            is_index &= c != ']';
            if !is_index {
                pattern.push(c);
            }
            is_index |= c == '[';
        }
        self.push(Field { path: shown(path), pattern });
    }

    fn push(&mut self, field: Field) {
        let is_known = self.hints.iter().any(|hints| hints.contains(&field.pattern.as_str()))
            || self.fields.iter().any(|other| other.pattern == field.pattern);
        match self.fields.len() {
            _ if is_known => {}
            MAX_LISTED => self.n_more += 1,
            _ => self.fields.push(field),
        }
    }

    /// Logs these fields: for every request where requests are logged, else once. A strict server
    /// refuses the first of them.
    pub(crate) fn accept(self, model: &Model) -> ApiResult<Accepted> {
        self.accept_by(&model.journal)
    }

    /// As [`Ignored::accept`], of a request that no model answers.
    pub(crate) fn accept_by(self, journal: &Journal) -> ApiResult<Accepted> {
        if journal.is_strict
            && let Some(field) = self.fields.first()
        {
            return Err(ApiError::unsupported(field.path.as_str()));
        }
        for Field { pattern, .. } in &self.fields {
            journal
                .log_once(&format!("{pattern}: this part of a request is not known and not used"));
        }
        Ok(Accepted(self.header().and_then(|text| HeaderValue::from_str(&text).ok())))
    }

    /// Their places, the indices in lists left out.
    #[cfg(test)]
    pub(super) fn patterns(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| field.pattern.as_str())
    }

    /// All of them for a header: ASCII of bounded length. `None` where there are none.
    pub(crate) fn header(&self) -> Option<String> {
        let mut text = String::new();
        let mut n_left = self.fields.len() + self.n_more;
        for field in &self.fields {
            if text.len() + field.path.len() > MAX_HEADER {
                break;
            }
            let separator = if text.is_empty() { "" } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(text, "{separator}{}", field.path);
            n_left -= 1;
        }
        if n_left > 0 {
            let _ = write!(text, ", and {n_left} more");
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Fields that were not used, as a header of the reply names them.
#[derive(Clone, Debug)]
pub(crate) struct Accepted(Option<HeaderValue>);

impl Accepted {
    /// Adds the header to a reply.
    pub(crate) fn mark(self, mut reply: Reply) -> Reply {
        if let Some(value) = self.0 {
            reply.headers_mut().insert(HEADER, value);
        }
        reply
    }
}

fn write_path(place: &Place<'_>, field: &mut Field) {
    match place {
        Place::Body => {}
        Place::Item { list, index } => {
            write_path(list, field);
            let _ = write!(field.path, "[{index}]");
            field.pattern.push_str("[]");
        }
        Place::Field { object, name } => {
            write_path(object, field);
            let separator = if field.path.is_empty() { "" } else { "." };
            let name = shown(name);
            let _ = write!(field.path, "{separator}{name}");
            let _ = write!(field.pattern, "{separator}{name}");
        }
    }
}

/// A name of the client's as logs and headers can hold it.
fn shown(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_graphic() && !",\"\\".contains(c) { c } else { '?' };
    let mut shown: String = name.chars().take(MAX_NAME).map(safe).collect();
    if name.chars().nth(MAX_NAME).is_some() {
        shown.push_str("...");
    }
    shown
}
