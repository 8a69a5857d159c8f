//! Durations as people write them: `90`, `5m`, `1h30m`.

use std::time::Duration;

/// Units by name, and their seconds. A name comes before those that it begins with.
const UNITS: [(&str, f64); 7] = [
    ("ms", 1e-3),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ns", 1e-9),
    ("h", 3600.0),
    ("m", 60.0),
    ("s", 1.0),
];

/// The longest duration, in seconds: thousands of years.
const MOST: f64 = 1e11;

/// Reads a number of seconds, or numbers with units (h, m, s, ms, us, ns) one after the other.
///
/// # Errors
/// What would have been right, in words.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const REMEDY: &str = "write seconds, or a duration such as 90s, 5m or 1h30m";
    let (mut rest, mut seconds) = (text.trim(), 0.0);
    if let Some(whole) = number(rest) {
        return duration(whole).ok_or_else(|| REMEDY.to_owned());
    }
    while !rest.is_empty() {
        let is_digit = |c: char| c.is_ascii_digit() || c == '.';
        let end = rest.find(|c| !is_digit(c)).ok_or(REMEDY)?;
        let count = number(&rest[..end]).ok_or(REMEDY)?;
        let named = UNITS.iter().find(|(name, _)| rest[end..].starts_with(name));
        let (name, unit) = named.ok_or(REMEDY)?;
        seconds += count * unit;
        rest = &rest[end + name.len()..];
    }
    let is_empty = text.trim().is_empty();
    duration(seconds).filter(|_| !is_empty).ok_or_else(|| REMEDY.to_owned())
}

/// A number without a sign or an exponent.
fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| is_plain)
}

fn duration(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, seconds) in [
            ("0", 0.0),
            ("90", 90.0),
            ("1.5", 1.5),
            ("5m", 300.0),
            ("1h30m", 5400.0),
            (" 10s ", 10.0),
            ("250ms", 0.25),
            ("1m0.5s", 60.5),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in [
            "",
            " ",
            "-1",
            "5 m",
            "m",
            "5x",
            "1e3",
            "nan",
            "1..2s",
            "5m3",
            "1e400",
            "99999999999999h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
