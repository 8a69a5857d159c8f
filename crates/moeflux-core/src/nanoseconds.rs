//! Times as counters hold them.

use std::time::Duration;

/// A duration in nanoseconds; 584 years is the longest.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_the_longest() {
        assert_eq!(nanoseconds(Duration::from_micros(3)), 3000);
        assert_eq!(nanoseconds(Duration::MAX), u64::MAX);
    }
}
