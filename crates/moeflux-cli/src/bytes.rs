//! Byte counts as people write them.

pub(crate) use moeflux_core::show_bytes as show;

/// Reads `2GiB`, `1.5 GB`, `512M`, `4096`: letters alone and with `iB` are
/// powers of 1024, with `B` powers of 1000.
///
/// # Errors
/// Where the text is no such count.
pub fn parse(text: &str) -> Result<u64, String> {
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

/// Reads `3GB/s`, `900 MB/s` or `2.5GiB/s` as GB/s, thousand millions of bytes a second.
///
/// # Errors
/// Where the text is no such rate, or none that a drive has.
pub(crate) fn parse_rate(text: &str) -> Result<f64, String> {
    let wrong = || String::from("write it like 3GB/s, 3.2GB/s or 900MB/s, in bytes");
    let bytes = text.trim().strip_suffix("/s").ok_or_else(wrong)?.trim_end();
    // `Gb` means bits, and `G` may mean either.
    if !bytes.ends_with('B') {
        return Err(wrong());
    }
    let gb_s = parse(bytes).map_err(|_| wrong())? as f64 / 1e9;
    if (0.001..=1000.0).contains(&gb_s) {
        Ok(gb_s)
    } else {
        Err(String::from("a drive reads from 1MB/s to 1000GB/s: write it like 3GB/s"))
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

    #[test]
    fn reads_rates_of_bytes_and_no_others() {
        for (text, gb_s) in [
            ("3GB/s", 3.0),
            ("3.2 GB/s", 3.2),
            ("900MB/s", 0.9),
            (" 1GiB/s", 1.073741824),
            ("2TB/s", 2000.0),
        ] {
            let want = if gb_s > 1000.0 { None } else { Some(gb_s) };
            assert_eq!(parse_rate(text).ok(), want, "{text}");
        }
        for wrong in [
            "", "3", "3GB", "fast", "3Gb/s", "3G/s", "-3GB/s", "0GB/s", "nanGB/s", "infGB/s",
            "GB/s", "3GB/h", "1e9GB/s", "3,2GB/s", "/s",
        ] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
