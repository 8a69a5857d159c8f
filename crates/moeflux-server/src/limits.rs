//! What a key may use: requests and tokens a minute, and answers at once.
//!
//! Requests and tokens are counted by buckets, which hold a minute's worth and fill steadily.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::key_file::KeyLimits;

/// Of a key that has as many answers as it may have: when to ask again.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// A limit, as headers and metrics call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Requests,
    Tokens,
    Sessions,
}

impl Limit {
    pub(crate) const ALL: [Limit; 3] = [Limit::Requests, Limit::Tokens, Limit::Sessions];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Limit::Requests => "requests",
            Limit::Tokens => "tokens",
            Limit::Sessions => "sessions",
        }
    }
}

/// A limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) limit: Limit,
    most: u32,
    pub(crate) wait: Duration,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (most, wait) = (self.most, whole_seconds(self.wait));
        match self.limit {
            Limit::Requests => write!(f, "{most} requests a minute: try again in {wait} s"),
            Limit::Tokens => write!(f, "{most} tokens a minute: try again in {wait} s"),
            Limit::Sessions => write!(f, "{most} answers at once: try again when one has ended"),
        }
    }
}

/// Seconds, rounded up.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// What there is of a limit by the minute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Level {
    pub(crate) limit: Limit,
    pub(crate) most: u32,
    pub(crate) remaining: u32,
    /// Until all of it is there again.
    pub(crate) until_full: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    most: u32,
    /// Below 0 where more was used than there was.
    level: f64,
    filled: Instant,
}

impl Bucket {
    fn new(most: u32, now: Instant) -> Bucket {
        Bucket { most, level: f64::from(most), filled: now }
    }

    fn fill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.filled).as_secs_f64();
        self.level = (self.level + seconds * f64::from(self.most) / 60.0).min(self.most.into());
        // Another thread may have looked at a later time already.
        self.filled = self.filled.max(now);
    }

    /// Time until the level is this high, or as high as it gets.
    fn until(&self, level: f64) -> Duration {
        let missing = level.min(self.most.into()) - self.level;
        Duration::from_secs_f64((missing.max(0.0) * 60.0 / f64::from(self.most)).min(1e6))
    }

    fn level(&self, limit: Limit) -> Level {
        let until_full = self.until(self.most.into());
        Level { limit, most: self.most, remaining: self.level.max(0.0) as u32, until_full }
    }
}

#[derive(Debug)]
struct State {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    n_open: u32,
}

/// What a key has used of what it may use.
#[derive(Debug)]
pub(crate) struct Quota {
    pub(crate) limits: KeyLimits,
    state: Mutex<State>,
}

impl Quota {
    pub(crate) fn new(limits: KeyLimits, now: Instant) -> Quota {
        let bucket = |most: Option<u32>| most.map(|most| Bucket::new(most, now));
        let requests = bucket(limits.requests_per_minute);
        let tokens = bucket(limits.tokens_per_minute);
        Quota { limits, state: Mutex::new(State { requests, tokens, n_open: 0 }) }
    }

    fn lock(&self, now: Instant) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { requests, tokens, .. } = &mut *state;
        [requests, tokens].into_iter().flatten().for_each(|bucket| bucket.fill(now));
        state
    }

    /// Takes a request for `n_answers` to prompts of `n_tokens`, or says which limit it exceeds. A
    /// prompt that is longer than a minute's tokens is taken when all of these are there.
    pub(crate) fn take(
        &self,
        n_answers: u32,
        n_tokens: usize,
        now: Instant,
    ) -> Result<(), Exceeded> {
        let mut state = self.lock(now);
        if let Some(most) = self.limits.sessions
            && state.n_open.saturating_add(n_answers) > most
        {
            return Err(Exceeded { limit: Limit::Sessions, most, wait: ANSWER_WAIT });
        }
        for (limit, bucket, wanted) in [
            (Limit::Requests, &state.requests, 1.0),
            (Limit::Tokens, &state.tokens, n_tokens.max(1) as f64),
        ] {
            let Some(bucket) = bucket else { continue };
            let wait = bucket.until(wanted);
            if !wait.is_zero() {
                return Err(Exceeded { limit, most: bucket.most, wait });
            }
        }
        state.n_open = state.n_open.saturating_add(n_answers);
        let State { requests, tokens, .. } = &mut *state;
        requests.iter_mut().for_each(|bucket| bucket.level -= 1.0);
        tokens.iter_mut().for_each(|bucket| bucket.level -= n_tokens as f64);
        Ok(())
    }

    /// Gives back what a request took that was not queued. Its answers end by themselves.
    pub(crate) fn give_back(&self, n_tokens: usize) {
        let mut state = self.lock(Instant::now());
        state.requests.iter_mut().for_each(|bucket| bucket.level += 1.0);
        state.tokens.iter_mut().for_each(|bucket| bucket.level += n_tokens as f64);
    }

    /// Counts tokens that were made.
    pub(crate) fn add_tokens(&self, n_tokens: usize) {
        let mut state = self.lock(Instant::now());
        state.tokens.iter_mut().for_each(|bucket| bucket.level -= n_tokens as f64);
    }

    /// Gives back tokens of a prompt that needed no evaluation.
    pub(crate) fn reuse_tokens(&self, n_tokens: usize) {
        let mut state = self.lock(Instant::now());
        state.tokens.iter_mut().for_each(|bucket| bucket.level += n_tokens as f64);
    }

    /// An answer has ended.
    pub(crate) fn end_answer(&self) {
        let mut state = self.lock(Instant::now());
        state.n_open = state.n_open.saturating_sub(1);
    }

    /// Answers that are made or wait.
    pub(crate) fn n_open(&self) -> u32 {
        self.lock(Instant::now()).n_open
    }

    /// What there is of the limits by the minute.
    pub(crate) fn levels(&self) -> Vec<Level> {
        let state = self.lock(Instant::now());
        let level = |bucket: &Option<Bucket>, limit| bucket.map(|bucket| bucket.level(limit));
        let requests = level(&state.requests, Limit::Requests);
        [requests, level(&state.tokens, Limit::Tokens)].into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(requests: u32, tokens: u32, sessions: u32) -> KeyLimits {
        KeyLimits {
            requests_per_minute: Some(requests),
            tokens_per_minute: Some(tokens),
            sessions: Some(sessions),
        }
    }

    #[test]
    fn a_minute_has_as_many_requests_as_the_limit() {
        let start = Instant::now();
        let quota = Quota::new(limits(6, 1_000_000, 100), start);
        assert_eq!((0..9).filter(|_| quota.take(1, 1, start).is_ok()).count(), 6);
        let exceeded = quota.take(1, 1, start).unwrap_err();
        assert_eq!((exceeded.limit, exceeded.wait), (Limit::Requests, 10 * SECOND));
        // One every ten seconds.
        assert!(quota.take(1, 1, start + 9 * SECOND).is_err());
        assert!(quota.take(1, 1, start + 10 * SECOND).is_ok());
        assert!(quota.take(1, 1, start + 11 * SECOND).is_err());
        let later = start + 1000 * SECOND;
        assert_eq!((0..9).filter(|_| quota.take(1, 1, later).is_ok()).count(), 6);
    }

    #[test]
    fn tokens_of_prompts_and_answers_count() {
        let start = Instant::now();
        let quota = Quota::new(limits(1000, 600, 100), start);
        quota.take(1, 500, start).unwrap();
        let exceeded = quota.take(1, 200, start).unwrap_err();
        assert_eq!(exceeded.limit, Limit::Tokens);
        assert!((9..=11).contains(&whole_seconds(exceeded.wait)), "{exceeded:?}");
        quota.add_tokens(100);
        assert!(quota.take(1, 100, start).is_err());
        quota.reuse_tokens(400);
        assert!(quota.take(1, 300, start).is_ok());
        // One that is longer than a minute's tokens waits until all are there.
        let exceeded = quota.take(1, 5000, start).unwrap_err();
        assert!(exceeded.wait <= 60 * SECOND, "{exceeded:?}");
        quota.take(1, 5000, start + 70 * SECOND).unwrap();
        let level = quota.levels()[1];
        assert_eq!((level.remaining, level.most), (0, 600));
        assert!(quota.take(1, 1, start + 200 * SECOND).is_err());
    }

    #[test]
    fn answers_at_once_are_those_that_have_not_ended() {
        let now = Instant::now();
        let quota = Quota::new(limits(1000, 1_000_000, 3), now);
        quota.take(2, 1, now).unwrap();
        assert_eq!(quota.take(2, 1, now).unwrap_err().limit, Limit::Sessions);
        quota.take(1, 1, now).unwrap();
        assert_eq!(quota.n_open(), 3);
        quota.end_answer();
        quota.end_answer();
        quota.take(2, 1, now).unwrap();
        let none = Quota::new(KeyLimits::default(), now);
        assert!((0..1000).all(|_| none.take(9, 1_000_000, now).is_ok()));
        assert!(none.levels().is_empty());
    }

    /// A look at an earlier time, as of a thread that was slower, gives nothing back twice.
    #[test]
    fn time_counts_once() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let limits = KeyLimits { requests_per_minute: Some(60), ..KeyLimits::default() };
        let quota = Quota::new(limits, begin);
        (0..60).for_each(|_| quota.take(1, 1, begin).unwrap());
        for seconds in [10, 0, 10, 0, 10] {
            drop(quota.lock(at(seconds)));
        }
        let taken = (0..60).filter(|_| quota.take(1, 1, at(10)).is_ok()).count();
        assert_eq!(taken, 10);
    }
}
