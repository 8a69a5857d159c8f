//! JSON schemas of the types that requests are made of.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{Given, Integer, Limit, List, Number, Refused, Seed, StringOr, Toggle, TokenNumber};

/// The largest token in a description that is not yet one of a model's.
pub(crate) const ANY_TOKEN: u32 = u32::MAX;

/// Implements `JsonSchema` for a type whose schema stands where it is used.
macro_rules! inline_schema {
    ([$($generics:tt)*] $type:ty, |$generator:ident| $schema:expr) => {
        impl<$($generics)*> JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($type))
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

inline_schema!([const LEAST: i32, const MOST: i32, const PER: i32] Number<LEAST, MOST, PER>, |_generator| {
    let (least, most) = Self::RANGE;
    json_schema!({"type": "number", "minimum": least, "maximum": most})
});

inline_schema!([const LEAST: u64, const MOST: u64] Integer<LEAST, MOST>, |_generator| match MOST {
    u64::MAX => json_schema!({"type": "integer", "minimum": LEAST}),
    _ => json_schema!({"type": "integer", "minimum": LEAST, "maximum": MOST}),
});

inline_schema!([const LEAST: u64] Limit<LEAST>, |_generator| match LEAST {
    0 => json_schema!({"type": "integer", "minimum": -1}),
    _ => json_schema!({"anyOf": [{"type": "integer", "minimum": LEAST}, {"const": -1}]}),
});

inline_schema!([] Seed, |_generator| {
    json_schema!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX})
});

inline_schema!([] TokenNumber, |_generator| {
    json_schema!({"type": "integer", "minimum": 0, "maximum": ANY_TOKEN})
});

inline_schema!([T: JsonSchema] StringOr<T>, |generator| {
    json_schema!({"anyOf": [{"type": "string"}, generator.subschema_for::<T>()]})
});

inline_schema!([T: JsonSchema, const MOST: usize] List<T, MOST>, |generator| {
    let items = generator.subschema_for::<T>();
    json_schema!({"type": "array", "items": items, "maxItems": MOST})
});

inline_schema!([] Toggle, |_generator| {
    json_schema!({"enum": [true, false, "none", "low", "medium", "high"]})
});

inline_schema!([] Given, |_generator| json_schema!({"enum": [false, 0, "", [], {}]}));

inline_schema!([] Refused, |_generator| json_schema!({"type": "null"}));
