//! Numbers within ranges. A whole number may be written as any number that is whole, such as 3.0,
//! and one that is too large for the machine is the largest that it has.

use std::fmt::{self, Display};

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A number from `LEAST / PER` to `MOST / PER`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Number<const LEAST: i32, const MOST: i32, const PER: i32 = 1>(pub(crate) f32);

/// A whole number from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Integer<const LEAST: u64, const MOST: u64 = { u64::MAX }>(pub(crate) usize);

/// A limit of `LEAST` or more, or -1 for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit<const LEAST: u64>(pub(crate) Option<usize>);

/// A token's number. The largest stands for all that are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenNumber(pub(crate) u32);

/// A number that determines draws: any whole number of 64 bits, or -1 for one that the server
/// chooses. Other negative numbers wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) Option<u64>);

impl<const LEAST: i32, const MOST: i32, const PER: i32> Number<LEAST, MOST, PER> {
    pub(super) const RANGE: (f64, f64) = (LEAST as f64 / PER as f64, MOST as f64 / PER as f64);
}

impl<'de, const LEAST: i32, const MOST: i32, const PER: i32> Deserialize<'de>
    for Number<LEAST, MOST, PER>
{
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (least, most) = Self::RANGE;
        let expected = format!("a number from {least} to {most}");
        let read = |number: AnyNumber| {
            let number = number.as_f64();
            (least..=most).contains(&number).then_some(Number(number as f32))
        };
        from.deserialize_any(Read { expected, read })
    }
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Integer<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let expected = match MOST {
            u64::MAX => format!("a whole number, {LEAST} or more"),
            _ => format!("a whole number, from {LEAST} to {MOST}"),
        };
        let read = |number: AnyNumber| {
            let number = u64::try_from(number.whole()?.min(u64::MAX.into())).ok()?;
            (LEAST..=MOST).contains(&number).then(|| Integer(saturated(number)))
        };
        from.deserialize_any(Read { expected, read })
    }
}

impl<'de, const LEAST: u64> Deserialize<'de> for Limit<LEAST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let expected = format!("a whole number, {LEAST} or more, or -1 for no limit");
        let read = |number: AnyNumber| match number.whole()? {
            -1 => Some(Limit(None)),
            number if number >= i128::from(LEAST) => {
                Some(Limit(Some(usize::try_from(number).unwrap_or(usize::MAX))))
            }
            _ => None,
        };
        from.deserialize_any(Read { expected, read })
    }
}

impl<'de> Deserialize<'de> for TokenNumber {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let read = |number: AnyNumber| {
            let number = number.whole().filter(|number| *number >= 0)?;
            Some(TokenNumber(u32::try_from(number).unwrap_or(u32::MAX)))
        };
        from.deserialize_any(Read { expected: "a token's number", read })
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let expected = "a whole number of 64 bits";
        let read = |number: AnyNumber| match number.whole()? {
            // A float of this size may have been another number in the text.
            _ if matches!(number, AnyNumber::Float(float) if float.abs() >= 2f64.powi(63)) => None,
            -1 => Some(Seed(None)),
            number if (i64::MIN.into()..=u64::MAX.into()).contains(&number) => {
                Some(Seed(Some(number as u64)))
            }
            _ => None,
        };
        from.deserialize_any(Read { expected, read })
    }
}

fn saturated(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// A number as JSON has it.
#[derive(Clone, Copy, Debug)]
enum AnyNumber {
    Whole(i128),
    Float(f64),
}

impl AnyNumber {
    fn as_f64(self) -> f64 {
        match self {
            AnyNumber::Whole(number) => number as f64,
            AnyNumber::Float(number) => number,
        }
    }

    /// The number, if it is whole; the nearest of `i128` where it is larger.
    fn whole(self) -> Option<i128> {
        match self {
            AnyNumber::Whole(number) => Some(number),
            AnyNumber::Float(number) => (number.fract() == 0.0).then_some(number as i128),
        }
    }
}

/// Reads a number; `read` gives `None` where it is not allowed.
struct Read<W, F> {
    expected: W,
    read: F,
}

impl<W, F, T> Read<W, F>
where
    W: Display,
    F: FnOnce(AnyNumber) -> Option<T>,
{
    fn number<E: Error>(self, number: AnyNumber) -> Result<T, E> {
        let Read { expected, read } = self;
        let found = Unexpected::Float(number.as_f64());
        read(number).ok_or_else(|| E::invalid_value(found, &expected.to_string().as_str()))
    }
}

impl<W, F, T> Visitor<'_> for Read<W, F>
where
    W: Display,
    F: FnOnce(AnyNumber) -> Option<T>,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.expected)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.number(AnyNumber::Whole(number.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.number(AnyNumber::Whole(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        self.number(AnyNumber::Float(number))
    }
}
