//! GGUF files from a hub that runs in the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::server::{COMMIT, Fault, Hub, sha256};
use moeflux_hub::{Chosen, Event, Found, HubEnv, HubError, Remote, cached, find, resolve};

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A file with one key, whose value has `n_text` bytes, no tensors, and `n_data` bytes behind that.
fn gguf(n_text: usize, n_data: usize) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([0; 8]);
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(text("key"));
    bytes.extend([8, 0, 0, 0]);
    bytes.extend(text(&"x".repeat(n_text)));
    bytes.resize(bytes.len() + n_data, 7);
    bytes
}

const PARTS: [&str; 2] = ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"];
const SMALL: &str = "m-Q4_K_M.gguf";
const TOWER: &str = "mmproj-F16.gguf";

/// A model in three sizes, one of them split, and what comes with it.
fn hub() -> Hub {
    Hub::start(&[
        ("README.md", b"no"),
        ("config.json", b"{}"),
        (SMALL, &gguf(10, 1000)),
        ("m-UD-Q4_K_XL.gguf", &gguf(10, 2000)),
        (PARTS[0], &gguf(2_000_000, 600_000)),
        (PARTS[1], &gguf(100, 500_000)),
        (TOWER, &gguf(1, 1)),
        ("mmproj-F32.gguf", &gguf(1, 2)),
        ("imatrix.gguf", &gguf(1, 3)),
    ])
}

fn env(hub: &Hub, cache: &Path) -> HubEnv {
    HubEnv {
        endpoint: hub.endpoint.clone(),
        token: None,
        login: None,
        cache_dir: cache.to_owned(),
        certificates: None,
        is_offline: false,
        retry_wait: Duration::ZERO,
        connect_timeout: Duration::from_secs(10),
        stall_timeout: Duration::from_secs(10),
        n_parallel: 2,
    }
}

fn fetch(hub: &Hub, cache: &Path, model: &str) -> Result<PathBuf, HubError> {
    resolve(model, &env(hub, cache), &mut |_| {})
}

fn remote(hub: &Hub, cache: &Path, model: &str) -> (Box<Remote>, Option<Chosen>) {
    let mut heard = None;
    let found = find(model, &env(hub, cache), &mut |event| {
        if let Event::Chosen(chosen) = event {
            heard = Some(chosen.clone());
        }
    });
    match found.unwrap() {
        Found::Remote(remote) => (remote, heard),
        Found::Here(path) => panic!("{path:?}"),
    }
}

fn snapshot(cache: &Path) -> PathBuf {
    cache.join("models--org--name/snapshots").join(COMMIT)
}

#[test]
fn a_split_file_arrives_whole_and_is_resumed() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let blobs = cache.path().join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let second = gguf(100, 500_000);
    let partial = blobs.join(format!("{}.incomplete", sha256(&second)));
    fs::write(&partial, &second[..200_000]).unwrap();
    hub.fail(PARTS[0], Fault::Cut(300_000));
    let path = fetch(&hub, cache.path(), "org/name:q8_0").unwrap();
    assert_eq!(path, snapshot(cache.path()).join(PARTS[0]));
    assert!(fs::read(&path).unwrap() == gguf(2_000_000, 600_000));
    assert!(fs::read(path.with_file_name("m-Q8_0-00002-of-00002.gguf")).unwrap() == second);
    let ranges: Vec<String> =
        hub.requests().iter().filter_map(|request| request.headers.get("range").cloned()).collect();
    assert!(ranges.contains(&"bytes=200000-".to_owned()), "{ranges:?}");
    assert!(ranges.contains(&"bytes=300000-".to_owned()), "{ranges:?}");
    assert!(fs::read(snapshot(cache.path()).join(TOWER)).unwrap() == gguf(1, 1));
    for other in [SMALL, "UD-Q4", "mmproj-F32", "imatrix", "README", "config.json"] {
        assert_eq!(hub.n_requests(other), 0, "{other}");
    }
    // The second time only the list is asked for, and nothing by commit or offline.
    let n_before = hub.requests().len();
    assert_eq!(fetch(&hub, cache.path(), "org/name:Q8_0").unwrap(), path);
    assert_eq!(hub.requests().len(), n_before + 1);
    let by_commit = format!("org/name:Q8_0@{COMMIT}");
    assert_eq!(fetch(&hub, cache.path(), &by_commit).unwrap(), path);
    let offline = HubEnv { is_offline: true, ..env(&hub, cache.path()) };
    assert_eq!(resolve("org/name:Q8_0", &offline, &mut |_| {}).unwrap(), path);
    assert_eq!(hub.requests().len(), n_before + 1);
    fs::remove_file(snapshot(cache.path()).join(PARTS[1])).unwrap();
    assert!(resolve("org/name:Q8_0", &offline, &mut |_| {}).is_err(), "a part is missing");
    assert_eq!(cached("org/name:Q8_0", &offline).unwrap(), None);
}

#[test]
fn of_several_the_usual_one_is_taken_and_said() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let (remote, heard) = remote(&hub, cache.path(), "org/name");
    let chosen = heard.unwrap();
    assert_eq!((chosen.label.as_str(), chosen.path.as_str()), ("Q4_K_M", SMALL));
    assert!(chosen.is_default);
    assert_eq!(chosen.tower.as_deref(), Some(TOWER));
    assert_eq!(chosen.passed_over, ["imatrix.gguf", "mmproj-F32.gguf"]);
    let download = remote.describe();
    let bytes = gguf(10, 1000).len() + gguf(1, 1).len();
    assert_eq!((download.n_files, download.bytes), (2, bytes as u64));
    assert!(download.has_tokenizer);
    let path = remote.download(&mut |_| {}).unwrap();
    assert!(path.ends_with(SMALL) && path.is_file());
    assert_eq!(remote.local_files(), Some(path.clone()));
    assert_eq!(cached("org/name", &env(&hub, cache.path())).unwrap(), Some(path));
}

#[test]
fn files_are_named_by_their_address() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let address = format!("{}/org/name/blob/main/{SMALL}", hub.endpoint);
    assert!(fetch(&hub, cache.path(), &address).unwrap().ends_with(SMALL));
    // Any part stands for all.
    let address = format!("{}/org/name/resolve/main/{}?download=true", hub.endpoint, PARTS[1]);
    assert!(fetch(&hub, cache.path(), &address).unwrap().ends_with(PARTS[0]));
    let missing = format!("{}/org/name/blob/main/x.gguf", hub.endpoint);
    let error = fetch(&hub, cache.path(), &missing).unwrap_err().to_string();
    assert!(error.contains("has no file x.gguf of a model; it has Q4_K_M"), "{error}");
}

#[test]
fn what_is_not_there_is_refused_with_what_is() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let error = fetch(&hub, cache.path(), "org/name:Q9_9").unwrap_err();
    assert!(matches!(error, HubError::Choice { .. }));
    let error = error.to_string();
    for part in [
        "org/name at revision main has no GGUF file called \"Q9_9\"",
        "Q4_K_M (1.03 KiB)",
        "UD-Q4_K_XL (2.01 KiB)",
        "Q8_0 (2.96 MiB in 2 files)",
        "write org/name:Q4_K_M",
    ] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    assert_eq!(hub.n_requests("/resolve/"), 0);
    hub.be_terse();
    let error = fetch(&hub, cache.path(), "org/name:Q9_9").unwrap_err().to_string();
    assert!(error.contains("it has Q8_0 (2 files), Q4_K_M, UD-Q4_K_XL"), "{error}");
    assert!(fetch(&hub, cache.path(), "org/name:Q4_K_M").unwrap().is_file());
}

#[test]
fn a_copy_that_may_not_be_the_one_serves_when_the_hub_is_away() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let path = fetch(&hub, cache.path(), "org/name:UD-Q4_K_XL").unwrap();
    let here = env(&hub, cache.path());
    assert_eq!(cached("org/name:UD-Q4_K_XL", &here).unwrap(), Some(path.clone()));
    for model in ["org/name", "org/name:Q4_K_XL"] {
        assert_eq!(cached(model, &here).unwrap(), None, "{model}");
        let offline = HubEnv { is_offline: true, ..here.clone() };
        assert_eq!(resolve(model, &offline, &mut |_| {}).unwrap(), path);
        hub.fail("/api/models", Fault::Status(500));
        let mut is_stale = false;
        let found = resolve(model, &here, &mut |event| {
            is_stale |= matches!(event, Event::Stale { .. });
        });
        assert_eq!((found.unwrap(), is_stale), (path.clone(), true));
    }
    assert_eq!(cached("org/name:Q8_0", &here).unwrap(), None);
}

#[test]
fn safetensors_come_first_unless_a_file_is_asked_for() {
    let hub = Hub::start(&[
        ("config.json", b"{}"),
        ("model.safetensors", b"weights"),
        (SMALL, &gguf(10, 1000)),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let dir = fetch(&hub, cache.path(), "org/name").unwrap();
    assert!(dir.join("model.safetensors").is_file() && !dir.join(SMALL).exists());
    assert_eq!(fetch(&hub, cache.path(), "org/name:Q4_K_M").unwrap(), dir.join(SMALL));
    assert_eq!(fetch(&hub, cache.path(), "org/name").unwrap(), dir);
    let bare = Hub::start(&[("config.json", b"{}"), ("model.safetensors", b"weights")]);
    let fresh = tempfile::tempdir().unwrap();
    let error = fetch(&bare, fresh.path(), "org/name:Q4_K_M").unwrap_err().to_string();
    assert!(error.contains("has no GGUF files: write org/name for the model"), "{error}");
}

#[test]
fn headers_are_read_by_ranges_as_far_as_they_reach() {
    for is_without_ranges in [false, true] {
        let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
        if is_without_ranges {
            hub.ignore_ranges();
        }
        let (remote, _) = remote(&hub, cache.path(), "org/name:Q8_0");
        hub.fail_later(PARTS[0], 1, Fault::Status(503));
        let (mut n_headers, mut n_retries) = (0, 0);
        let headers = remote.headers(&mut |event| match event {
            Event::Headers { done, total: 3 } => n_headers = done,
            Event::Retrying(_) => n_retries += 1,
            _ => {}
        });
        let headers = headers.unwrap();
        assert_eq!((n_headers, n_retries), (3, 1));
        assert_eq!(headers.model(), headers.root().join(PARTS[0]));
        for (part, n_text, n_data) in [(PARTS[0], 2_000_000, 600_000), (PARTS[1], 100, 500_000)] {
            let (got, want) = (fs::read(headers.root().join(part)).unwrap(), gguf(n_text, n_data));
            let end = want.len() - n_data;
            assert_eq!(got.len(), want.len());
            assert!(got[..end] == want[..end] && got[end..].iter().all(|byte| *byte == 0));
        }
        let mut ranges: Vec<String> = hub
            .requests()
            .iter()
            .filter_map(|request| request.headers.get("range").cloned())
            .collect();
        ranges.sort();
        ranges.dedup();
        let [first, second] = [gguf(2_000_000, 600_000).len(), gguf(100, 500_000).len()];
        // The tower and the second file are shorter than what is read at first.
        let want = [
            "bytes=0-1048575".to_owned(),
            format!("bytes=0-{}", gguf(1, 1).len() - 1),
            format!("bytes=0-{}", second - 1),
            format!("bytes=1048576-{}", first - 1),
        ];
        assert_eq!(ranges, want);
        assert!(!cache.path().join("models--org--name").exists(), "nothing is in the cache");
    }
}

#[test]
fn files_have_names_in_any_script() {
    let cache = tempfile::tempdir().unwrap();
    let names = ["My Model (Q4).gguf", "模型 [Q8_0].gguf"];
    let hub = Hub::start(&names.map(|name| (name, b"GGUF" as &[u8])));
    for (model, name) in [
        ("org/name:Q4", names[0]),
        ("org/name:My Model (Q4)", names[0]),
        ("org/name:q8_0", names[1]),
        ("org/name:模型 [Q8_0].gguf", names[1]),
    ] {
        let path = fetch(&hub, cache.path(), model).unwrap();
        assert!(path.ends_with(name), "{model}: {}", path.display());
        assert_eq!(fs::read(path).unwrap(), b"GGUF");
    }
}

#[test]
fn pieces_of_a_file_come_together() {
    let pieces: [(&str, &[u8]); 6] = [
        ("m.i1-Q6_K.gguf.part1of2", b"GGUF"),
        ("m.i1-Q6_K.gguf.part2of2", b"x"),
        ("m.Q8_0.gguf-split-a", b"GGUF"),
        ("m.Q8_0.gguf-split-b", b"y"),
        ("m.i1-Q4_0.gguf", b"GGUF"),
        ("m.gguf.sha256", b"z"),
    ];
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::start(&pieces);
    for (model, first, last) in [
        ("org/name:Q6_K", pieces[0].0, pieces[1].0),
        ("org/name:q8_0", pieces[2].0, pieces[3].0),
        ("org/name:m.i1-Q6_K.gguf.part2of2", pieces[0].0, pieces[1].0),
    ] {
        let path = fetch(&hub, cache.path(), model).unwrap();
        assert!(path.ends_with(first), "{model}: {}", path.display());
        assert!(path.with_file_name(last).is_file());
    }
    let lacking = Hub::start(&[pieces[0], pieces[4]]);
    let error = fetch(&lacking, tempfile::tempdir().unwrap().path(), "org/name:Q6_K").unwrap_err();
    assert!(error.to_string().contains("has 1 of the 2 files of m.i1-Q6_K"), "{error}");
}
