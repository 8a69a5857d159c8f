//! Numbers of bytes as messages show them, and bytes in hexadecimal.

/// A number of bytes with two digits after the point, in the largest unit of 1024 that it fills.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

/// Bytes as lower-case hexadecimal digits, two for each.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_two_digits_each() {
        assert_eq!(hex(&[]), "");
        assert_eq!(hex(&[0, 9, 0x0a, 0xf0, 0xff]), "00090af0ff");
    }

    #[test]
    fn units_change_at_powers_of_1024() {
        assert_eq!(show_bytes(1023), "1023 B");
        assert_eq!(show_bytes(1024), "1.00 KiB");
        assert_eq!(show_bytes(2 << 30), "2.00 GiB");
        assert_eq!(show_bytes(u64::MAX), "16777216.00 TiB");
    }
}
