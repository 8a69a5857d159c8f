//! A hub that tells what is not true: about lengths, ranges, identities, places and names. A download either gives the
//! true files or one line that says which file, what is wrong, and what to do; nothing appears
//! outside of the cache, and nothing that is not whole has a name in a snapshot.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::server::{COMMIT, Fault, Hub, sha256};
use moeflux_hub::{Found, HubEnv, HubError, find, resolve};

const WEIGHTS: &str = "model.safetensors";
const TEXT: &str = "tokenizer.json";

/// More than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn weights() -> Vec<u8> {
    (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn hub() -> Hub {
    Hub::start(&[("config.json", b"{}"), (TEXT, b"{\"t\": 1}"), (WEIGHTS, &weights())])
}

/// A folder in which only the cache may change.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("cache")).unwrap();
        Place { dir }
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    fn env(&self, hub: &Hub) -> HubEnv {
        HubEnv {
            endpoint: hub.endpoint.clone(),
            token: None,
            login: None,
            cache_dir: self.cache(),
            certificates: None,
            is_offline: false,
            retry_wait: Duration::ZERO,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_millis(500),
            n_parallel: 3,
        }
    }

    fn fetch(&self, hub: &Hub) -> Result<PathBuf, HubError> {
        let result = resolve("org/name", &self.env(hub), &mut |_| {});
        let names: Vec<_> = fs::read_dir(self.dir.path()).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "only the cache is there: {names:?}");
        result
    }

    /// Leaves the beginning of a file behind, as a download that was broken off does.
    fn leave(&self, blob: &str, bytes: &[u8]) {
        let blobs = self.cache().join("models--org--name/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{blob}.incomplete")), bytes).unwrap();
    }

    /// What has a name in the snapshot is true.
    fn check_names(&self) {
        let snapshot = self.cache().join("models--org--name/snapshots").join(COMMIT);
        for entry in fs::read_dir(&snapshot).into_iter().flatten().flatten() {
            check_file(&entry.path());
        }
    }

    /// The error of a download: one line with these parts, and no false file.
    #[track_caller]
    fn refused(&self, hub: &Hub, parts: &[&str]) -> HubError {
        let started = Instant::now();
        let error = self.fetch(hub).unwrap_err();
        let line = error.to_string();
        assert!(started.elapsed() < SOON, "{line}");
        assert!(!line.contains('\n') && line.len() < 500, "{line}");
        for part in parts {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
        self.check_names();
        error
    }
}

fn check_file(path: &Path) {
    let content = fs::read(path).unwrap();
    let is_true = match path.file_name().unwrap().to_str().unwrap() {
        WEIGHTS => content == weights(),
        TEXT => content == b"{\"t\": 1}",
        "config.json" => content == b"{}",
        other => panic!("{other} was not asked for"),
    };
    assert!(is_true, "{} is not what the hub has", path.display());
}

#[track_caller]
fn check_complete(dir: &Path) {
    assert_eq!(fs::read_dir(dir).unwrap().count(), 3);
    [WEIGHTS, TEXT, "config.json"].iter().for_each(|name| check_file(&dir.join(name)));
}

#[test]
fn a_lie_about_length_is_found_and_the_next_run_is_right() {
    const HUGE: &[u8] = b"HTTP/1.1 200 X\r\nContent-Length: 9000000000000\r\n\r\nabc";
    const NO_NUMBER: &[u8] = b"HTTP/1.1 200 X\r\nContent-Length: -1\r\n\r\nabc";
    const TWO: &[u8] =
        b"HTTP/1.1 200 X\r\nContent-Length: 8\r\nContent-Length: 80\r\n\r\n{\"t\": 1}";
    for (file, fault, parts) in [
        (WEIGHTS, Fault::TooLong, &["model.safetensors", "size is 100001", "run again"][..]),
        (WEIGHTS, Fault::Endless, &["model.safetensors", "size is more", "run again"]),
        (WEIGHTS, Fault::Raw(HUGE), &["model.safetensors", "size is 9000000000000", "run again"]),
        (TEXT, Fault::Raw(HUGE), &["tokenizer.json", "size is 9000000000000", "run again"]),
        (TEXT, Fault::Endless, &["tokenizer.json", "size is more", "run again"]),
        (TEXT, Fault::Raw(NO_NUMBER), &["tokenizer.json", "HF_ENDPOINT"]),
        (TEXT, Fault::Raw(TWO), &["tokenizer.json", "HF_ENDPOINT"]),
        ("/api/models", Fault::Raw(HUGE), &["/api/models/org/name", "disconnected", "network"]),
    ] {
        let (hub, place) = (hub(), Place::new());
        let path = if file == WEIGHTS { "/cdn/model.safetensors" } else { file };
        hub.always(path, fault);
        place.refused(&hub, parts);
        let honest = self::hub();
        check_complete(&place.fetch(&honest).unwrap());
    }
}

#[test]
fn a_lie_about_a_range_costs_a_request_and_no_truth() {
    for answer in [
        Fault::As(206, ""),
        Fault::As(206, "Content-Range: bytes 0-99999/100000\r\n"),
        Fault::As(206, "Content-Range: bytes 60001-99999/100000\r\n"),
        Fault::As(206, "Content-Range: bytes 60000-99999/100001\r\n"),
        Fault::As(206, "Content-Range: bytes 99999999999999999999999-1/2\r\n"),
        Fault::As(206, "Content-Range: \u{e9}\r\n"),
        Fault::As(416, "Content-Range: bytes */100000\r\n"),
        Fault::IgnoreRange,
    ] {
        let (hub, place) = (hub(), Place::new());
        place.leave(&sha256(&weights()), &weights()[..60_000]);
        hub.fail("/cdn/model.safetensors", answer);
        let dir = place.fetch(&hub).unwrap_or_else(|error| panic!("{answer:?}: {error}"));
        check_complete(&dir);
        assert!(hub.n_requests("/cdn/") <= 2, "{answer:?}");
    }
    // The range that was asked for, of another file.
    let (hub, place) = (hub(), Place::new());
    place.leave(&sha256(&weights()), &[0; 60_000]);
    place.refused(&hub, &["model.safetensors", "sha-256 is", "run again"]);
    check_complete(&place.fetch(&hub).unwrap());
    // A server that never sends what was asked for.
    let (hub, place) = (self::hub(), Place::new());
    hub.always("/cdn/model.safetensors", Fault::As(206, "Content-Range: bytes 5-9/10\r\n"));
    place.refused(&hub, &["model.safetensors", "not asked for", "check the network"]);
}

#[test]
fn files_without_a_hash_are_not_put_together_from_two_versions() {
    let (hub, place) = (hub(), Place::new());
    hub.be_terse();
    // Small files have no hash in this list: their identity is an ETag.
    let etag = &sha256(b"{\"t\": 1}")[..40];
    place.leave(etag, b"{\"x\"");
    hub.fail(TEXT, Fault::As(206, "Content-Range: bytes 4-7/8\r\nETag: \"another\"\r\n"));
    check_complete(&place.fetch(&hub).unwrap());
}

#[test]
fn identities_that_no_file_can_have_are_refused() {
    let long = "Content-Length: 8\r\nETag: \"".to_owned() + &"e".repeat(4000) + "\"\r\n\r\n";
    let long: &'static [u8] = format!("HTTP/1.1 200 X\r\n{long}{{\"t\": 1}}").leak().as_bytes();
    for reply in [
        Fault::Raw(long),
        Fault::Raw(b"HTTP/1.1 200 X\r\nContent-Length: 8\r\n\r\n{\"t\": 1}"),
        Fault::Raw(b"HTTP/1.1 200 X\r\nContent-Length: 8\r\nETag: \"\"\r\n\r\n{\"t\": 1}"),
        Fault::Raw(b"HTTP/1.1 200 X\r\nContent-Length: 8\r\nETag: \"../../x\"\r\n\r\n{\"t\": 1}"),
        Fault::Raw(b"HTTP/1.1 200 X\r\nContent-Length: 8\r\nETag: \"/etc/x\"\r\n\r\n{\"t\": 1}"),
        Fault::Raw(b"HTTP/1.1 200 X\r\nContent-Length: 8\r\nETag: \"\xff\xfe\"\r\n\r\n{\"t\": 1}"),
    ] {
        let (hub, place) = (hub(), Place::new());
        hub.be_terse();
        hub.always(TEXT, reply);
        place.refused(&hub, &["tokenizer.json", "ETag", "HF_ENDPOINT"]);
    }
    // All files have one identity.
    let (hub, place) = (hub(), Place::new());
    hub.be_terse();
    hub.always(
        TEXT,
        Fault::Raw(b"HTTP/1.1 200 X\r\nContent-Length: 8\r\nETag: \"e\"\r\n\r\n{\"t\": 1}"),
    );
    hub.always(
        "config.json",
        Fault::Raw(b"HTTP/1.1 200 X\r\nContent-Length: 2\r\nETag: \"e\"\r\n\r\n{}"),
    );
    place.refused(&hub, &["config.json", "ETag of another file", "HF_ENDPOINT"]);
}

#[test]
fn redirects_end() {
    for path in ["/api/models", TEXT, "/cdn/model.safetensors"] {
        let (hub, place) = (hub(), Place::new());
        hub.always(path, Fault::Loop);
        place.refused(
            &hub,
            &[path.trim_start_matches("/cdn/"), "too many redirects", "HF_ENDPOINT"],
        );
        assert!(hub.n_requests(path) <= 20, "{}", hub.n_requests(path));
    }
    for location in [
        "file:///etc/passwd",
        "ftp://h/x",
        "//h/x",
        "",
        "\u{e9}",
        "http://",
        "http:// /",
        "http://[/",
    ] {
        let (hub, place) = (hub(), Place::new());
        hub.always(TEXT, Fault::Reply(302, format!("Location: {location}\r\n").leak(), ""));
        place.refused(&hub, &["tokenizer.json", "HF_ENDPOINT"]);
    }
}

#[test]
fn a_server_that_stalls_is_left_after_the_time_that_is_set() {
    for (path, fault) in [
        (TEXT, Fault::Stall(0)),
        ("/cdn/model.safetensors", Fault::Stall(0)),
        ("/api/models", Fault::Silence),
        (TEXT, Fault::Silence),
    ] {
        let (hub, place) = (hub(), Place::new());
        hub.always(path, fault);
        let started = Instant::now();
        place.refused(&hub, &[path.trim_start_matches("/cdn/"), "timeout", "check the network"]);
        assert!(started.elapsed() >= Duration::from_secs(2), "five attempts of half a second");
        check_complete(&place.fetch(&self::hub()).unwrap());
    }
}

#[test]
fn what_is_no_http_is_an_error_of_one_line() {
    let long: &'static [u8] =
        format!("HTTP/1.1 200 X\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)).leak().as_bytes();
    let many: &'static [u8] =
        format!("HTTP/1.1 200 X\r\n{}\r\n", "a: b\r\n".repeat(100_000)).leak().as_bytes();
    for bytes in [
        &b""[..],
        b"\xff\xfe\xfd\r\n\r\n",
        b"HTTP/9.9 abc X\r\n\r\n",
        b"HTTP/1.1 99999 X\r\n\r\n",
        b"HTTP/1.1 200 X\r\n: x\r\n\r\n",
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        long,
        many,
    ] {
        for path in ["/api/models", TEXT] {
            let (hub, place) = (hub(), Place::new());
            hub.always(path, Fault::Raw(bytes));
            place.refused(&hub, &[path, "HF_ENDPOINT"]);
            check_complete(&place.fetch(&self::hub()).unwrap());
        }
    }
    // Headers that the client does not read may hold any bytes.
    let (hub, place) = (hub(), Place::new());
    hub.fail(
        TEXT,
        Fault::Raw(b"HTTP/1.1 200 \xff\r\nX: \xff\xfe\r\nContent-Length: 8\r\n\r\n{\"t\": 1}"),
    );
    check_complete(&place.fetch(&hub).unwrap());
}

/// A list of files with these names.
fn names(names: &[&str]) -> String {
    let all = ["config.json", WEIGHTS].iter().chain(names);
    let siblings: Vec<_> = all
        .map(|name| {
            let name = serde_json::to_string(name).unwrap();
            format!(r#"{{"rfilename": {name}, "size": 2, "blobId": "{:040x}"}}"#, 7)
        })
        .collect();
    format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, siblings.join(","))
}

#[test]
fn lists_that_are_none_are_refused_by_what_they_are() {
    let nested = format!(r#"{{"sha": "{COMMIT}", "x": {}"#, "[".repeat(1_000_000));
    let in_files = format!(r#"{{"sha": "{COMMIT}", "siblings": {}"#, "[".repeat(1_000_000));
    let huge = format!(r#"{{"sha": "{COMMIT}", "x": "{}"}}"#, "x".repeat(65 << 20));
    let many: Vec<String> =
        (0..10_001).map(|i| format!("additional_chat_templates/{i}.jinja")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (list, part) in [
        (nested.as_str(), "description"),
        (&in_files, "description"),
        (&huge, "more than 67108864 bytes"),
        ("", "description"),
        ("null", "description"),
        ("[]", "description"),
        (r#"{"sha": 7}"#, "description"),
        (r#"{"sha": "\u0000../..", "siblings": []}"#, "for a commit"),
        (&format!(r#"{{"sha": "{}"}}"#, "a".repeat(1 << 20)), "for a commit"),
        (
            &format!(
                r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "config.json", "size": -1}}]}}"#
            ),
            "description",
        ),
        (&names(&many), "a model of 10003 files"),
    ] {
        let (hub, place) = (hub(), Place::new());
        hub.list_as(list);
        place.refused(&hub, &["/api/models/org/name", part, "HF_ENDPOINT"]);
        assert_eq!(fs::read_dir(place.cache()).unwrap().count(), 0);
    }
}

#[test]
fn names_that_no_file_can_have_here_are_refused() {
    let long = "a".repeat(4000);
    let deep = "additional_chat_templates/".to_owned() + &long + ".jinja";
    for name in [
        "../x.json",
        "/etc/passwd",
        "a/../../x",
        "additional_chat_templates/a\0.jinja",
        "additional_chat_templates/\u{1b}[31m.jinja",
        "additional_chat_templates/\\..\\x.jinja",
        "additional_chat_templates/C:x.jinja",
        &deep,
    ] {
        let (hub, place) = (hub(), Place::new());
        hub.list_as(names(&[name]));
        let error = place.refused(&hub, &["org/name", "refused", "use another repository"]);
        assert!(matches!(error, HubError::FileName { .. }), "{error}");
        assert!(!error.to_string().contains(['\0', '\u{1b}']));
        assert_eq!(fs::read_dir(place.cache()).unwrap().count(), 0);
    }
    // Names of which nothing is needed, however odd, are in no user's way.
    let (hub, place) = (hub(), Place::new());
    hub.list_as(names(&[&long, "a\0b", "pictures/\u{1f600}.png", "a b"]));
    assert!(matches!(find("org/name", &place.env(&hub), &mut |_| {}), Ok(Found::Remote(_))));
}

#[test]
fn an_index_that_names_odd_files_is_refused() {
    for (name, part) in [
        ("../../x.safetensors", "does not have"),
        ("/etc/passwd", "does not have"),
        ("\u{1b}[31m", "does not have"),
        (&"a".repeat(4000), "does not have"),
        ("config.json/x.safetensors", "a file has the name of its folder"),
    ] {
        let index = serde_json::json!({"weight_map": {"a": name}}).to_string();
        let mut files =
            vec![("config.json", &b"{}"[..]), ("model.safetensors.index.json", index.as_bytes())];
        if part.contains("folder") {
            files.push((name, b"x"));
        }
        let (hub, place) = (Hub::start(&files), Place::new());
        let error = place.refused(&hub, &["org/name", part]).to_string();
        assert!(!error.contains('\u{1b}') && error.contains("repository"), "{error}");
        assert!(!place.cache().join("models--org--name/snapshots").exists());
    }
}

#[test]
fn sizes_that_nothing_has_are_refused_by_plans_and_downloads() {
    for size in ["9000000000000000000", "18446744073709551615"] {
        let (hub, place) = (hub(), Place::new());
        let file = |name: &str, size: &str, digit: u8| {
            format!(r#"{{"rfilename": "{name}", "size": {size}, "blobId": "{digit:040x}"}}"#)
        };
        let files = [file("config.json", "2", 1), file(WEIGHTS, size, 2), file(TEXT, size, 3)];
        hub.list_as(format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, files.join(",")));
        place.refused(&hub, &["org/name needs", "are free", "HF_HUB_CACHE"]);
        // An empty folder of the repository may stay.
        assert!(!place.cache().join("models--org--name/snapshots").exists());
        if size.parse::<i64>().is_ok() {
            continue; // some file systems take that for a file of holes
        }
        let Ok(Found::Remote(remote)) = find("org/name", &place.env(&hub), &mut |_| {}) else {
            panic!("the hub has it");
        };
        let error = remote.headers(&mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(size) && error.contains("HF_ENDPOINT"), "{error}");
        assert!(!place.cache().join("models--org--name/snapshots").exists());
    }
}
