//! What a repository holds, as the hub's interface tells it, and which of it is needed.

use serde::Deserialize;

use super::error::HubError;
use super::http::Client;
use super::{Repo, is_component};

/// Answers longer than this are not a file list.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// The needed files of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    /// The commit, 40 hexadecimal digits.
    pub(super) commit: String,
    /// In the order in which they are put in place: what makes a directory a model comes last.
    pub(super) files: Vec<RemoteFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    /// Relative path, checked to stay within the repository.
    pub(super) path: String,
    pub(super) size: Option<u64>,
    /// Of files in large-file storage.
    pub(super) sha256: Option<String>,
    /// Name of the blob in the cache: SHA-256, or the hash that git gives the file.
    pub(super) blob: Option<String>,
}

#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    pub(super) fn fetch(client: &Client, repo: &Repo) -> Result<Self, HubError> {
        let revision = repo.revision.replace('/', "%2F");
        let url =
            format!("{}/api/models/{}/revision/{revision}?blobs=true", client.endpoint, repo.name);
        let what = repo.describe();
        let info: ModelInfo = client.with_retries(
            || 0,
            || {
                let mut body = client.request("GET", &url, &what, None)?.response.into_body();
                let bytes =
                    body.with_config().limit(MAX_ANSWER_BYTES).read_to_vec().map_err(|source| {
                        HubError::Network { url: url.clone(), source: Box::new(source) }
                    })?;
                serde_json::from_slice(&bytes).map_err(|e| HubError::Answer {
                    url: url.clone(),
                    problem: format!("something that is not a model's description ({e})"),
                })
            },
        )?;
        Self::new(info, repo, &url)
    }

    fn new(info: ModelInfo, repo: &Repo, url: &str) -> Result<Self, HubError> {
        if !is_hex(&info.sha, 40) {
            let problem = format!("{:?} for a commit", info.sha);
            return Err(HubError::Answer { url: url.to_owned(), problem });
        }
        let mut files = Vec::new();
        for sibling in info.siblings {
            if !is_needed(&sibling.rfilename) {
                continue;
            }
            if !is_safe_path(&sibling.rfilename) {
                return Err(HubError::FileName {
                    repo: repo.name.clone(),
                    file: sibling.rfilename,
                });
            }
            files.push(sibling.into_file());
        }
        let has_weights =
            |f: &RemoteFile| f.path.ends_with(".safetensors") || f.path == "model_weights.bin";
        if !files.iter().any(has_weights) {
            return Err(HubError::NoWeights { repo: repo.describe() });
        }
        files.sort_by_key(|f| (is_keystone(&f.path), f.path.clone()));
        files.dedup_by(|a, b| a.path == b.path);
        Ok(Self { commit: info.sha, files })
    }
}

impl Sibling {
    fn into_file(self) -> RemoteFile {
        let (sha256, lfs_size) = self.lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
        let sha256 = sha256.filter(|hash| is_hex(hash, 64)).map(|hash| hash.to_lowercase());
        let blob = sha256.clone().or(self.blob_id.filter(|id| is_hex(id, 40)));
        RemoteFile { path: self.rfilename, size: lfs_size.or(self.size), sha256, blob }
    }
}

impl Repo {
    pub(super) fn describe(&self) -> String {
        format!("{} at revision {}", self.name, self.revision)
    }
}

pub(super) fn is_hex(text: &str, n_digits: usize) -> bool {
    text.len() == n_digits && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The files that make a directory a model.
fn is_keystone(path: &str) -> bool {
    path == "config.json" || path == "moeflux.json"
}

fn is_safe_path(path: &str) -> bool {
    path.split('/').all(is_component)
}

/// Whether the engine reads this file.
fn is_needed(path: &str) -> bool {
    if path.starts_with("packed_experts/") {
        return true;
    }
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let begins = |prefix: &str| name.starts_with(prefix);
    let is_text = name.ends_with(".json") || name.ends_with(".jinja");
    let is_model = name.ends_with(".safetensors") || begins("model_weights.");
    let is_config = ["config.json", "generation_config.json", "special_tokens_map.json"]
        .contains(&name)
        || name == "moeflux.json"
        || name.ends_with(".safetensors.index.json")
        || (is_text && (begins("tokenizer") || begins("chat_template")));
    // Weights in sub-folders are other formats of the same model, or adapters. A name with `..` is
    // kept, to be refused by name.
    (folder.is_empty() || folder.contains("..") || folder.starts_with('.'))
        && (is_model || is_config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_engine_reads_is_needed() {
        for (path, want) in [
            ("config.json", true),
            ("generation_config.json", true),
            ("tokenizer.json", true),
            ("tokenizer_config.json", true),
            ("tokenizer.model", false),
            ("chat_template.jinja", true),
            ("model.safetensors", true),
            ("model-00001-of-00002.safetensors", true),
            ("model.safetensors.index.json", true),
            ("moeflux.json", true),
            ("packed_experts/layer_00.bin", true),
            ("model_weights.bin", true),
            ("pytorch_model.bin", false),
            ("model.gguf", false),
            ("original/consolidated.safetensors", false),
            ("README.md", false),
            ("figure.png", false),
            ("../model.safetensors", true),
        ] {
            assert_eq!(is_needed(path), want, "{path}");
        }
    }

    #[test]
    fn paths_do_not_leave_the_repository() {
        for path in ["../x", "a/../x", "/etc/x", "a//b", "a\\b", "c:x", ".", "", "a/."] {
            assert!(!is_safe_path(path), "{path}");
        }
        assert!(is_safe_path("packed_experts/layer_00.bin"));
    }
}
