//! Byte counts as people write them.

pub(crate) use moeflux_core::show_bytes as show;

/// Reads `2GiB`, `1.5 GB`, `512M`, `4096`: letters alone and with `iB` are
/// powers of 1024, with `B` powers of 1000.
///
/// # Errors
/// Where the text is no such count.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || String::from("write it like 8GiB, 512MiB or 1000000");
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let (power, base) = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => (0, 1024.0),
        "k" | "kib" => (1, 1024.0),
        "m" | "mib" => (2, 1024.0),
        "g" | "gib" => (3, 1024.0),
        "t" | "tib" => (4, 1024.0),
        "kb" => (1, 1000.0),
        "mb" => (2, 1000.0),
        "gb" => (3, 1000.0),
        "tb" => (4, 1000.0),
        _ => return Err(wrong()),
    };
    let bytes = number * f64::powi(base, power);
    if bytes.is_finite() && (0.0..1e18).contains(&bytes) { Ok(bytes as u64) } else { Err(wrong()) }
}

/// As [`parse`], but not none at all.
///
/// # Errors
/// Where the text is no such count, or 0.
pub(crate) fn parse_some(text: &str) -> Result<u64, String> {
    match parse(text)? {
        0 => Err(String::from("at least 1 byte")),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        assert_eq!(parse("2GiB"), Ok(2 << 30));
        assert_eq!(parse("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("4096"), Ok(4096));
        for wrong in ["", "GiB", "-1", "1e30", "nan", "2XB", "2 Gi B", "1,5GB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
