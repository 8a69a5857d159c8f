//! What can go wrong between the Hub and the drive.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use moeflux_core::show_bytes;

/// Why a model could not be found or fetched.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Not a name or an address of a model.
    #[error("{model:?} does not name a model on the Hub: {problem}")]
    Name {
        /// What was asked for.
        model: String,
        /// What is wrong, and what to write.
        problem: String,
    },
    /// The Hub has no such repository, revision or file.
    #[error("{0}")]
    NotFound(Missing),
    /// The repository's authors want its terms accepted first.
    #[error("{repo} is gated: accept its terms at {host}/{repo}, then {}", of_gated(token))]
    Gated {
        /// `org/name`.
        repo: String,
        /// The Hub's address.
        host: String,
        /// Where the token that was sent came from.
        token: Option<String>,
    },
    /// The token is wrong or expired.
    #[error(
        "the Hub does not accept the access token from {source_name}: replace it by a valid one \
         (huggingface.co/settings/tokens), or remove it for public models"
    )]
    Token {
        /// The variable or file.
        source_name: String,
    },
    /// The Hub refuses access for another reason.
    #[error(
        "{what}: the Hub refuses access (HTTP {status}{}): set HF_TOKEN to a token that may read \
         it",
        in_words(message)
    )]
    Denied {
        /// Repository and revision, or file.
        what: String,
        /// 403 or 451.
        status: u16,
        /// The Hub's own words, or nothing.
        message: String,
    },
    /// The server answers with an error.
    #[error("{url} answered HTTP {status}: {}", later(*retry_after))]
    Status {
        /// What was asked.
        url: String,
        /// The answer.
        status: u16,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// The storage that the Hub redirects to answers with an error.
    #[error("the storage {url} answered HTTP {status}: try again later")]
    Storage {
        /// What was asked, without its signature.
        url: String,
        /// The answer.
        status: u16,
    },
    /// The server cannot be reached, or the connection broke.
    #[error("cannot fetch {url}: {}: {}", in_short(source.as_ref()), Failure::of(source.as_ref()).remedy())]
    Network {
        /// What was asked.
        url: String,
        /// The HTTP library's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The certificates that a variable names cannot be used.
    #[error("{source_name} names {}: {problem}: name a file of certificates in PEM, or unset it", path.display())]
    Certificates {
        /// The variable.
        source_name: &'static str,
        /// What it names.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The server's answer is not what the Hub's interface promises.
    #[error("{url} answered with {problem}: is HF_ENDPOINT a Hugging Face Hub?")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// A web page came in place of data.
    #[error(
        "{url} answered with a web page in place of data: sign in to this network if it asks for \
         that in a browser, or check HF_ENDPOINT and HTTPS_PROXY"
    )]
    WebPage {
        /// What was asked.
        url: String,
    },
    /// A file name in the repository that would lead outside of its folder, or that no file can
    /// have.
    #[error(
        "the repository {repo} names a file {:?}, which is refused ({problem}): use another \
         repository or revision",
        beginning(file)
    )]
    FileName {
        /// The repository.
        repo: String,
        /// The name.
        file: String,
        /// Why it is refused.
        problem: &'static str,
    },
    /// There is nothing in the repository that could be run.
    #[error("{repo} cannot be run: {problem}")]
    NoWeights {
        /// Repository and revision.
        repo: String,
        /// What is missing, and which repositories have it.
        problem: String,
    },
    /// A repository of several GGUF files, or none that was asked for.
    #[error("{repo} {problem}")]
    Choice {
        /// Repository and revision.
        repo: String,
        /// What it has, and what to write.
        problem: String,
    },
    /// A downloaded file is not what the Hub says it should be.
    #[error(
        "{file} arrived damaged: {what} is {have}, it should be {want}; run again to fetch it anew"
    )]
    Damaged {
        /// The file.
        file: String,
        /// `size`, `sha-256` or `sha-1`.
        what: &'static str,
        /// What arrived.
        have: String,
        /// What the Hub promises.
        want: String,
    },
    /// Offline was asked for and the model is not in the cache.
    #[error(
        "{repo} is not complete in {}: unset HF_HUB_OFFLINE to use the network", cache_dir.display()
    )]
    Offline {
        /// The repository.
        repo: String,
        /// Where it was looked for.
        cache_dir: PathBuf,
    },
    /// Nothing of the kind is in the cache.
    #[error("{what} is not in {}", cache_dir.display())]
    NotStored {
        /// What was looked for.
        what: String,
        /// Where.
        cache_dir: PathBuf,
    },
    /// Another process downloads it.
    #[error("{repo} is being downloaded ({} is locked): wait, or end that download", lock.display())]
    Busy {
        /// `org/name`.
        repo: String,
        /// The file that the other process holds locked.
        lock: PathBuf,
    },
    /// A part of the repository's folder is a link, so that its files may be others' too.
    #[error("{} is a link out of the cache: remove what it leads to by hand", link.display())]
    Elsewhere {
        /// `org/name`.
        repo: String,
        /// The link.
        link: PathBuf,
    },
    /// The download is larger than what is free.
    #[error(
        "{repo} needs {} more in {}, where {} are free: free some, or set HF_HUB_CACHE to a \
         folder of a larger drive", show_bytes(*needed), dir.display(), show_bytes(*free)
    )]
    NoRoom {
        /// `org/name`.
        repo: String,
        /// The cache.
        dir: PathBuf,
        /// Bytes that are still to be fetched.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The system starts no thread.
    #[error("cannot start a thread for the download ({0}): allow this process more threads")]
    Threads(#[source] std::io::Error),
    /// The drive is full.
    #[error(
        "no space left for {}: free some, or set HF_HUB_CACHE to a folder of a larger drive",
        path.display()
    )]
    Full {
        /// The file that did not fit.
        path: PathBuf,
    },
    /// A file or folder of the cache cannot be used.
    #[error(
        "cannot {action} {}: {source}: check its permissions, or set HF_HUB_CACHE to another folder",
        path.display()
    )]
    Io {
        /// `write`, `create`, and so on.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What the Hub does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A repository, or it is private.
    Repo {
        /// `org/name`.
        repo: String,
        /// The Hub's address.
        host: String,
        /// Where the token that was sent came from.
        token: Option<String>,
    },
    /// A branch, tag or commit.
    Revision {
        /// Repository and revision.
        what: String,
        /// The Hub's address.
        host: String,
    },
    /// A file of the repository.
    File {
        /// The file and its repository.
        what: String,
        /// `org/name`.
        repo: String,
        /// The Hub's address.
        host: String,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repo { repo, host, token: None } => write!(
                f,
                "{repo} was not found on {host}: check the name; if the repository is private, set \
                 HF_TOKEN to a token that may read it"
            ),
            Self::Repo { repo, host, token: Some(source) } => write!(
                f,
                "{repo} was not found on {host}: check the name; if the repository is private, the \
                 token from {source} may not read it"
            ),
            Self::Revision { what, host } => write!(
                f,
                "{what} was not found on {host}: the repository is there, but has no such branch, \
                 tag or commit"
            ),
            Self::File { what, repo, host } => {
                write!(f, "{what} was not found: see the files of {host}/{repo}/tree/main")
            }
        }
    }
}

impl HubError {
    /// Whether the server was out of reach or out of order.
    pub fn is_network(&self) -> bool {
        match self {
            Self::Network { .. } | Self::Storage { .. } => true,
            Self::Status { status, .. } => *status >= 500 || *status == 429,
            _ => false,
        }
    }

    /// Whether asking again may help.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Network { source, .. } => Failure::of(source.as_ref()) == Failure::Passing,
            _ => self.is_network() || matches!(self, Self::Status { status: 408, .. }),
        }
    }

    /// How long the server asks to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The cause in a few words.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Status { status, .. } => format!("HTTP {status}"),
            Self::Storage { status, .. } => format!("HTTP {status} of the storage"),
            Self::Network { source, .. } => in_short(source.as_ref()),
            _ => self.to_string(),
        }
    }

    pub(super) fn network(
        url: &str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Network { url: url.to_owned(), source: source.into() }
    }

    /// A body that is shorter than it was announced.
    pub(super) fn cut_off(url: &str) -> Self {
        Self::network(url, "the connection ended early")
    }

    /// An answer to a range that is neither the range nor the file.
    pub(super) fn odd_range(url: &str, status: u16) -> Self {
        Self::network(url, format!("HTTP {status} with a range that was not asked for"))
    }

    /// An error of the drive.
    pub(super) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full { path },
            _ => Self::Io { action, path, source },
        }
    }
}

fn of_gated(token: &Option<String>) -> String {
    match token {
        None => "set HF_TOKEN to a token of the account that accepted them".into(),
        Some(source) => {
            format!("wait until its authors let the account of the token from {source} in")
        }
    }
}

/// Characters that messages show of a text from the network.
const MAX_SHOWN: usize = 80;

/// A text from the network that may be of any length, as messages show it.
pub(super) fn beginning(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn in_words(message: &str) -> String {
    let message: String = message.chars().take(200).collect();
    if message.is_empty() { message } else { format!(": {message}") }
}

fn later(retry_after: Option<Duration>) -> String {
    match retry_after {
        Some(wait) => format!("it asks to wait {} s; try again then", wait.as_secs()),
        None => "try again later".into(),
    }
}

/// A failure of the network, without what the HTTP library says of its kind.
fn in_short(error: &(dyn std::error::Error + 'static)) -> String {
    let text = error.to_string();
    text.strip_prefix("io: ").unwrap_or(&text).to_owned()
}

/// What a failure of the network means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// It may pass by itself.
    Passing,
    /// It will not: nothing that listens, a proxy that is none.
    ForGood,
    /// There is no host of that name, or nothing that knows names.
    NoHost,
    /// The certificate is not trusted.
    Certificate,
}

/// How the standard library begins the message of a name that does not resolve.
const NOT_RESOLVED: &str = "failed to lookup address information";

/// What Windows says of a name that does not resolve: no such host, try again, no data.
const NOT_RESOLVED_CODES: [i32; 3] = [11001, 11002, 11004];

impl Failure {
    fn of(error: &(dyn std::error::Error + 'static)) -> Failure {
        let mut next = Some(error);
        while let Some(error) = next {
            let found = match error.downcast_ref::<ureq::Error>() {
                Some(ureq::Error::HostNotFound) => Failure::NoHost,
                Some(ureq::Error::Rustls(inner)) => Failure::of_tls(&inner.to_string()),
                Some(
                    ureq::Error::BadUri(_) | ureq::Error::InvalidProxyUrl | ureq::Error::Http(_),
                ) => Failure::ForGood,
                Some(ureq::Error::Io(inner)) => Failure::of_io(inner),
                _ => error.downcast_ref().map_or(Failure::Passing, Failure::of_io),
            };
            if found != Failure::Passing {
                return found;
            }
            next = error.source();
        }
        Failure::Passing
    }

    fn of_io(error: &std::io::Error) -> Failure {
        let text = error.to_string();
        let is_unresolved = text.starts_with(NOT_RESOLVED)
            || cfg!(windows)
                && error.raw_os_error().is_some_and(|code| NOT_RESOLVED_CODES.contains(&code));
        match error.kind() {
            _ if is_unresolved => Failure::NoHost,
            ErrorKind::InvalidData => Failure::of_tls(&text),
            ErrorKind::ConnectionRefused => Failure::ForGood,
            _ => Failure::Passing,
        }
    }

    /// By the message of the TLS library.
    fn of_tls(text: &str) -> Failure {
        let is_of_certificate = text.contains("invalid peer certificate");
        if is_of_certificate { Failure::Certificate } else { Failure::ForGood }
    }

    /// What to do about it.
    fn remedy(self) -> &'static str {
        match self {
            Failure::Passing | Failure::ForGood => "check the network, HF_ENDPOINT and HTTPS_PROXY",
            Failure::NoHost => "no host of that name is found: check the network and HF_ENDPOINT",
            Failure::Certificate => {
                "the certificate is not one that this machine trusts: where a proxy has its own authority, let \
                 SSL_CERT_FILE name a file with its certificate (PEM); check the clock, too"
            }
        }
    }
}
