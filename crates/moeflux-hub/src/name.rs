//! Names of models on the Hub: `org/name`, `org/name@revision`, `org/name:Q4_K_M`, and addresses
//! of pages.

use moeflux_core::gguf::PieceName;
use percent_encoding::percent_decode_str;

use super::env::DEFAULT_ENDPOINT;
use super::error::HubError;

/// Hosts whose addresses are understood whatever the endpoint is.
const HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];

/// First parts of the Hub's addresses that are no organisation.
const NO_ORGS: [&str; 10] = [
    "datasets",
    "spaces",
    "models",
    "docs",
    "api",
    "collections",
    "papers",
    "blog",
    "settings",
    "buckets",
];

/// The end of the names of GGUF files.
pub(super) const GGUF: &str = ".gguf";

/// A model repository, which revision of it, and which of its GGUF files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    /// `org/name`.
    pub name: String,
    /// A branch, a tag, a commit, or a reference such as `refs/pr/3`.
    pub revision: String,
    /// Which GGUF file is asked for; `None` leaves it to what the repository holds.
    pub gguf: Option<Wanted>,
}

/// A GGUF file of a repository, or the set of files that it is a part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The one whose name ends with this, such as `Q4_K_M`.
    Tag(String),
    /// The one with this path or name.
    File(String),
}

impl Repo {
    /// Understands `org/name`, `org/name@revision`, `org/name:TAG` for a GGUF file, and addresses
    /// of a model, a revision or a file on the Hub or on `endpoint`. `hf://org/name` is the same as
    /// `org/name`.
    ///
    /// # Errors
    /// [`HubError::Name`] says what is wrong and what to write.
    pub fn parse(model: &str, endpoint: &str) -> Result<Self, HubError> {
        let repo = match page_of(model, endpoint) {
            Page::Name(name) => Self::of_name(name),
            Page::Path(path) => Self::of_page(path),
            Page::Foreign => Err(format!("it is no address of {endpoint} or huggingface.co")),
        };
        repo.map_err(|problem| HubError::Name { model: model.to_owned(), problem })
    }

    fn of_name(text: &str) -> Result<Self, String> {
        let (name, mut rest) = split_before_mark(text);
        let (mut revision, mut gguf) = ("main", None);
        // `@revision` and `:TAG` in any order.
        while let Some(mark) = rest.chars().next() {
            let (value, next) = split_before_mark(&rest[1..]);
            match mark {
                '@' => revision = value,
                _ => gguf = tagged(value)?,
            }
            rest = next;
        }
        let parts: Vec<_> = name.split('/').collect();
        match parts[..] {
            [_, _] => Self::new(&parts, revision, gguf),
            [_, _, .., file] if is_gguf(file) && gguf.is_none() => {
                Self::new(&parts[..2], revision, Some(file_of(&parts[2..])?))
            }
            [org, name, ..] if !org.is_empty() && !name.is_empty() => Err(format!(
                "a folder of a repository cannot be chosen: write {org}/{name} or \
                 {org}/{name}@revision"
            )),
            _ => Err("write org/name or org/name@revision".into()),
        }
    }

    /// The path of an address: `org/name`, and perhaps what follows it.
    fn of_page(path: &str) -> Result<Self, String> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts.first().is_some_and(|first| NO_ORGS.contains(first)) || parts.len() < 2 {
            return Err("it is not the address of a model: write https://…/org/name".into());
        }
        let (repo, rest) = parts.split_at(2);
        match rest {
            [] => Self::of_name(&repo.join("/")),
            ["tree", rest @ ..] => {
                let (revision, folder) = split_revision(rest)?;
                if !folder.is_empty() {
                    let (folder, repo) = (folder.join("/"), repo.join("/"));
                    return Err(format!(
                        "the folder {folder} of a repository cannot be chosen: write {repo}, or \
                         {repo}:{folder} for the GGUF files in it"
                    ));
                }
                Self::new(repo, &revision, None)
            }
            ["commit" | "commits", rest @ ..] => Self::new(repo, &split_revision(rest)?.0, None),
            ["blob" | "resolve" | "raw", rest @ ..] => {
                let (revision, file) = split_revision(rest)?;
                match file {
                    [name] if is_of_model(name) => Self::new(repo, &revision, None),
                    [.., name] if is_gguf(name) => Self::new(repo, &revision, Some(file_of(file)?)),
                    _ => Err(format!(
                        "{} is no file that moeflux reads a model from",
                        if file.is_empty() { "this".into() } else { file.join("/") }
                    )),
                }
            }
            _ => Err(format!("write {}, or {}@revision", repo.join("/"), repo.join("/"))),
        }
    }

    fn new(parts: &[&str], revision: &str, gguf: Option<Wanted>) -> Result<Self, String> {
        let is_good = |part: &&str| {
            let is_plain = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
            // `--` separates the parts in the cache's names of folders.
            is_plain
                && is_component(part)
                && part.len() <= 96
                && !part.contains("--")
                && !part.contains("..")
        };
        if !parts.iter().all(is_good) {
            return Err("write org/name or org/name@revision".into());
        }
        if revision.len() > 255 || !revision.split('/').all(is_plain_component) {
            return Err(format!(
                "{revision:?} is no revision: write a branch, a tag or a commit after the @"
            ));
        }
        Ok(Self { name: parts.join("/"), revision: revision.to_owned(), gguf })
    }

    pub(super) fn describe(&self) -> String {
        format!("{} at revision {}", self.name, self.revision)
    }
}

/// Whether `text` is a name or an address of a model on the Hub.
pub fn is_hub_name(text: &str) -> bool {
    Repo::parse(text, DEFAULT_ENDPOINT).is_ok()
}

/// Whether `text` is written as an address rather than a name or a path.
pub fn is_address(text: &str, endpoint: &str) -> bool {
    !matches!(page_of(text, endpoint), Page::Name(_)) || text.starts_with("hf://")
}

enum Page<'a> {
    Name(&'a str),
    Path(&'a str),
    Foreign,
}

fn page_of<'a>(text: &'a str, endpoint: &str) -> Page<'a> {
    let text = text.trim();
    if let Some(rest) = text.strip_prefix("hf://") {
        return Page::Name(rest.strip_prefix("models/").unwrap_or(rest));
    }
    let bare_endpoint = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (Some(scheme.to_lowercase()), rest),
        None => (None, text),
    };
    // An endpoint may have a path of its own.
    for host in HOSTS.into_iter().chain([bare_endpoint]).filter(|host| !host.is_empty()) {
        let Some(start) = rest.get(..host.len()) else { continue };
        let after = &rest[host.len()..];
        if start.eq_ignore_ascii_case(host) && (after.is_empty() || after.starts_with('/')) {
            return Page::Path(after);
        }
    }
    match scheme {
        Some(_) => Page::Foreign,
        None => Page::Name(text),
    }
}

/// The revision at the start of an address's rest, and what follows it.
fn split_revision<'a>(parts: &'a [&'a str]) -> Result<(String, &'a [&'a str]), String> {
    let n_parts = match parts {
        [] => return Err("the address ends before its revision".into()),
        ["refs", _, _, ..] => 3,
        _ => 1,
    };
    let (revision, rest) = parts.split_at(n_parts);
    let revision = revision.join("/");
    let revision = percent_decode_str(&revision).decode_utf8_lossy().into_owned();
    Ok((revision, rest))
}

/// Whether an address of this file stands for the model that the file is part of.
fn is_of_model(name: &str) -> bool {
    [".safetensors", ".json", ".jinja", ".md", "model_weights.bin"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn split_before_mark(text: &str) -> (&str, &str) {
    text.split_at(text.find(['@', ':']).unwrap_or(text.len()))
}

/// What is asked for behind a colon. `latest` is how other tools spell nothing.
fn tagged(tag: &str) -> Result<Option<Wanted>, String> {
    if tag.eq_ignore_ascii_case("latest") {
        return Ok(None);
    }
    if tag.is_empty() || tag.len() > 255 || !tag.split('/').all(is_component) {
        return Err(format!(
            "{tag:?} names no GGUF file: write the end of its name after the colon, such as \
             :Q4_K_M"
        ));
    }
    let tag = tag.to_owned();
    Ok(Some(if is_gguf(&tag) { Wanted::File(tag) } else { Wanted::Tag(tag) }))
}

/// The path of a GGUF file in a repository.
fn file_of(parts: &[&str]) -> Result<Wanted, String> {
    let path = parts.join("/");
    let path = percent_decode_str(&path).decode_utf8_lossy().into_owned();
    if path.split('/').all(is_component) {
        Ok(Wanted::File(path))
    } else {
        Err(format!("{path:?} is no name of a file"))
    }
}

/// Whether a path is that of a GGUF file.
pub(super) fn is_gguf(path: &str) -> bool {
    let is_whole = path.len() > GGUF.len() && path.to_ascii_lowercase().ends_with(GGUF);
    is_whole || piece_of(path).is_some()
}

/// What the name of a file says of a GGUF file of which it is a piece.
pub(super) fn piece_of(path: &str) -> Option<PieceName<'_>> {
    PieceName::parse(path.rsplit('/').next().unwrap_or(path))
}

/// The longest name of a file or folder, in bytes, as file systems have it.
const MAX_COMPONENT: usize = 255;

/// Whether `part` is a harmless name of a file or folder on all systems, in any script. `:` ends the name of a
/// repository here, and of a drive on Windows.
pub(super) fn is_component(part: &str) -> bool {
    let is_harmless = |c: char| !c.is_control() && !"/\\:*?\"<>|".contains(c) && !is_invisible(c);
    (1..=MAX_COMPONENT).contains(&part.len())
        && !part.starts_with(['.', ' '])
        && !part.ends_with(' ')
        && part.chars().all(is_harmless)
}

/// Whether a character is not seen, or turns the direction of what is around it.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Whether `part` is plain enough for a part of a revision, or for the name of a blob.
pub(super) fn is_plain_component(part: &str) -> bool {
    is_component(part) && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-+=".contains(&b))
}

pub(super) fn is_hex(text: &str, n_digits: usize) -> bool {
    text.len() == n_digits && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUB: &str = "https://huggingface.co";

    #[test]
    fn names_and_addresses_are_understood() {
        for (model, name, revision) in [
            ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", "main"),
            ("a/b@v1.0", "a/b", "v1.0"),
            ("a/b@refs/pr/1", "a/b", "refs/pr/1"),
            ("hf://a/b@dev", "a/b", "dev"),
            ("hf://models/a/b", "a/b", "main"),
            ("https://huggingface.co/a/b", "a/b", "main"),
            ("https://HuggingFace.co/a/b/", "a/b", "main"),
            ("http://hf.co/a/b?library=mlx", "a/b", "main"),
            ("huggingface.co/a/b#usage", "a/b", "main"),
            ("https://huggingface.co/a/b@v2", "a/b", "v2"),
            ("https://huggingface.co/a/b/tree/main", "a/b", "main"),
            ("https://huggingface.co/a/b/tree/refs%2Fpr%2F3", "a/b", "refs/pr/3"),
            ("https://huggingface.co/a/b/tree/refs/pr/3", "a/b", "refs/pr/3"),
            ("https://huggingface.co/a/b/blob/v1/model.safetensors", "a/b", "v1"),
            ("https://huggingface.co/a/b/resolve/main/config.json?download=true", "a/b", "main"),
            ("https://huggingface.co/a/b/commit/abc", "a/b", "abc"),
        ] {
            let repo = Repo { name: name.into(), revision: revision.into(), gguf: None };
            assert_eq!(Repo::parse(model, HUB).unwrap(), repo, "{model}");
        }
        let mirror = Repo::parse("http://127.0.0.1:80/hub/a/b/tree/x", "http://127.0.0.1:80/hub");
        let want = Repo { name: "a/b".into(), revision: "x".into(), gguf: None };
        assert_eq!(mirror.unwrap(), want);
    }

    #[test]
    fn gguf_files_are_named_by_tag_or_path() {
        let tag = |tag: &str| Some(Wanted::Tag(tag.into()));
        let file = |path: &str| Some(Wanted::File(path.into()));
        for (model, revision, gguf) in [
            ("a/b-GGUF:Q4_K_M", "main", tag("Q4_K_M")),
            ("a/b-GGUF:UD-Q4_K_XL@v1", "v1", tag("UD-Q4_K_XL")),
            ("a/b-GGUF@refs/pr/3:q8_0", "refs/pr/3", tag("q8_0")),
            ("a/b-GGUF:latest", "main", None),
            ("a/b-GGUF:sub/x-Q8_0.gguf", "main", file("sub/x-Q8_0.gguf")),
            ("hf.co/a/b-GGUF:Q4_K_M", "main", tag("Q4_K_M")),
            ("https://huggingface.co/a/b-GGUF:Q4_K_M@v1", "v1", tag("Q4_K_M")),
            ("hf://a/b-GGUF/x/y-00002-of-00003.gguf", "main", file("x/y-00002-of-00003.gguf")),
            ("https://huggingface.co/a/b-GGUF/blob/main/x.gguf", "main", file("x.gguf")),
            ("a/b-GGUF:My Model (Q4)", "main", tag("My Model (Q4)")),
            ("a/b-GGUF:模型-Q4_0.gguf", "main", file("模型-Q4_0.gguf")),
            ("hf.co/a/b-GGUF/blob/main/My%20Model%20[Q4].gguf", "main", file("My Model [Q4].gguf")),
            ("huggingface.co/a/b-GGUF/resolve/v1/Q8/x.GGUF?download=true", "v1", file("Q8/x.GGUF")),
        ] {
            let want = Repo { name: "a/b-GGUF".into(), revision: revision.into(), gguf };
            assert_eq!(Repo::parse(model, HUB).unwrap(), want, "{model}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_a_remedy() {
        for (model, remedy) in [
            ("", "org/name"),
            ("a", "org/name"),
            ("a/b/c", "write a/b"),
            ("/b", "org/name"),
            ("a/", "org/name"),
            ("../b", "org/name"),
            ("a/..", "org/name"),
            ("./m", "org/name"),
            ("a--b/c", "org/name"),
            ("a/b..c", "org/name"),
            ("a b/c", "org/name"),
            ("a/b@", "a branch, a tag"),
            ("a/b@../x", "a branch, a tag"),
            ("a/b@x y", "a branch, a tag"),
            ("a/b:", "such as :Q4_K_M"),
            ("a/b:x\ty", "such as :Q4_K_M"),
            ("a/b: x", "such as :Q4_K_M"),
            ("a/b:x\u{202e}y", "such as :Q4_K_M"),
            ("a/b:../x", "such as :Q4_K_M"),
            ("a/b:Q4@", "a branch, a tag"),
            ("a/b/c:Q4", "write a/b"),
            ("https://example.com/a/b", "no address of https://huggingface.co"),
            ("https://huggingface.co@evil.com/a/b", "no address of"),
            ("ftp://a/b", "no address of"),
            ("https://huggingface.co", "not the address of a model"),
            ("https://huggingface.co/datasets/a/b", "not the address of a model"),
            ("https://huggingface.co/a/b/tree/main/sub", "a/b:sub for the GGUF files"),
            ("https://huggingface.co/a/b/blob/main/x.onnx", "x.onnx is no file"),
            ("https://huggingface.co/a/b/blob/main/x%0Ay.gguf", "no name of a file"),
            ("https://huggingface.co/a/b/blob/main/%2e%2e%2fy.gguf", "no name of a file"),
            ("https://huggingface.co/a/b/discussions/3", "write a/b"),
        ] {
            let error = Repo::parse(model, HUB).unwrap_err().to_string();
            assert!(error.contains(&format!("{model:?}")), "{error}");
            assert!(error.contains(remedy), "{error}");
        }
    }
}
