//! Downloads from a hub that runs in the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::server::{COMMIT, Fault, Hub, sha256};
use moeflux_core::SplitMix64;
use moeflux_hub::{Event, Found, HubEnv, HubError, Remote, Token, cached, find, resolve};

const WEIGHTS: &str = "model.safetensors";

fn weights() -> Vec<u8> {
    SplitMix64::new(1).bytes(1_000_000)
}

pub(crate) fn hub() -> Hub {
    Hub::start(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"t\": 1}"),
        (WEIGHTS, &weights()),
        ("README.md", b"no"),
        ("pytorch_model.bin", b"no"),
    ])
}

pub(crate) fn env(hub: &Hub, cache: &Path) -> HubEnv {
    HubEnv {
        endpoint: hub.endpoint.clone(),
        token: Some(Token { secret: "secret".into(), source: "HF_TOKEN".into() }),
        login: None,
        cache_dir: cache.to_owned(),
        certificates: None,
        is_offline: false,
        retry_wait: Duration::ZERO,
        connect_timeout: Duration::from_secs(10),
        stall_timeout: Duration::from_secs(10),
        n_parallel: 3,
    }
}

pub(crate) fn fetch(hub: &Hub, cache: &Path) -> Result<PathBuf, HubError> {
    resolve("org/name", &env(hub, cache), &mut |_| {})
}

pub(crate) fn partial(cache: &Path) -> PathBuf {
    let blobs = cache.join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    blobs.join(format!("{}.incomplete", sha256(&weights())))
}

#[track_caller]
pub(crate) fn check_complete(dir: &Path) {
    assert_eq!(fs::read(dir.join("config.json")).unwrap(), b"{}");
    assert_eq!(fs::read(dir.join("tokenizer.json")).unwrap(), b"{\"t\": 1}");
    assert!(fs::read(dir.join(WEIGHTS)).unwrap() == weights());
    assert_eq!(fs::read_dir(dir).unwrap().count(), 3, "nothing else was fetched");
    let blobs = fs::read_dir(dir.join("../../blobs")).unwrap();
    for blob in blobs {
        assert!(blob.unwrap().path().extension().is_none(), "nothing incomplete is left");
    }
}

#[test]
fn a_model_arrives_in_the_layout_of_hugging_faces_cache() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let (mut last, mut n_received, mut start) = (None, 0, None);
    let dir = resolve("org/name", &env(&hub, cache.path()), &mut |event| match event {
        Event::Start { download } => start = Some(download.clone()),
        Event::Bytes { done, total, received } => {
            assert!(done <= total);
            n_received += received;
            last = Some((done, total));
        }
        _ => {}
    })
    .unwrap();
    let start = start.unwrap();
    assert_eq!((start.n_files, start.bytes, start.missing_bytes), (3, 1_000_010, 1_000_010));
    assert_eq!((start.dir.as_path(), start.commit.as_str()), (cache.path(), COMMIT));
    assert!(start.free_bytes.is_some_and(|free| free > 0) && start.has_tokenizer);
    assert_eq!(n_received, 1_000_010);
    check_complete(&dir);
    let root = cache.path().join("models--org--name");
    assert_eq!(dir, root.join("snapshots").join(COMMIT));
    assert_eq!(fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT);
    assert!(root.join("blobs").join(sha256(&weights())).is_file());
    assert_eq!(last, Some((1_000_010, 1_000_010)));
}

#[test]
fn the_token_stays_with_the_hub() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    fetch(&hub, cache.path()).unwrap();
    let requests = hub.requests();
    assert!(requests.iter().any(|r| r.is_cdn));
    for request in requests {
        let sent = request.headers.get("authorization").map(String::as_str);
        assert_eq!(sent, (!request.is_cdn).then_some("Bearer secret"), "{request:?}");
    }
}

#[test]
fn what_is_there_is_not_fetched_again() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    fetch(&hub, cache.path()).unwrap();
    let n_before = hub.requests().len();
    check_complete(&fetch(&hub, cache.path()).unwrap());
    assert_eq!(hub.requests().len(), n_before + 1, "only the list is asked for");
    let by_commit = format!("org/name@{COMMIT}");
    check_complete(&resolve(&by_commit, &env(&hub, cache.path()), &mut |_| {}).unwrap());
    assert_eq!(hub.requests().len(), n_before + 1, "a commit needs no question");
}

#[test]
fn a_commit_that_another_tool_fetched_in_part_is_completed() {
    let files: [(&str, &[u8]); 4] = [
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"t\": 1}"),
        ("chat_template.jinja", b"{{ x }}"),
        (WEIGHTS, &weights()),
    ];
    let by_commit = format!("org/name@{COMMIT}");
    for lost in ["tokenizer.json", "chat_template.jinja", WEIGHTS] {
        let (hub, cache) = (Hub::start(&files), tempfile::tempdir().unwrap());
        let env = env(&hub, cache.path());
        let dir = resolve(&by_commit, &env, &mut |_| {}).unwrap();
        let root = cache.path().join("models--org--name");
        assert!(root.join(".no_exist").join(COMMIT).join("generation_config.json").is_file());
        // Another tool notes nothing, and the content of a link may be gone.
        fs::remove_dir_all(root.join(".no_exist")).unwrap();
        fs::remove_file(fs::canonicalize(dir.join(lost)).unwrap()).unwrap();
        if lost != WEIGHTS {
            fs::remove_file(dir.join(lost)).unwrap();
        }
        let n_before = hub.requests().len();
        assert_eq!(resolve(&by_commit, &env, &mut |_| {}).unwrap(), dir);
        for (name, content) in files {
            assert!(fs::read(dir.join(name)).unwrap() == content, "{name} without {lost}");
        }
        let n_then = hub.requests().len();
        assert!(n_then > n_before);
        resolve(&by_commit, &env, &mut |_| {}).unwrap();
        assert_eq!(hub.requests().len(), n_then, "the commit is known to be complete");
    }
}

#[test]
fn a_partial_file_is_resumed() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    fs::write(partial(cache.path()), &weights()[..600_000]).unwrap();
    let (mut n_received, mut missing) = (0, 0);
    let dir = resolve("org/name", &env(&hub, cache.path()), &mut |event| match event {
        Event::Start { download } => missing = download.missing_bytes,
        Event::Bytes { received, .. } => n_received += received,
        _ => {}
    });
    check_complete(&dir.unwrap());
    assert_eq!((missing, n_received), (400_010, 400_010), "what was here is no speed");
    let range = hub.requests().iter().find(|r| r.is_cdn).unwrap().headers["range"].clone();
    assert_eq!(range, "bytes=600000-");
}

#[test]
fn faults_that_pass_are_survived() {
    for faults in [
        &[Fault::Cut(300_000)][..],
        &[Fault::Cut(0), Fault::Cut(1), Fault::Cut(999_999)],
        &[Fault::Cut(300_000), Fault::IgnoreRange],
        &[Fault::Status(503), Fault::Status(500), Fault::Status(429)],
        &[
            Fault::Cut(100),
            Fault::Status(502),
            Fault::Cut(100),
            Fault::Cut(100),
            Fault::Cut(100),
            Fault::Cut(100),
            Fault::Cut(100),
        ],
    ] {
        let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
        faults.iter().for_each(|&fault| hub.fail(WEIGHTS, fault));
        hub.fail("/api/models", Fault::Status(504));
        match fetch(&hub, cache.path()) {
            Ok(dir) => check_complete(&dir),
            Err(error) => panic!("{faults:?}: {error}"),
        }
    }
}

#[test]
fn a_file_that_breaks_for_good_is_kept_for_the_next_run() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    hub.fail(WEIGHTS, Fault::Cut(400_000));
    (0..5).for_each(|_| hub.fail(WEIGHTS, Fault::Status(500)));
    let error = fetch(&hub, cache.path()).unwrap_err();
    assert!(matches!(error, HubError::Status { status: 500, .. }), "{error}");
    assert_eq!(fs::metadata(partial(cache.path())).unwrap().len(), 400_000);
    check_complete(&fetch(&hub, cache.path()).unwrap());
}

#[test]
fn damaged_content_is_refused_and_fetched_anew() {
    for (fault, want) in [(Fault::Damage, "sha-256 is"), (Fault::TooLong, "size is 1000001")] {
        let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
        hub.fail(WEIGHTS, fault);
        let error = fetch(&hub, cache.path()).unwrap_err().to_string();
        assert!(error.contains(WEIGHTS) && error.contains(want), "{error}");
        assert!(!cache.path().join("models--org--name/refs/main").exists());
        check_complete(&fetch(&hub, cache.path()).unwrap());
    }
}

#[test]
fn refusals_say_what_is_wrong_and_what_helps() {
    const GATED: &str = "X-Error-Code: GatedRepo\r\n";
    const NO_REPO: &str = "X-Error-Code: RepoNotFound\r\n";
    const NO_REVISION: &str = "X-Error-Code: RevisionNotFound\r\n";
    for (status, headers, has_token, parts) in [
        (404, NO_REPO, true, ["org/name was not found", "the token from HF_TOKEN may not read it"]),
        (401, NO_REPO, false, ["org/name was not found", "set HF_TOKEN"]),
        (401, "", false, ["org/name was not found", "set HF_TOKEN"]),
        (401, "", true, ["does not accept the access token from HF_TOKEN", "replace it"]),
        (401, GATED, false, ["org/name is gated", "set HF_TOKEN to a token of the account"]),
        (403, GATED, true, ["accept its terms at http://127.0.0.1", "account of the token"]),
        (403, "X-Error-Message: it is disabled\r\n", true, ["it is disabled", "HTTP 403"]),
        (404, NO_REVISION, true, ["org/name at revision main was not found", "no such branch"]),
    ] {
        for path in ["/api/models", WEIGHTS] {
            let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
            hub.fail(path, Fault::Reply(status, headers, ""));
            let mut env = env(&hub, cache.path());
            env.token = env.token.filter(|_| has_token);
            let error = resolve("org/name", &env, &mut |_| {}).unwrap_err().to_string();
            let is_revision = headers == NO_REVISION && path == WEIGHTS;
            let is_said = parts.iter().all(|part| error.contains(part));
            assert!(is_said || is_revision, "{status} {headers:?}: {error}");
            assert_eq!(hub.n_requests(path), 1, "a refusal is not repeated");
        }
    }
}

#[test]
fn a_token_that_is_no_header_is_refused_before_it_is_sent() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let mut env = env(&hub, cache.path());
    env.token = Some(Token { secret: "a b\nc".into(), source: "/h/token".into() });
    let error = resolve("org/name", &env, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("/h/token") && !error.contains("a b"), "{error}");
    assert!(hub.requests().is_empty());
}

#[test]
fn an_address_that_is_no_longer_signed_is_asked_for_again() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    fs::write(partial(cache.path()), &weights()[..600_000]).unwrap();
    hub.fail("/cdn/model.safetensors", Fault::Status(403));
    let mut heard = Vec::new();
    let dir = resolve("org/name", &env(&hub, cache.path()), &mut |event| {
        if let Event::Retrying(retry) = event {
            heard.push(retry.clone());
        }
    });
    check_complete(&dir.unwrap());
    assert_eq!(heard.len(), 1);
    assert_eq!((heard[0].what.as_str(), heard[0].attempt, heard[0].n_attempts), (WEIGHTS, 2, 5));
    assert!(heard[0].reason.contains("403"), "{heard:?}");
    assert_eq!(hub.n_requests("/resolve/"), 4, "two of the weights, one of every other file");
}

#[test]
fn waits_that_the_server_asks_for_are_kept() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    hub.fail("/api/models", Fault::Reply(429, "Retry-After: 1\r\n", "slow down"));
    let mut waits = Vec::new();
    let start = std::time::Instant::now();
    let dir = resolve("org/name", &env(&hub, cache.path()), &mut |event| {
        if let Event::Retrying(retry) = event {
            waits.push(retry.wait);
        }
    });
    check_complete(&dir.unwrap());
    assert_eq!(waits, [Duration::from_secs(1)]);
    assert!(start.elapsed() >= Duration::from_secs(1));

    let cache = tempfile::tempdir().unwrap();
    hub.fail("/api/models", Fault::Reply(429, "Retry-After: 9000\r\n", ""));
    let error = fetch(&hub, cache.path()).unwrap_err().to_string();
    assert!(error.contains("9000 s"), "{error}");
}

#[test]
fn a_silent_server_is_left_and_the_rest_fetched() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    hub.fail(WEIGHTS, Fault::Stall(500_000));
    let env = HubEnv { stall_timeout: Duration::from_millis(300), ..env(&hub, cache.path()) };
    let mut reason = String::new();
    let dir = resolve("org/name", &env, &mut |event| {
        if let Event::Retrying(retry) = event {
            reason.clone_from(&retry.reason);
        }
    });
    check_complete(&dir.unwrap());
    assert!(reason.contains("timeout"), "{reason:?}");
}

#[test]
fn a_page_in_place_of_data_is_recognised_and_nothing_lost() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    fs::write(partial(cache.path()), &weights()[..600_000]).unwrap();
    hub.fail(WEIGHTS, Fault::Page);
    let error = fetch(&hub, cache.path()).unwrap_err();
    assert!(matches!(error, HubError::WebPage { .. }), "{error}");
    assert_eq!(fs::metadata(partial(cache.path())).unwrap().len(), 600_000);
    hub.fail("/api/models", Fault::Reply(200, "Content-Type: text/html\r\n", "<html>Sign in"));
    let error = fetch(&hub, cache.path()).unwrap_err();
    assert!(matches!(error, HubError::WebPage { .. }), "{error}");
    check_complete(&fetch(&hub, cache.path()).unwrap());
}

#[test]
fn small_files_are_checked_by_the_hash_of_git() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    hub.fail("tokenizer.json", Fault::Damage);
    let error = fetch(&hub, cache.path()).unwrap_err();
    assert!(matches!(error, HubError::Damaged { what: "sha-1", .. }), "{error}");
    check_complete(&fetch(&hub, cache.path()).unwrap());
}

#[test]
fn a_download_without_room_does_not_begin() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    hub.announce(WEIGHTS, 1 << 60);
    let env = HubEnv { cache_dir: cache.path().join("not/there/yet"), ..env(&hub, cache.path()) };
    let error = resolve("org/name", &env, &mut |_| {}).unwrap_err();
    let HubError::NoRoom { needed, free, .. } = &error else { panic!("{error}") };
    assert!(*needed > 1 << 60 && *free < 1 << 60);
    let error = error.to_string();
    assert!(error.contains("TiB more in") && error.contains("HF_HUB_CACHE"), "{error}");
    assert_eq!(hub.n_requests("/resolve/"), 0);
    assert!(!env.cache_dir.join("models--org--name").exists());
}

/// A file of one tensor, its header padded with spaces.
fn safetensors(n_data: usize, n_padding: usize) -> Vec<u8> {
    let header = format!(
        r#"{{"a":{{"dtype":"U8","shape":[{n_data}],"data_offsets":[0,{n_data}]}}}}{}"#,
        " ".repeat(n_padding)
    );
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 7);
    bytes
}

const INDEX: &str = "model.safetensors.index.json";

/// A repository of two shards, and copies in other formats.
fn sharded() -> Hub {
    let (one, two) = (safetensors(3_000_000, 100), safetensors(2_000_000, 5000));
    let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    Hub::start(&[
        ("config.json", b"{\"a\": 1}"),
        ("tokenizer.json", b"{\"t\": 1}"),
        (INDEX, index),
        ("model-1.safetensors", &one),
        ("model-2.safetensors", &two),
        ("consolidated.safetensors", b"no"),
        ("original/model.safetensors", b"no"),
        ("model.gguf", b"no"),
    ])
}

fn remote(hub: &Hub, cache: &Path) -> Box<Remote> {
    match find("org/name", &env(hub, cache), &mut |_| {}).unwrap() {
        Found::Remote(remote) => remote,
        Found::Here(dir) => panic!("{dir:?}"),
    }
}

#[test]
fn headers_are_read_by_ranges_and_no_weights() {
    for is_without_ranges in [false, true] {
        let (hub, cache) = (sharded(), tempfile::tempdir().unwrap());
        if is_without_ranges {
            hub.ignore_ranges();
        }
        hub.fail_later("/cdn/model-2.safetensors", 1, Fault::Status(503));
        let remote = remote(&hub, cache.path());
        let (mut n_headers, mut n_retries) = (0, 0);
        let headers = remote
            .headers(&mut |event| match event {
                Event::Headers { done, total: 2 } => n_headers = done,
                Event::HeadersFolder { dir } => assert!(dir.is_dir()),
                Event::Retrying(_) => n_retries += 1,
                _ => panic!("{event:?}"),
            })
            .unwrap();
        assert_eq!((n_headers, n_retries), (2, 1));
        let root = headers.root().to_path_buf();
        assert!(root.ends_with("org/name") && !root.starts_with(cache.path()));
        assert_eq!(fs::read(root.join("config.json")).unwrap(), b"{\"a\": 1}");
        let shard = fs::read(root.join("model-2.safetensors")).unwrap();
        let want = safetensors(2_000_000, 5000);
        assert_eq!(shard.len(), want.len());
        let start = want.len() - 2_000_000;
        assert!(shard[..start] == want[..start] && shard[start..].iter().all(|&byte| byte == 0));
        assert_eq!(fs::metadata(root.join("tokenizer.json")).unwrap().len(), 8);
        assert_eq!((hub.n_requests("tokenizer.json"), hub.n_requests(INDEX)), (0, 1));
        let ranges: Vec<_> =
            hub.requests().iter().filter(|request| request.is_cdn).cloned().collect();
        for request in ranges {
            let range = &request.headers["range"];
            let last: usize = range.rsplit('-').next().unwrap().parse().unwrap();
            assert!(last < start, "{range}");
        }
        drop(headers);
        assert!(!root.exists(), "nothing takes the holes for a model");
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
        let download = remote.describe();
        assert_eq!(download.n_files, 5);
        assert_eq!(download.missing_bytes, download.bytes);
        assert!(download.fits());
    }
}

#[test]
fn only_the_files_of_the_index_are_downloaded_and_a_copy_needs_no_network() {
    let (hub, cache) = (sharded(), tempfile::tempdir().unwrap());
    let env = env(&hub, cache.path());
    assert_eq!(cached("org/name", &env).unwrap(), None);
    let dir = fetch(&hub, cache.path()).unwrap();
    let mut names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let want =
        ["config.json", "model-1.safetensors", "model-2.safetensors", INDEX, "tokenizer.json"];
    assert_eq!(names, want);
    let n_before = hub.requests().len();
    assert_eq!(cached("org/name", &env).unwrap(), Some(dir.clone()));
    assert_eq!(hub.requests().len(), n_before);
    // A second run asks for the list only; the index is in the cache.
    assert_eq!(fetch(&hub, cache.path()).unwrap(), dir);
    assert_eq!(hub.requests().len(), n_before + 1);
    fs::remove_file(dir.join("model-2.safetensors")).unwrap();
    assert_eq!(cached("org/name", &env).unwrap(), None, "a shard is missing");
}

#[test]
fn a_hub_that_refuses_does_not_take_the_copy_away() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    fetch(&hub, cache.path()).unwrap();
    for (status, body) in [(200, "<html>"), (401, ""), (404, ""), (500, "")] {
        hub.fail("/api/models", Fault::Reply(status, "", body));
        let mut n_warnings = 0;
        let dir = resolve("org/name", &env(&hub, cache.path()), &mut |event| {
            n_warnings += usize::from(matches!(event, Event::Stale { .. }));
        });
        check_complete(&dir.unwrap());
        assert_eq!(n_warnings, 1, "{status}");
    }
}

#[cfg(unix)]
#[test]
fn a_copy_in_a_folder_that_may_only_be_read_serves() {
    use std::os::unix::fs::PermissionsExt;
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    fetch(&hub, cache.path()).unwrap();
    let locks = cache.path().join(".locks");
    fs::remove_dir_all(&locks).unwrap();
    let mode = |mode| fs::set_permissions(cache.path(), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o555);
    let dir = fetch(&hub, cache.path());
    mode(0o755);
    check_complete(&dir.unwrap());
    assert!(!locks.exists(), "no lock is taken");
}

#[test]
fn a_hub_that_lists_names_only_is_asked_about_each_file() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    hub.be_terse();
    check_complete(&fetch(&hub, cache.path()).unwrap());
    hub.fail(WEIGHTS, Fault::Damage);
    let fresh = tempfile::tempdir().unwrap();
    let error = fetch(&hub, fresh.path()).unwrap_err();
    assert!(matches!(error, HubError::Damaged { what: "sha-256", .. }), "{error}");
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::start(&[("../../evil.safetensors", b"x"), ("config.json", b"{}")]);
    let error = fetch(&hub, cache.path()).unwrap_err();
    assert!(matches!(&error, HubError::FileName { file, .. } if file.contains("evil")), "{error}");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
}

#[test]
fn a_repository_without_weights_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::start(&[("config.json", b"{}"), ("pytorch_model.bin", b"x")]);
    let error = fetch(&hub, cache.path()).unwrap_err();
    assert!(matches!(error, HubError::NoWeights { .. }), "{error}");
}

#[test]
fn an_earlier_copy_serves_when_the_hub_is_away() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let mut env = env(&hub, cache.path());
    env.is_offline = true;
    let error = resolve("org/name", &env, &mut |_| {}).unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
    assert!(hub.requests().is_empty());

    fetch(&hub, cache.path()).unwrap();
    check_complete(&resolve("org/name", &env, &mut |_| {}).unwrap());
    // The listener is dropped, so its port refuses connections.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = HubEnv { endpoint: format!("http://{gone}"), is_offline: false, ..env };
    check_complete(&resolve("org/name", &away, &mut |_| {}).unwrap());
    let error = resolve("org/other", &away, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("org/other") && error.contains("HF_ENDPOINT"), "{error}");
}

#[test]
fn an_incomplete_copy_does_not_serve() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let dir = fetch(&hub, cache.path()).unwrap();
    let index = r#"{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}"#;
    fs::write(dir.join(INDEX), index).unwrap();
    let offline = HubEnv { is_offline: true, ..env(&hub, cache.path()) };
    assert!(resolve("org/name", &offline, &mut |_| {}).is_err());
}

#[test]
fn a_second_process_waits_for_the_first() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let locks = cache.path().join(".locks/models--org--name");
    fs::create_dir_all(&locks).unwrap();
    let lock = fs::File::create(locks.join("moeflux.lock")).unwrap();
    lock.lock().unwrap();
    let mut held = Some(lock);
    let mut n_waits = 0;
    let dir = resolve("org/name", &env(&hub, cache.path()), &mut |event| {
        if let Event::Waiting { lock } = event {
            assert!(lock.ends_with("moeflux.lock"));
            n_waits += 1;
            held = None;
        }
    });
    check_complete(&dir.unwrap());
    assert_eq!(n_waits, 1);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let file = cache.path().join("file");
    fs::write(&file, "").unwrap();
    let error = fetch(&hub, &file).unwrap_err().to_string();
    let locks = file.join(".locks").display().to_string();
    assert!(error.contains(&locks) && error.contains("set HF_HUB_CACHE"), "{error}");
}
