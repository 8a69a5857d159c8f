//! Who may call the server: the keys of its options, and those of a file, which is read again when
//! it changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;
use axum::http::header::{HeaderName, HeaderValue};
use chrono::{SecondsFormat, Utc};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use crate::error::{ApiError, ServerError};
use crate::key_file::{KeyFile, KeyLimits, NamedKey, hash};
use crate::limits::{Exceeded, Level, Quota, whole_seconds};
use crate::options::ServerOptions;
use crate::reply::{Dialect, Reply};

/// What one key may take of the eight threads that compute for requests.
const THREADS_OF_KEY: usize = 4;

/// Keys that are shorter can be guessed.
const SHORTEST_KEY: usize = 8;

/// A key that clients may show.
#[derive(Debug)]
pub(crate) struct Caller {
    /// What the log and metrics call it.
    pub(crate) name: Arc<str>,
    hash: [u8; 32],
    pub(crate) quota: Quota,
    /// What its requests may take of the threads that compute for requests.
    pub(crate) threads: Arc<Semaphore>,
}

impl Caller {
    fn new(name: &str, hash: [u8; 32], limits: KeyLimits) -> Arc<Caller> {
        let quota = Quota::new(limits, Instant::now());
        Arc::new(Caller {
            name: name.into(),
            hash,
            quota,
            threads: Arc::new(Semaphore::new(THREADS_OF_KEY)),
        })
    }

    /// Why a request of this key is refused.
    pub(crate) fn refusal(&self, exceeded: &Exceeded) -> ApiError {
        let message = format!("the key {:?} has {exceeded}", self.name);
        ApiError {
            code: Some("rate_limit_exceeded"),
            retry_after: Some(Duration::from_secs(whole_seconds(exceeded.wait))),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
        }
    }

    /// Says in a reply what there is of the key's limits, by the headers of a dialect.
    pub(crate) fn set_levels(&self, reply: &mut Reply, dialect: Dialect) {
        for level in self.quota.levels() {
            for (name, value) in headers(&level, dialect) {
                let name = HeaderName::try_from(name).expect("names of limits are words");
                let value = HeaderValue::try_from(value).expect("levels are numbers and times");
                reply.headers_mut().insert(name, value);
            }
        }
    }
}

/// A limit in headers as Anthropic's clients know them, or as those of OpenAI do.
fn headers(level: &Level, dialect: Dialect) -> [(String, String); 3] {
    let (name, seconds) = (level.limit.name(), whole_seconds(level.until_full));
    let (most, remaining) = (level.most.to_string(), level.remaining.to_string());
    if dialect == Dialect::Anthropic {
        let full = (Utc::now() + level.until_full).to_rfc3339_opts(SecondsFormat::Secs, true);
        let name = format!("anthropic-ratelimit-{name}");
        return [
            (format!("{name}-limit"), most),
            (format!("{name}-remaining"), remaining),
            (format!("{name}-reset"), full),
        ];
    }
    let reset = match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    };
    [
        (format!("x-ratelimit-limit-{name}"), most),
        (format!("x-ratelimit-remaining-{name}"), remaining),
        (format!("x-ratelimit-reset-{name}"), reset),
    ]
}

/// All who may call.
#[derive(Debug)]
pub(crate) struct Callers {
    /// Keys of the options have no limits.
    fixed: Vec<Arc<Caller>>,
    file: Option<PathBuf>,
    named: RwLock<Named>,
}

/// By which a file is distinguished from the one before. Two that are written within a tick of the clock differ in
/// their places on the drive.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    changed: SystemTime,
    n_bytes: u64,
    place: u64,
}

impl Seen {
    fn of(path: &Path) -> Option<Seen> {
        let facts = fs::metadata(path).ok()?;
        #[cfg(unix)]
        let place = std::os::unix::fs::MetadataExt::ino(&facts);
        #[cfg(not(unix))]
        let place = 0;
        Some(Seen { changed: facts.modified().ok()?, n_bytes: facts.len(), place })
    }
}

/// The keys of a file.
#[derive(Debug, Default)]
struct Named {
    callers: Vec<Arc<Caller>>,
    has_looked: bool,
    /// By which a change is seen.
    seen: Option<Seen>,
}

impl Callers {
    pub(crate) fn new(options: &ServerOptions) -> Result<Callers, ServerError> {
        for key in &options.api_keys {
            let n_bytes = key.len();
            if n_bytes < SHORTEST_KEY {
                return Err(ServerError::Key { n_bytes, want: "8 bytes or more" });
            }
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(ServerError::Key { n_bytes, want: "printable ASCII without spaces" });
            }
        }
        let numbered = |(i, key): (usize, &String)| {
            Caller::new(&format!("key-{}", i + 1), hash(key.as_bytes()), KeyLimits::default())
        };
        let callers = Callers {
            fixed: options.api_keys.iter().enumerate().map(numbered).collect(),
            file: options.keys_file.clone(),
            named: RwLock::default(),
        };
        if let Some(path) = &callers.file {
            callers.read_again()?;
            if callers.all().is_empty() {
                return Err(ServerError::NoKeys { path: path.clone() });
            }
        }
        Ok(callers)
    }

    /// Whether a client must show a key.
    pub(crate) fn are_needed(&self) -> bool {
        !self.fixed.is_empty() || self.file.is_some()
    }

    /// The owner of one of the keys that a client shows.
    pub(crate) fn find<'a>(&self, shown: impl Iterator<Item = &'a [u8]>) -> Option<Arc<Caller>> {
        let (all, mut known) = (self.all(), None);
        for shown in shown.map(hash) {
            // All of them, so that the time does not tell which one it is.
            let matching = |caller: &&Arc<Caller>| bool::from(caller.hash.ct_eq(&shown));
            let found = all.iter().filter(matching).fold(None, |_, caller| Some(caller));
            known = known.or(found.cloned());
        }
        known
    }

    /// The keys now.
    pub(crate) fn all(&self) -> Vec<Arc<Caller>> {
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
        self.fixed.iter().chain(&named.callers).cloned().collect()
    }

    /// Reads the file if it has changed; whether it had. Keys whose entry is the same keep what
    /// they have used.
    ///
    /// # Errors
    /// Where it cannot be read or holds something else. Then the keys stay.
    pub(crate) fn read_again(&self) -> Result<bool, ServerError> {
        let Some(path) = &self.file else { return Ok(false) };
        let seen = Seen::of(path);
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        // A file that is wrong is reported once, until it changes again.
        if named.has_looked && seen == named.seen {
            return Ok(false);
        }
        (named.has_looked, named.seen) = (true, seen);
        let file = KeyFile::read(path)?;
        let old = std::mem::take(&mut named.callers);
        let caller = |key: &NamedKey| {
            let hash = key.hash()?;
            let same = |caller: &&Arc<Caller>| {
                *caller.name == *key.name
                    && caller.hash == hash
                    && caller.quota.limits == key.limits
            };
            let kept = old.iter().find(same).cloned();
            Some(kept.unwrap_or_else(|| Caller::new(&key.name, hash, key.limits)))
        };
        named.callers = file.keys.iter().filter_map(caller).collect();
        Ok(true)
    }
}
