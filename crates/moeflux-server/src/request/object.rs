//! Structs that are read from JSON objects, and lists of bounded length.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A type that is read from the fields of an object. [`object`] implements it.
pub(crate) trait FromMap: Sized {
    fn from_map<'de, A: MapAccess<'de>>(map: A) -> Result<Self, A::Error>;
}

/// Reads an object. Structs by themselves could also be read from lists.
pub(crate) fn read_map<'de, T: FromMap, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    from.deserialize_map(Fields(PhantomData))
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: FromMap> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::from_map(map)
    }
}

/// Declares that structs are read from JSON objects. They derive `Deserialize` with
/// `#[serde(remote = "Self")]`.
macro_rules! object {
    ($($name:ty),+ $(,)?) => {$(
        impl $crate::request::FromMap for $name {
            fn from_map<'de, A: serde::de::MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
                <$name>::deserialize(serde::de::value::MapAccessDeserializer::new(map))
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::request::read_map(from)
            }
        }

        impl $crate::request::Alternative for $name {
            const EXPECTED: &'static str = "a string or an object";
            const IS_LIST: bool = false;
        }
    )+};
}
pub(crate) use object;

/// A list of at most `MOST` items. The items after those are not read.
#[derive(Clone, Debug)]
pub(crate) struct List<T, const MOST: usize>(pub(crate) Vec<T>);

impl<T, const MOST: usize> Default for List<T, MOST> {
    fn default() -> Self {
        List(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for List<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Items(PhantomData))
    }
}

struct Items<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Items<T, MOST> {
    type Value = List<T, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            if list.len() == MOST {
                return Err(A::Error::custom(format_args!("it may hold at most {MOST}")));
            }
            list.push(item);
        }
        Ok(List(list))
    }
}
