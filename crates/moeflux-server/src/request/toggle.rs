//! Fields that switch something on.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// True, false, or a level of what is switched on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Toggle {
    Switch(bool),
    Level(String),
}

impl<'de> Deserialize<'de> for Toggle {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ToggleVisitor)
    }
}

struct ToggleVisitor;

impl Visitor<'_> for ToggleVisitor {
    type Value = Toggle;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false or a string")
    }

    fn visit_bool<E: Error>(self, is_on: bool) -> Result<Toggle, E> {
        Ok(Toggle::Switch(is_on))
    }

    fn visit_str<E: Error>(self, level: &str) -> Result<Toggle, E> {
        Ok(Toggle::Level(level.to_owned()))
    }
}

/// A field that is refused, whatever it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl<'de> Deserialize<'de> for Refused {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(IgnoredAny).map(|_| Refused)
    }
}

/// Whether a field of any type asks for something: `false`, 0, `""`, `[]` and `{}` do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given(pub(crate) bool);

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(GivenVisitor)
    }
}

struct GivenVisitor;

impl<'de> Visitor<'de> for GivenVisitor {
    type Value = Given;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<Given, E> {
        Ok(Given(false))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Given, E> {
        Ok(Given(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Given, E> {
        Ok(Given(value != 0))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Given, E> {
        Ok(Given(value != 0))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Given, E> {
        Ok(Given(value != 0.0))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Given, E> {
        Ok(Given(!value.is_empty()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Given, A::Error> {
        let mut is_given = false;
        while items.next_element::<IgnoredAny>()?.is_some() {
            is_given = true;
        }
        Ok(Given(is_given))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Given, A::Error> {
        let mut is_given = false;
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            is_given = true;
        }
        Ok(Given(is_given))
    }
}
