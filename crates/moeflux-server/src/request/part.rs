//! A body as serde reads it: what is not read is noted, and where reading fails.
//!
//! One deserializer does both. Wrappers around the one of JSON values would be compiled for each
//! type of each field once more, and a server has hundreds.

use std::cell::RefCell;
use std::vec;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value, map};

use super::ignored::Ignored;
use super::place::Place;

/// What is found out while a body is read.
#[derive(Debug)]
pub(super) struct Notes {
    pub(super) ignored: RefCell<Ignored>,
    /// The innermost part that could not be read.
    failed: RefCell<Option<String>>,
}

impl Notes {
    pub(super) fn new(ignored: Ignored) -> Notes {
        Notes { ignored: RefCell::new(ignored), failed: RefCell::default() }
    }

    /// Where reading failed; empty for the whole body.
    pub(super) fn failed_at(self) -> String {
        self.failed.into_inner().unwrap_or_default()
    }

    fn fail(&self, place: &Place<'_>) {
        // Errors pass from the inside to the outside.
        self.failed.borrow_mut().get_or_insert_with(|| place.to_string());
    }

    fn noted<T>(&self, read: Result<T, Error>, place: &Place<'_>) -> Result<T, Error> {
        if read.is_err() {
            self.fail(place);
        }
        read
    }
}

/// A value that stands at a place.
#[derive(Debug)]
pub(super) struct Part<'a> {
    value: Value,
    place: Place<'a>,
    notes: &'a Notes,
}

impl<'a> Part<'a> {
    pub(super) fn body(value: Value, notes: &'a Notes) -> Part<'a> {
        Part { value, place: Place::Body, notes }
    }

    fn visit<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Part { value, place, notes } = self;
        match value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(is_true) => visitor.visit_bool(is_true),
            Value::Number(number) => number.deserialize_any(visitor),
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => {
                let n_items = items.len();
                let mut items = Items { items: items.into_iter(), index: 0, list: &place, notes };
                let read = visitor.visit_seq(&mut items)?;
                all_read(items.items.len(), n_items, "fewer elements in array")?;
                Ok(read)
            }
            Value::Object(fields) => {
                let n_fields = fields.len();
                let fields = fields.into_iter();
                let mut fields = Fields { fields, current: None, object: &place, notes };
                let read = visitor.visit_map(&mut fields)?;
                all_read(fields.fields.len(), n_fields, "fewer elements in map")?;
                Ok(read)
            }
        }
    }
}

fn all_read(n_left: usize, n: usize, expected: &str) -> Result<(), Error> {
    if n_left == 0 { Ok(()) } else { Err(Error::invalid_length(n, &expected)) }
}

impl<'de> Deserializer<'de> for Part<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Part { place, notes, .. } = self;
        notes.noted(self.visit(visitor), &place)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Part { place, notes, .. } = self;
        notes.noted(visitor.visit_newtype_struct(self), &place)
    }

    /// Refuses `null`, which serde_json's maps would read as a map without entries.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.value.is_null() {
            let Part { place, notes, .. } = self;
            return notes.noted(Err(Error::invalid_type(Unexpected::Unit, &visitor)), &place);
        }
        self.deserialize_any(visitor)
    }

    /// Enums are strings here: nothing is noted inside of one.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Part { value, place, notes } = self;
        notes.noted(value.deserialize_enum(name, variants, visitor), &place)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.notes.ignored.borrow_mut().add(&self.place);
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct struct identifier
    }
}

struct Items<'a> {
    items: vec::IntoIter<Value>,
    index: usize,
    list: &'a Place<'a>,
    notes: &'a Notes,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some(value) = self.items.next() else { return Ok(None) };
        let place = Place::Item { list: self.list, index: self.index };
        self.index += 1;
        seed.deserialize(Part { value, place, notes: self.notes }).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Fields<'a> {
    fields: map::IntoIter,
    /// The field whose name was read last.
    current: Option<(String, Value)>,
    object: &'a Place<'a>,
    notes: &'a Notes,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some((name, value)) = self.fields.next() else { return Ok(None) };
        let read = seed.deserialize(StrDeserializer::new(&name));
        let read = self.notes.noted(read, &Place::Field { object: self.object, name: &name })?;
        self.current = Some((name, value));
        Ok(Some(read))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let Some((name, value)) = self.current.take() else {
            return Err(Error::custom("a value is read before its name"));
        };
        let place = Place::Field { object: self.object, name: &name };
        seed.deserialize(Part { value, place, notes: self.notes })
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.fields.len())
    }
}
