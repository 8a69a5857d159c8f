//! Settings: where the Hub is, who asks, and where files are kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::certificates::Certificates;

/// The Hub's address where no variable names another.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Where the Hub is, who asks, and where files are kept.
#[derive(Clone, Debug)]
pub struct HubEnv {
    /// Base address without a slash at the end, and without a name and a password before its host:
    /// `https://huggingface.co` by default.
    pub endpoint: String,
    /// The name and the password that the address had, sent to the endpoint's host where no token is.
    pub login: Option<Login>,
    /// Access token, sent to the endpoint's host only.
    pub token: Option<Token>,
    /// The folder of `models--org--name`, in Hugging Face's layout.
    pub cache_dir: PathBuf,
    /// The authorities whose certificates are trusted; without it those of the operating system.
    pub certificates: Option<Certificates>,
    /// Never use the network.
    pub is_offline: bool,
    /// Wait before the first repetition of a failed request; doubled each time.
    pub retry_wait: Duration,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a server may send nothing before the request counts as failed.
    pub stall_timeout: Duration,
    /// Files fetched at the same time.
    pub n_parallel: usize,
}

/// An access token and where it was found.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The secret.
    pub secret: String,
    /// The variable or the file that it was read from, for messages.
    pub source: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token from {}", self.source) // the secret stays out of logs
    }
}

/// A name and a password, as addresses have them: `name:password`.
#[derive(Clone, PartialEq, Eq)]
pub struct Login(String);

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login") // as of a token
    }
}

impl Login {
    /// Takes the login out of an address.
    fn split_off(address: &str) -> (String, Option<Login>) {
        let start = address.find("://").map_or(0, |at| at + 3);
        let end = address[start..].find(['/', '?', '#']).map_or(address.len(), |at| start + at);
        match address[start..end].rsplit_once('@') {
            Some((login, host)) => {
                let bare = format!("{}{host}{}", &address[..start], &address[end..]);
                (bare, Some(Login(login.to_owned())))
            }
            None => (address.to_owned(), None),
        }
    }

    /// An address of this login: requests have it, messages have the one without.
    pub(super) fn join(&self, address: &str) -> String {
        let start = address.find("://").map_or(0, |at| at + 3);
        format!("{}{}@{}", &address[..start], self.0, &address[start..])
    }
}

impl HubEnv {
    /// Reads the variables that Hugging Face's tools know: `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_DISABLE_IMPLICIT_TOKEN`, `HF_HUB_CACHE`, `HF_HOME`,
    /// `XDG_CACHE_HOME`, `HOME`, `HF_HUB_OFFLINE`, `TRANSFORMERS_OFFLINE`,
    /// `HF_HUB_DOWNLOAD_TIMEOUT`, and `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE` or `CURL_CA_BUNDLE`. `lookup` returns the value of one; an empty value counts as
    /// none. Without a variable the token is read from the file that `hf auth login` writes.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let var = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let home = || var("HOME").or_else(|| var("USERPROFILE")).map(PathBuf::from);
        let path = |name: &str| var(name).map(|value| expand_home(&value, home()));
        let hf_home = path("HF_HOME").unwrap_or_else(|| {
            let cache = path("XDG_CACHE_HOME").or_else(|| home().map(|home| home.join(".cache")));
            cache.unwrap_or_else(|| PathBuf::from(".cache")).join("huggingface")
        });
        let is_set = |name: &str| {
            var(name).is_some_and(|value| {
                ["1", "ON", "YES", "TRUE"].contains(&value.trim().to_uppercase().as_str())
            })
        };
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"));
        let of_variable = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].into_iter().find_map(|name| {
            let secret = var(name)?.trim().to_owned();
            Some(Token { secret, source: name.to_owned() })
        });
        let token = if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            of_variable
        } else {
            of_variable.or_else(|| read_token(&token_file))
        };
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.into());
        let (endpoint, login) = Login::split_off(endpoint.trim().trim_end_matches('/'));
        let timeout = var("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|value| value.trim().parse().ok());
        Self {
            endpoint,
            login,
            token,
            cache_dir: path("HF_HUB_CACHE")
                .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
                .unwrap_or_else(|| hf_home.join("hub")),
            certificates: Certificates::from_lookup(var),
            is_offline: is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE"),
            retry_wait: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(timeout.filter(|&secs| secs > 0).unwrap_or(30)),
            n_parallel: 4,
        }
    }
}

/// Replaces a leading `~`, which the shell leaves alone in quotes and in files of variables.
fn expand_home(value: &str, home: Option<PathBuf>) -> PathBuf {
    match (value.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home,
        (Some(rest), Some(home)) if rest.starts_with('/') => {
            home.join(rest.trim_start_matches('/'))
        }
        _ => PathBuf::from(value),
    }
}

/// The token in a file, if the file can be read and holds one.
fn read_token(path: &Path) -> Option<Token> {
    let is_small = fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() < 1 << 16);
    let text = is_small.then(|| fs::read_to_string(path).ok()).flatten()?;
    let secret = text.trim().to_owned();
    (!secret.is_empty()).then(|| Token { secret, source: path.display().to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(vars: &[(&str, &str)]) -> HubEnv {
        HubEnv::from_lookup(|name| vars.iter().find(|v| v.0 == name).map(|v| v.1.to_owned()))
    }

    #[test]
    fn the_environment_is_read_as_hugging_faces_tools_read_it() {
        let plain = env(&[("HOME", "/h"), ("HF_TOKEN", "")]);
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert_eq!(plain.cache_dir, Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(plain.token, None);
        let set = env(&[("HF_HOME", "/m"), ("HF_ENDPOINT", "http://x/"), ("HF_HUB_OFFLINE", "1")]);
        assert_eq!(set.endpoint, "http://x");
        assert_eq!(set.cache_dir, Path::new("/m/hub"));
        assert!(set.is_offline);
        assert_eq!(env(&[("HF_HUB_CACHE", "/c")]).cache_dir, Path::new("/c"));
        let tilde = env(&[("HF_HUB_CACHE", "~/c"), ("HOME", "/h")]);
        assert_eq!(tilde.cache_dir, Path::new("/h/c"));
        for (value, is_offline) in [("true", true), ("Yes", true), ("on", true), ("maybe", false)] {
            assert_eq!(env(&[("TRANSFORMERS_OFFLINE", value)]).is_offline, is_offline, "{value}");
            assert_eq!(env(&[("HF_HUB_OFFLINE", value)]).is_offline, is_offline, "{value}");
        }
        assert_eq!(env(&[("HF_HUB_DOWNLOAD_TIMEOUT", "7")]).stall_timeout.as_secs(), 7);
        assert_eq!(env(&[("HF_HUB_DOWNLOAD_TIMEOUT", "x")]).stall_timeout.as_secs(), 30);
    }

    #[test]
    fn a_password_is_taken_out_of_the_address() {
        for (address, bare, login) in [
            ("http://u:p@h:1/hub/", "http://h:1/hub", Some("u:p")),
            ("http://u:p@x@h", "http://h", Some("u:p@x")),
            ("https://h/a@b", "https://h/a@b", None),
        ] {
            let env = env(&[("HF_ENDPOINT", address)]);
            assert_eq!(env.endpoint, bare);
            assert_eq!(env.login, login.map(|login| Login(login.to_owned())), "{address}");
            assert!(!format!("{env:?}").contains("u:p"), "{env:?}");
        }
        let login = Login(String::from("u:p"));
        assert_eq!(login.join("http://h/a?b"), "http://u:p@h/a?b");
    }

    #[test]
    fn a_token_comes_from_a_variable_or_from_the_file_of_a_login() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        assert_eq!(env(&[("HF_HOME", home)]).token, None);
        fs::write(dir.path().join("token"), " hf_file\n").unwrap();
        let token = env(&[("HF_HOME", home)]).token.unwrap();
        assert_eq!(token.secret, "hf_file");
        assert!(token.source.ends_with("token") && !format!("{token:?}").contains("hf_file"));
        assert_eq!(env(&[("HF_HOME", home), ("HF_TOKEN", "v")]).token.unwrap().secret, "v");
        let elsewhere = dir.path().join("other");
        fs::write(&elsewhere, "hf_other").unwrap();
        let path = [("HF_TOKEN_PATH", elsewhere.to_str().unwrap())];
        assert_eq!(env(&path).token.unwrap().secret, "hf_other");
        let off = [("HF_HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")];
        assert_eq!(env(&off).token, None);
    }
}
