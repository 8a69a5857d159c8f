//! Downloads from a hub that runs in the test.

#[path = "hub/server.rs"]
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moeflux_engine::hub::{HubEnv, HubError, Progress, resolve};
use server::{COMMIT, Fault, Hub, sha256};

const WEIGHTS: &str = "model.safetensors";

fn weights() -> Vec<u8> {
    (0..1_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn hub() -> Hub {
    Hub::start(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"t\": 1}"),
        (WEIGHTS, &weights()),
        ("README.md", b"no"),
        ("pytorch_model.bin", b"no"),
    ])
}

fn env(hub: &Hub, cache: &Path) -> HubEnv {
    HubEnv {
        endpoint: hub.endpoint.clone(),
        token: Some("secret".into()),
        cache_dir: cache.to_owned(),
        is_offline: false,
        retry_wait: Duration::ZERO,
        n_parallel: 3,
    }
}

fn fetch(hub: &Hub, cache: &Path) -> Result<PathBuf, HubError> {
    resolve("org/name", &env(hub, cache), &mut |_| {})
}

fn partial(cache: &Path) -> PathBuf {
    let blobs = cache.join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    blobs.join(format!("{}.incomplete", sha256(&weights())))
}

#[track_caller]
fn check_complete(dir: &Path) {
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
    let mut last = None;
    let dir = resolve("org/name", &env(&hub, cache.path()), &mut |progress| {
        if let Progress::Bytes { done, total, file_done, file_total, .. } = progress {
            assert!(file_done <= file_total && done <= total);
            last = Some((done, total));
        }
    })
    .unwrap();
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
fn a_partial_file_is_resumed() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    fs::write(partial(cache.path()), &weights()[..600_000]).unwrap();
    check_complete(&fetch(&hub, cache.path()).unwrap());
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
    for (fault, want) in [(Fault::Damage, "sha-256 is"), (Fault::TooLong, "size is more than")] {
        let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
        hub.fail(WEIGHTS, fault);
        let error = fetch(&hub, cache.path()).unwrap_err().to_string();
        assert!(error.contains(WEIGHTS) && error.contains(want), "{error}");
        assert!(!cache.path().join("models--org--name/refs/main").exists());
        check_complete(&fetch(&hub, cache.path()).unwrap());
    }
}

#[test]
fn refusals_name_the_model_and_the_remedy() {
    for (status, want) in [(404, "was not found"), (401, "HTTP 401"), (403, "HTTP 403")] {
        let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
        hub.fail("/api/models", Fault::Status(status));
        let error = fetch(&hub, cache.path()).unwrap_err().to_string();
        let parts = ["org/name at revision main", want, "HF_TOKEN"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(hub.requests().len(), 1, "a refusal is not repeated");
    }
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
    // Nobody listens on the port of a listener that is gone.
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
    fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
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
    let dir = resolve("org/name", &env(&hub, cache.path()), &mut |progress| {
        if let Progress::Waiting { lock } = progress {
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
    assert!(error.contains(&locks) && error.contains("HF_HOME"), "{error}");
}
