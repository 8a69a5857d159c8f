//! Models from the Hugging Face Hub, into the cache that its own tools use.
//!
//! `org/name` or `org/name@revision` becomes a directory with the files of one commit. Downloads
//! resume, are checked by size and, for large files, by SHA-256, and appear under their names only
//! when they are whole. Nothing here reads the environment: the binary fills [`HubEnv`].

mod api;
mod cache;
mod download;
mod error;
mod http;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::HubError;

use api::Listing;
use cache::Cache;
use http::{Client, N_ATTEMPTS};

/// Where the hub is, who asks, and where files are kept.
#[derive(Clone, Debug)]
pub struct HubEnv {
    /// Base address without a slash at the end, `https://huggingface.co` by default.
    pub endpoint: String,
    /// Access token, sent to the endpoint's host only.
    pub token: Option<String>,
    /// The folder of `models--org--name`, in Hugging Face's layout.
    pub cache_dir: PathBuf,
    /// Never ask the network.
    pub is_offline: bool,
    /// Wait before the first repetition of a failed request; doubled each time.
    pub retry_wait: Duration,
    /// Files fetched at the same time.
    pub n_parallel: usize,
}

/// What a download is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// Another process is downloading the same model.
    Waiting {
        /// The file that it holds locked.
        lock: &'a Path,
    },
    /// Bytes have arrived. All counts include what was there before.
    Bytes {
        /// The file, relative to the repository.
        file: &'a str,
        /// Bytes of this file that are here.
        file_done: u64,
        /// Size of this file.
        file_total: u64,
        /// Bytes of all files that are here.
        done: u64,
        /// Size of all files.
        total: u64,
    },
}

/// `org/name`, and which revision of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repo {
    pub(crate) name: String,
    pub(crate) revision: String,
}

impl HubEnv {
    /// Reads the variables that Hugging Face's tools know: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_CACHE`,
    /// `HF_HOME`, `XDG_CACHE_HOME`, `HOME`, `HF_HUB_OFFLINE`. `lookup` tells the value of one;
    /// an empty value counts as none.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let var = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let home = || var("HOME").or_else(|| var("USERPROFILE")).map(PathBuf::from);
        let hf_home = var("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let xdg = var("XDG_CACHE_HOME").map(PathBuf::from);
            let cache = xdg.or_else(|| home().map(|home| home.join(".cache")));
            cache.unwrap_or_else(|| PathBuf::from(".cache")).join("huggingface")
        });
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let is_offline = var("HF_HUB_OFFLINE")
            .is_some_and(|v| ["1", "ON", "YES", "TRUE"].contains(&v.to_uppercase().as_str()));
        Self {
            endpoint: endpoint.trim().trim_end_matches('/').to_owned(),
            token: var("HF_TOKEN").map(|token| token.trim().to_owned()),
            cache_dir: var("HF_HUB_CACHE")
                .map(PathBuf::from)
                .unwrap_or_else(|| hf_home.join("hub")),
            is_offline,
            retry_wait: Duration::from_secs(1),
            n_parallel: 4,
        }
    }
}

/// Whether `model` has the form of a hub name, `org/name` with an optional `@revision`.
pub fn is_hub_name(model: &str) -> bool {
    Repo::parse(model).is_ok()
}

/// The directory of a model's files, downloaded if need be.
///
/// When the hub cannot be reached, a complete copy from earlier serves.
pub fn resolve(
    model: &str,
    env: &HubEnv,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, HubError> {
    let repo = Repo::parse(model)?;
    let cache = Cache::new(&env.cache_dir, &repo);
    // A commit never changes: a complete copy of it needs no question.
    if let Some(dir) = cache.complete_snapshot(&repo.revision) {
        return Ok(dir);
    }
    let cached = cache.read_ref(&repo).and_then(|commit| cache.complete_snapshot(&commit));
    if env.is_offline {
        let cache_dir = env.cache_dir.clone();
        return cached.ok_or(HubError::Offline { repo: repo.name, cache_dir });
    }
    // Whoever has a copy does not wait for a hub that is away.
    let n_attempts = if cached.is_some() { 1 } else { N_ATTEMPTS };
    let listing = match Listing::fetch(&Client::new(env, n_attempts), &repo) {
        Ok(listing) => listing,
        Err(error) if error.is_network() => return cached.ok_or(error),
        Err(error) => return Err(error),
    };
    let client = Client::new(env, N_ATTEMPTS);
    let _lock = cache.lock(progress)?;
    download::fetch_all(&client, &repo, &listing, &cache, env.n_parallel, progress)?;
    cache.write_ref(&repo, &listing.commit)?;
    Ok(cache.snapshot(&listing.commit))
}

impl Repo {
    fn parse(model: &str) -> Result<Self, HubError> {
        let (name, revision) = model.split_once('@').unwrap_or((model, "main"));
        let parts: Vec<_> = name.split('/').collect();
        let is_good = parts.len() == 2
            && parts.iter().all(|part| is_component(part) && part.len() <= 96)
            && revision.split('/').all(is_component);
        if !is_good {
            return Err(HubError::Name { model: model.to_owned() });
        }
        Ok(Self { name: name.to_owned(), revision: revision.to_owned() })
    }
}

/// Whether `part` is a harmless name of a file or folder.
pub(crate) fn is_component(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with('.')
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-+=".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_two_parts_and_perhaps_a_revision() {
        for (model, name, revision) in [
            ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", "main"),
            ("a/b@v1.0", "a/b", "v1.0"),
            ("a/b@refs/pr/1", "a/b", "refs/pr/1"),
        ] {
            let repo = Repo { name: name.into(), revision: revision.into() };
            assert_eq!(Repo::parse(model).unwrap(), repo);
        }
        for model in [
            "", "a", "a/b/c", "/b", "a/", "../b", "a/..", "a/b@", "a/b@../x", "a b/c", "a/b@x y",
            "./m",
        ] {
            let error = Repo::parse(model).unwrap_err().to_string();
            assert!(error.contains(&format!("{model:?}")), "{error}");
            assert!(!is_hub_name(model));
        }
    }

    #[test]
    fn the_environment_is_read_as_hugging_faces_tools_read_it() {
        let env = |vars: &[(&str, &str)]| {
            HubEnv::from_lookup(|name| vars.iter().find(|v| v.0 == name).map(|v| v.1.to_owned()))
        };
        let plain = env(&[("HOME", "/h"), ("HF_TOKEN", "")]);
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert_eq!(plain.cache_dir, Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(plain.token, None);
        let set = env(&[("HF_HOME", "/m"), ("HF_ENDPOINT", "http://x/"), ("HF_HUB_OFFLINE", "1")]);
        assert_eq!(set.endpoint, "http://x");
        assert_eq!(set.cache_dir, Path::new("/m/hub"));
        assert!(set.is_offline);
        assert_eq!(env(&[("HF_HUB_CACHE", "/c")]).cache_dir, Path::new("/c"));
    }
}
