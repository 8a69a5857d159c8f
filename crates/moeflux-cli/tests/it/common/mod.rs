//! Running the binary, and models that tests may damage.

pub(crate) mod server;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use assert_cmd::Command;
use serde_json::Value;

/// Variables of the user's that would change what the binary does.
const FOREIGN: [&str; 10] = [
    "MOEFLUX_DEVICE",
    "MOEFLUX_EXPERT_IO",
    "MOEFLUX_PROMPT_CACHE",
    "HF_ENDPOINT",
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HUB_CACHE",
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "RUST_BACKTRACE",
    "MOEFLUX_API_KEY",
];

/// The binary, cut off from the network and from the user's files.
pub(crate) fn moeflux<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("moeflux");
    for variable in FOREIGN {
        command.env_remove(variable);
    }
    command.env("MOEFLUX_CACHE", tmp.join("cache"));
    command.env("HF_HOME", tmp.join("no-hub")).env("HF_HUB_OFFLINE", "1");
    command.timeout(Duration::from_secs(100));
    command.args(args);
    command
}

/// Standard output and standard error of a run that succeeds.
#[track_caller]
pub(crate) fn succeeds<S: AsRef<OsStr>>(args: &[S]) -> (String, String) {
    finish(&mut moeflux(args))
}

/// As [`succeeds`], for a command with an environment or an input.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{status}: {stderr}");
    (String::from_utf8(stdout).unwrap(), stderr)
}

/// A run that fails as it should: this exit code, one line, these words in it.
#[track_caller]
pub(crate) fn refuses<S: AsRef<OsStr>>(args: &[S], code: i32, must_contain: &[&str]) {
    check_refusal(&mut moeflux(args), code, must_contain);
}

/// As [`refuses`], for a command with an environment or an input.
#[track_caller]
pub(crate) fn check_refusal(command: &mut Command, code: i32, must_contain: &[&str]) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let line = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{status}: {line:?}");
    assert!(line.starts_with("moeflux: ") && line.ends_with('\n'), "{line:?}");
    assert_eq!(line.lines().count(), 1, "one line is enough: {line:?}");
    for words in must_contain {
        assert!(line.contains(words), "{words:?} is not in {line:?}");
    }
    for words in ["panicked", "backtrace", "thread '"] {
        assert!(!line.contains(words), "{line:?}");
    }
    assert!(line.trim_end().chars().count() <= 300, "too long to be read: {line:?}");
    assert_eq!(String::from_utf8_lossy(&stdout), "", "a refusal answers nothing");
}

/// The checkpoint of a golden case.
pub(crate) fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-engine/tests/golden").join(case)
}

/// A copy of a directory that a test may change.
pub(crate) struct Copy {
    dir: tempfile::TempDir,
}

impl Copy {
    pub(crate) fn of(dir: &Path) -> Copy {
        let copy = Copy { dir: tempfile::tempdir().unwrap() };
        copy_into(dir, copy.dir.path());
        copy
    }

    /// The demo model, a packed container.
    pub(crate) fn of_demo() -> Copy {
        Copy::of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("demo"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn arg(&self) -> &str {
        self.path().to_str().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn edit_json(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let path = self.file(name);
        let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut value);
        fs::write(path, value.to_string()).unwrap();
    }

    pub(crate) fn edit(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.file(name)).unwrap();
        edit(&mut bytes);
        fs::write(self.file(name), bytes).unwrap();
    }

    /// Changes the header of a safetensors file, its length included.
    pub(crate) fn edit_header(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        self.edit(name, |bytes| {
            let (start, mut header) = header(bytes);
            edit(&mut header);
            let json = header.to_string();
            let mut file = (json.len() as u64).to_le_bytes().to_vec();
            file.extend(json.bytes());
            file.extend(&bytes[start..]);
            *bytes = file;
        });
    }
}

/// Where the data of a safetensors file begins, and its header.
pub(crate) fn header(bytes: &[u8]) -> (usize, Value) {
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    (start, serde_json::from_slice(&bytes[8..start]).unwrap())
}

/// Copies all files of a folder, and of the folders in it.
pub(crate) fn copy_into(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_into(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Every file below a directory: path, length and time of the last change.
pub(crate) fn listing(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let (path, facts) =
                entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
            all.push(format!("{path:?} {} {:?}", facts.len(), facts.modified().unwrap()));
            if facts.is_dir() {
                dirs.push(path);
            }
        }
    }
    all.sort();
    all
}
