//! Fields that are a string or something else.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde_json::{Map, Value};

use super::List;

pub(crate) use crate::request::Alternative;

/// A string, or a list or an object of the given type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StringOr<T> {
    String(String),
    Other(T),
}

impl<T: DeserializeOwned> Alternative for Vec<T> {
    const EXPECTED: &'static str = "a string or a list";
    const IS_LIST: bool = true;
}

impl<T: DeserializeOwned, const MOST: usize> Alternative for List<T, MOST> {
    const EXPECTED: &'static str = "a string or a list";
    const IS_LIST: bool = true;
}

impl Alternative for Map<String, Value> {
    const EXPECTED: &'static str = "a string or an object";
    const IS_LIST: bool = false;
}

impl<'de, T: Alternative> Deserialize<'de> for StringOr<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Either(PhantomData))
    }
}

struct Either<T>(PhantomData<T>);

impl<'de, T: Alternative> Visitor<'de> for Either<T> {
    type Value = StringOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(StringOr::String(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(StringOr::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
        if !T::IS_LIST {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        T::deserialize(SeqAccessDeserializer::new(items)).map(StringOr::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        if T::IS_LIST {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        T::deserialize(MapAccessDeserializer::new(map)).map(StringOr::Other)
    }
}
