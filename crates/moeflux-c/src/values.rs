//! Values of options as text.

use std::str::FromStr;

use moeflux_core::json_problem;
use serde::de::DeserializeOwned;

/// What a value is refused with: what would do.
pub(crate) type Refusal = String;

/// A number that `is_good` takes.
pub(crate) fn number<T: FromStr>(
    text: &str,
    is_good: impl FnOnce(&T) -> bool,
    remedy: &str,
) -> Result<T, Refusal> {
    text.parse().ok().filter(is_good).ok_or_else(|| remedy.to_owned())
}

/// One or more.
pub(crate) fn count(text: &str) -> Result<usize, Refusal> {
    number(text, |n| *n > 0, "write a whole number, at least 1")
}

/// Zero or more.
pub(crate) fn whole_number<T: FromStr>(text: &str) -> Result<T, Refusal> {
    number(text, |_| true, "write a whole number, at least 0")
}

/// A finite number.
pub(crate) fn real(text: &str) -> Result<f32, Refusal> {
    number(text, |value: &f32| value.is_finite(), "write a number")
}

/// `true` or `false`.
pub(crate) fn truth(text: &str) -> Result<bool, Refusal> {
    number(text, |_| true, "write true or false")
}

/// One of several words.
pub(crate) fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, Refusal> {
    let found = words.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        format!("write {}", known.join(", "))
    })
}

/// Bytes, as in `2GiB`, `1.5 GB`, `512M` and `4096`: letters alone and with `iB` are powers of 1024,
/// with `B` powers of 1000.
pub(crate) fn bytes(text: &str) -> Result<u64, Refusal> {
    let wrong = || String::from("write it like 8GiB, 512MiB or 1000000");
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let unit = unit.to_ascii_lowercase();
    let base = if unit.len() == 2 { 1000.0 } else { 1024.0 };
    let power = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kib" | "kb" => 1,
        "m" | "mib" | "mb" => 2,
        "g" | "gib" | "gb" => 3,
        "t" | "tib" | "tb" => 4,
        _ => return Err(wrong()),
    };
    let bytes = number * f64::powi(base, power);
    if (0.0..1e18).contains(&bytes) { Ok(bytes as u64) } else { Err(wrong()) }
}

/// JSON of a certain form.
pub(crate) fn json<T: DeserializeOwned>(text: &str, form: &str) -> Result<T, Refusal> {
    serde_json::from_str(text).map_err(|err| format!("write {form} ({})", json_problem(&err)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bytes_as_the_command_line_does() {
        for (text, n) in [
            ("2GiB", 2 << 30),
            ("1.5 GB", 1_500_000_000),
            ("512M", 512 << 20),
            ("64k", 64 << 10),
            ("7b", 7),
            ("4096", 4096),
        ] {
            assert_eq!(bytes(text), Ok(n), "{text}");
        }
        for wrong in ["", "GiB", "-1", "1e30", "nan", "inf", "2XB", "2 Gi B", "1,5GB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
