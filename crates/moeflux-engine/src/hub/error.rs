//! What can go wrong between the hub and the drive.

use std::path::PathBuf;

/// Why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Not `org/name` or `org/name@revision`.
    #[error("{model:?} is no model name: write org/name or org/name@revision")]
    Name {
        /// What was asked for.
        model: String,
    },
    /// The hub knows no such repository, revision or file.
    #[error("{what} was not found: check the name, and set HF_TOKEN if it is private")]
    NotFound {
        /// Repository and revision, or file.
        what: String,
    },
    /// The hub refuses access.
    #[error(
        "{what} is gated or private (HTTP {status}): accept its terms on the hub and set HF_TOKEN to a \
         token that may read it"
    )]
    Denied {
        /// Repository and revision, or file.
        what: String,
        /// 401 or 403.
        status: u16,
    },
    /// The server answers with an error.
    #[error("{url} answered HTTP {status}: try again later")]
    Status {
        /// What was asked.
        url: String,
        /// The answer.
        status: u16,
    },
    /// The server cannot be reached, or the connection broke.
    #[error("cannot fetch {url}: {source}: check the network or HF_ENDPOINT")]
    Network {
        /// What was asked.
        url: String,
        /// The HTTP library's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server's answer is not what the hub's interface promises.
    #[error("{url} answered with {problem}: is HF_ENDPOINT a Hugging Face hub?")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// A file name in the repository that would lead outside of its folder.
    #[error("the repository {repo} names a file {file:?}, which is refused")]
    FileName {
        /// The repository.
        repo: String,
        /// The name.
        file: String,
    },
    /// There is nothing in the repository that could be run.
    #[error("{repo} has no safetensors and no packed model: moeflux cannot run it")]
    NoWeights {
        /// Repository and revision.
        repo: String,
    },
    /// A downloaded file is not what the hub says it should be.
    #[error(
        "{file} arrived damaged: {what} is {have}, it should be {want}; run again to fetch it anew"
    )]
    Damaged {
        /// The file.
        file: String,
        /// `size` or `sha-256`.
        what: &'static str,
        /// What arrived.
        have: String,
        /// What the hub promises.
        want: String,
    },
    /// Offline was asked for and the model is not in the cache.
    #[error(
        "{repo} is not complete in {}: unset HF_HUB_OFFLINE to download it", cache_dir.display()
    )]
    Offline {
        /// The repository.
        repo: String,
        /// Where it was looked for.
        cache_dir: PathBuf,
    },
    /// The drive is full.
    #[error("no space left for {}: free some, or set HF_HOME to a larger drive", path.display())]
    Full {
        /// The file that did not fit.
        path: PathBuf,
    },
    /// A file or folder of the cache cannot be used.
    #[error("cannot {action} {}: {source}: check its permissions, or set HF_HOME", path.display())]
    Io {
        /// `write`, `create`, and so on.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl HubError {
    /// Whether the server was out of reach or out of order, so that an earlier copy may serve.
    pub fn is_network(&self) -> bool {
        match self {
            Self::Network { .. } => true,
            Self::Status { status, .. } => *status >= 500 || *status == 429,
            _ => false,
        }
    }

    /// Whether asking again may help.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Network { source, .. } => !is_nobody_there(source.as_ref()),
            _ => self.is_network() || matches!(self, Self::Status { status: 408, .. }),
        }
    }

    /// An error of the drive.
    pub(super) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::Full { path }
            }
            _ => Self::Io { action, path, source },
        }
    }
}

/// Whether an address has no host, or its host nobody who listens.
fn is_nobody_there(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<std::io::Error>();
        let is_refused = io.is_some_and(|it| it.kind() == std::io::ErrorKind::ConnectionRefused);
        let http = error.downcast_ref::<ureq::Error>();
        let is_unknown = matches!(http, Some(ureq::Error::HostNotFound | ureq::Error::BadUri(_)));
        let is_refused_within = match http {
            Some(ureq::Error::Io(it)) => it.kind() == std::io::ErrorKind::ConnectionRefused,
            _ => false,
        };
        if is_refused || is_unknown || is_refused_within {
            return true;
        }
        next = error.source();
    }
    false
}
