//! What a repository holds, as the Hub's interface answers, and which of it is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use moeflux_core::files::read_bounded;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::cache::Cache;
use super::error::{HubError, beginning};
use super::event::Chosen;
use super::gguf::{Entry, Sets};
use super::http::{Client, Request, content_length};
use super::name::{Repo, is_component, is_gguf, is_plain_component};
use super::retry::Attempts;
use super::select::{Layout, is_keystone};
use crate::name::is_hex;

/// Answers longer than this are not a list of files.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// Files of a model at most: the largest have some hundred.
const MAX_FILES: usize = 10_000;
/// The longest path of a file in its repository, in bytes.
const MAX_PATH: usize = 1024;
/// The longest ETag that names a blob, in bytes: the name of a partial file is longer.
const MAX_ETAG: usize = 128;
/// Indexes and configs longer than this are none; the index of the largest model has 20 MB.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// Which names of files are taken.
const NAMES: &str = "a name must not begin with a dot or a space, end with a space, be longer than 255 bytes, or have \
                     control characters, invisible ones or any of \\ : * ? \" < > |";

/// What addresses encode of the path of a file.
const IN_PATHS: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The needed files of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    /// The commit, 40 hexadecimal digits.
    pub(super) commit: String,
    /// In the order in which they are put in place: what makes a directory a model comes last.
    pub(super) files: Vec<RemoteFile>,
    /// The name and the content of the file that lists the weights, if there is one.
    pub(super) index: Option<(&'static str, Vec<u8>)>,
    /// The GGUF file, where the model is one.
    pub(super) gguf: Option<Chosen>,
}

/// The files that are needed, by name.
struct Needed {
    names: BTreeSet<String>,
    index: Option<(&'static str, Vec<u8>)>,
    gguf: Option<Chosen>,
}

impl Listing {
    /// The path that the model is opened by, its files being in `dir`.
    pub(super) fn model_in(&self, dir: PathBuf) -> PathBuf {
        match &self.gguf {
            Some(chosen) => dir.join(&chosen.path),
            None => dir,
        }
    }
}

/// A file whose size and name in the cache are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    /// Relative path, checked to stay within the repository.
    pub(super) path: String,
    pub(super) url: String,
    pub(super) size: u64,
    /// Name of the blob in the cache: SHA-256, or the hash that git gives the file.
    pub(super) blob: String,
    pub(super) hash: Hash,
}

/// What the content is checked against, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    /// Of files in large-file storage.
    Sha256(String),
    /// The SHA-1 that git gives a file: of `blob <size>\0` and the content.
    Git(String),
    /// The Hub did not say.
    Unknown,
}

#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Clone, Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Clone, Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Whom to ask about which repository, and where earlier answers are.
pub(super) struct Source<'a> {
    pub(super) client: &'a Client,
    pub(super) repo: &'a Repo,
    pub(super) cache: &'a Cache,
}

impl Source<'_> {
    /// Asks the Hub for the files of the revision, and chooses the needed ones.
    pub(super) fn list(&self, attempts: &mut Attempts<'_>) -> Result<Listing, HubError> {
        let revision = self.repo.revision.replace('/', "%2F");
        let Client { endpoint, retry, .. } = self.client;
        let url =
            format!("{endpoint}/api/models/{}/revision/{revision}?blobs=true", self.repo.name);
        let info = retry.run(attempts, || 0, || self.ask(&url))?;
        if !is_hex(&info.sha, 40) {
            let problem = format!("{:?} for a commit", beginning(&info.sha));
            return Err(HubError::Answer { url, problem });
        }
        let is_outside =
            |path: &&str| path.starts_with('/') || path.split('/').any(|part| part == "..");
        let paths: BTreeSet<&str> =
            info.siblings.iter().map(|sibling| sibling.rfilename.as_str()).collect();
        if let Some(path) = paths.iter().copied().find(is_outside) {
            return Err(self.refuse_name(path, "it leads outside of the repository"));
        }
        let Needed { names: wanted, index, gguf } = self.choose(&info, &paths, attempts)?;
        if wanted.len() > MAX_FILES {
            let problem = format!("a model of {} files, more than {MAX_FILES}", wanted.len());
            return Err(HubError::Answer { url, problem });
        }
        let mut files = Vec::with_capacity(wanted.len());
        for sibling in info.siblings.iter().filter(|sibling| wanted.contains(&sibling.rfilename)) {
            files.push(self.settle(&info.sha, sibling, attempts)?);
        }
        files.sort_by_key(|file| (is_keystone(&file.path), file.path.clone()));
        files.dedup_by(|a, b| a.path == b.path);
        self.check_together(&files)?;
        Ok(Listing { commit: info.sha, files, index, gguf })
    }

    /// Refuses files that cannot be in one folder, or in one cache of contents.
    fn check_together(&self, files: &[RemoteFile]) -> Result<(), HubError> {
        let paths: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let mut sizes = BTreeMap::new();
        for file in files {
            let mut folders = file.path.match_indices('/').map(|(end, _)| &file.path[..end]);
            if folders.any(|folder| paths.contains(folder)) {
                return Err(self.refuse_name(&file.path, "a file has the name of its folder"));
            }
            let size = *sizes.entry(&file.blob).or_insert(file.size);
            if size != file.size {
                let problem = format!(
                    "the hash or ETag of another file for {}, of {} bytes in place of {size}",
                    file.path, file.size
                );
                return Err(HubError::Answer { url: file.url.clone(), problem });
            }
        }
        Ok(())
    }

    /// The files of the model: the GGUF file that is asked for, or that of a repository that has
    /// nothing else.
    fn choose(
        &self,
        info: &ModelInfo,
        paths: &BTreeSet<&str>,
        attempts: &mut Attempts<'_>,
    ) -> Result<Needed, HubError> {
        let layout = Layout::of(paths);
        let has_gguf = paths.iter().any(|path| is_gguf(path));
        if self.repo.gguf.is_some() || (layout.is_err() && has_gguf) {
            return self.choose_gguf(info);
        }
        let cannot_run = |problem| HubError::NoWeights { repo: self.repo.describe(), problem };
        let layout = layout.map_err(cannot_run)?;
        let index = match layout.index() {
            Some(name) => Some((name, self.read_index(info, name, attempts)?)),
            None => None,
        };
        let content = index.as_ref().map(|(_, content)| content.as_slice());
        let names = layout.select(paths, content).map_err(cannot_run)?;
        Ok(Needed { names, index, gguf: None })
    }

    fn choose_gguf(&self, info: &ModelInfo) -> Result<Needed, HubError> {
        let sets = Sets::of(info.siblings.iter().map(|sibling| Entry {
            path: &sibling.rfilename,
            size: sibling.lfs.as_ref().and_then(|lfs| lfs.size).or(sibling.size),
        }));
        let repo = &self.repo.name;
        let choice = sets.choose(self.repo.gguf.as_ref(), repo);
        let choice =
            choice.map_err(|problem| HubError::Choice { repo: self.repo.describe(), problem })?;
        let tower = sets.tower(choice.set);
        let chosen = Chosen {
            repo: repo.clone(),
            label: sets.label(choice.set).to_owned(),
            path: choice.set.first().to_owned(),
            is_default: choice.is_default,
            tower: tower.cloned(),
            passed_over: sets
                .passed_over
                .iter()
                .filter(|path| Some(*path) != tower)
                .cloned()
                .collect(),
        };
        let names = choice.set.parts.iter().chain(tower).cloned().collect();
        Ok(Needed { names, index: None, gguf: Some(chosen) })
    }

    fn ask(&self, url: &str) -> Result<ModelInfo, HubError> {
        let what = self.repo.describe();
        let bytes = self.client.read_all(self.request(url, &what), MAX_ANSWER_BYTES)?;
        serde_json::from_slice(&bytes).map_err(|source| match bytes.trim_ascii_start().first() {
            Some(b'<') => HubError::WebPage { url: url.to_owned() },
            _ => HubError::Answer {
                url: url.to_owned(),
                problem: format!(
                    "something that is not a model's description ({})",
                    moeflux_core::json_problem(&source)
                ),
            },
        })
    }

    /// The file that lists the weights: from the cache if it is there.
    fn read_index(
        &self,
        info: &ModelInfo,
        name: &str,
        attempts: &mut Attempts<'_>,
    ) -> Result<Vec<u8>, HubError> {
        let sibling = info.siblings.iter().find(|sibling| sibling.rfilename == name);
        let sibling = sibling.expect("the layout was chosen by this file");
        let file = self.settle(&info.sha, sibling, attempts)?;
        self.read_json(&file, attempts)
    }

    /// A small file: from the cache if it is there.
    pub(super) fn read_json(
        &self,
        file: &RemoteFile,
        attempts: &mut Attempts<'_>,
    ) -> Result<Vec<u8>, HubError> {
        let blob = self.cache.blob(&file.blob);
        if blob.metadata().is_ok_and(|meta| meta.len() == file.size && file.size < MAX_JSON_BYTES) {
            return read_bounded(&blob, MAX_JSON_BYTES).map_err(HubError::io("read", &blob));
        }
        let request = self.request(&file.url, &file.path);
        let bytes = self.client.retry.run(
            attempts,
            || 0,
            || self.client.read_all(request, MAX_JSON_BYTES),
        )?;
        if bytes.len() as u64 != file.size {
            let is_page = bytes.trim_ascii_start().starts_with(b"<");
            return Err(if is_page {
                HubError::WebPage { url: file.url.clone() }
            } else {
                file.damaged("size", bytes.len().to_string(), file.size.to_string())
            });
        }
        Ok(bytes)
    }

    pub(super) fn request<'a>(&'a self, url: &'a str, what: &'a str) -> Request<'a> {
        Request { url, repo: &self.repo.name, what, is_head: false, range: None }
    }

    fn refuse_name(&self, path: &str, problem: &'static str) -> HubError {
        HubError::FileName { repo: self.repo.name.clone(), file: path.to_owned(), problem }
    }

    /// Asks the Hub for what the list does not say of a file.
    fn settle(
        &self,
        commit: &str,
        sibling: &Sibling,
        attempts: &mut Attempts<'_>,
    ) -> Result<RemoteFile, HubError> {
        let path = &sibling.rfilename;
        if path.len() > MAX_PATH || !path.split('/').all(is_component) {
            return Err(self.refuse_name(path, NAMES));
        }
        let address = utf8_percent_encode(path, IN_PATHS);
        let url = format!("{}/{}/resolve/{commit}/{address}", self.client.endpoint, self.repo.name);
        let lfs = sibling.lfs.as_ref();
        let sha256 = lfs.and_then(|lfs| lfs.sha256.clone()).filter(|hash| is_hex(hash, 64));
        let git = sibling.blob_id.clone().filter(|id| is_hex(id, 40));
        let size = lfs.and_then(|lfs| lfs.size).or(sibling.size);
        let hash = match (sha256, git) {
            (Some(sha256), _) => Hash::Sha256(sha256.to_lowercase()),
            (None, Some(git)) if lfs.is_none() => Hash::Git(git.to_lowercase()),
            _ => Hash::Unknown,
        };
        if let (Hash::Sha256(blob) | Hash::Git(blob), Some(size)) = (&hash, size) {
            let (path, blob) = (path.clone(), blob.clone());
            return Ok(RemoteFile { path, url, size, blob, hash });
        }
        let what = format!("{path} of {}", self.repo.describe());
        let request = Request { is_head: true, ..self.request(&url, &what) };
        let answer = self.client.retry.run(attempts, || 0, || self.client.request(request))?;
        let is_name = |etag: &String| is_plain_component(etag) && etag.len() <= MAX_ETAG;
        let etag = answer.etag.filter(is_name);
        let size = size.or(answer.linked_size).or(content_length(&answer.response));
        let (Some(etag), Some(size)) = (etag, size) else {
            let problem = "no ETag and size that a file can have".to_owned();
            return Err(HubError::Answer { url, problem });
        };
        let hash = if is_hex(&etag, 64) { Hash::Sha256(etag.to_lowercase()) } else { hash };
        Ok(RemoteFile { path: path.clone(), url, size, blob: etag, hash })
    }
}

impl RemoteFile {
    pub(super) fn damaged(&self, what: &'static str, have: String, want: String) -> HubError {
        HubError::Damaged { file: self.path.clone(), what, have, want }
    }
}
