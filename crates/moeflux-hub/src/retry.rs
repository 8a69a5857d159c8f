//! When a failed request is repeated, and after which wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::error::HubError;
use super::event::Retry;

/// Attempts at one request, the first included, where nothing else can serve.
pub(super) const N_ATTEMPTS: u32 = 5;
/// The longest wait that this program chooses.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// The longest wait that a server may ask for: the Hub's limits on requests count windows of
/// 5 minutes.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// How often a wait looks whether it is still wanted.
const TICK: Duration = Duration::from_millis(50);

/// How often, and after which waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPolicy {
    pub(super) n_attempts: u32,
    pub(super) first_wait: Duration,
}

/// The one request that is repeated: its name, and where to say so.
pub(super) struct Attempts<'a> {
    pub(super) what: &'a str,
    pub(super) notify: &'a mut dyn FnMut(&Retry),
    /// Set when the result is not wanted any more.
    pub(super) is_stopped: &'a AtomicBool,
}

impl RetryPolicy {
    /// Calls `attempt` until it succeeds, fails for good, or has failed too often. An attempt that
    /// got somewhere, which `progress` shows by a higher number, starts the count anew.
    pub(super) fn run<T>(
        &self,
        attempts: &mut Attempts<'_>,
        progress: impl Fn() -> u64,
        mut attempt: impl FnMut() -> Result<T, HubError>,
    ) -> Result<T, HubError> {
        let mut n_failed = 0;
        let mut before = progress();
        loop {
            let error = match attempt() {
                Err(error) if error.is_transient() => error,
                result => return result,
            };
            if progress() > before {
                n_failed = 0;
            }
            before = progress();
            n_failed += 1;
            let own_wait = (self.first_wait * (1 << (n_failed - 1).min(16))).min(MAX_WAIT);
            let wait = error.retry_after().map_or(own_wait, |asked| asked.max(own_wait));
            if n_failed >= self.n_attempts || wait > MAX_RETRY_AFTER {
                return Err(error);
            }
            (attempts.notify)(&Retry {
                what: attempts.what.to_owned(),
                reason: error.reason(),
                wait,
                attempt: n_failed + 1,
                n_attempts: self.n_attempts,
            });
            sleep(wait, attempts.is_stopped);
            if attempts.is_stopped.load(Ordering::Relaxed) {
                return Err(error);
            }
        }
    }
}

fn sleep(mut wait: Duration, is_stopped: &AtomicBool) {
    while !wait.is_zero() && !is_stopped.load(Ordering::Relaxed) {
        let part = wait.min(TICK);
        std::thread::sleep(part);
        wait -= part;
    }
}

/// The wait that a `Retry-After` header asks for: seconds, or a date (RFC 9110, 10.2.3).
pub(super) fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(secs) = value.parse() {
        return Some(Duration::from_secs(secs));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> RetryPolicy {
        RetryPolicy { n_attempts: 4, first_wait: Duration::ZERO }
    }

    fn failure(retry_after: Option<u64>) -> HubError {
        let retry_after = retry_after.map(Duration::from_secs);
        HubError::Status { url: "http://h/x".into(), status: 503, retry_after }
    }

    #[test]
    fn every_repetition_is_announced() {
        let mut heard = Vec::new();
        let result: Result<(), _> = policy().run(
            &mut Attempts {
                what: "x",
                notify: &mut |retry| heard.push(retry.clone()),
                is_stopped: &AtomicBool::new(false),
            },
            || 0,
            || Err(failure(None)),
        );
        assert!(result.is_err());
        let attempts: Vec<_> =
            heard.iter().map(|retry| (retry.attempt, retry.n_attempts)).collect();
        assert_eq!(attempts, [(2, 4), (3, 4), (4, 4)]);
        assert!(heard[0].reason.contains("503"), "{heard:?}");
    }

    #[test]
    fn a_wait_of_hours_ends_the_attempts() {
        let mut n_calls = 0;
        let result: Result<(), _> = policy().run(
            &mut Attempts {
                what: "x",
                notify: &mut |_| panic!("nothing is repeated"),
                is_stopped: &AtomicBool::new(false),
            },
            || 0,
            || {
                n_calls += 1;
                Err(failure(Some(7200)))
            },
        );
        let error = result.unwrap_err().to_string();
        assert!(error.contains("7200 s"), "{error}");
        assert_eq!(n_calls, 1);
    }

    #[test]
    fn dates_and_seconds_are_understood() {
        let now = httpdate::parse_http_date("Wed, 21 Oct 2015 07:28:00 GMT").unwrap();
        for (value, want) in [
            ("12", Some(12)),
            (" 0 ", Some(0)),
            ("Wed, 21 Oct 2015 07:29:05 GMT", Some(65)),
            ("Wed, 21 Oct 2015 07:00:00 GMT", Some(0)),
            ("-3", None),
            ("soon", None),
        ] {
            assert_eq!(parse_retry_after(value, now).map(|wait| wait.as_secs()), want, "{value}");
        }
    }
}
