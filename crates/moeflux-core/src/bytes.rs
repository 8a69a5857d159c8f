//! Numbers of bytes as messages show them.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_at_powers_of_1024() {
        assert_eq!(show_bytes(1023), "1023 B");
        assert_eq!(show_bytes(1024), "1.00 KiB");
        assert_eq!(show_bytes(2 << 30), "2.00 GiB");
        assert_eq!(show_bytes(u64::MAX), "16777216.00 TiB");
    }
}
