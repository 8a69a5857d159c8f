//! Models from a hub on the loopback interface, by name.

use std::fs;
use std::path::Path;

use crate::common::{self, check_refusal, finish, golden, moeflux};
use crate::hub_server::{self, Fault, Hub};
use assert_cmd::Command;

fn hub() -> Hub {
    hub_of(&golden("hf-bf16"), &["expected.json", "expected.safetensors"])
}

/// A Hub with the files below a directory, but for some.
fn hub_of(dir: &Path, others: &[&str]) -> Hub {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(current) = dirs.pop() {
        for entry in fs::read_dir(current).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let name = path.strip_prefix(dir).unwrap().to_str().unwrap().replace('\\', "/");
            if !others.contains(&&name[..]) {
                files.push((name, fs::read(path).unwrap()));
            }
        }
    }
    let files: Vec<(&str, &[u8])> = files.iter().map(|(a, b)| (&a[..], &b[..])).collect();
    Hub::start(&files)
}

fn run(endpoint: &str, home: &Path, model: &str) -> Command {
    on_hub(
        endpoint,
        home,
        &["run", "--raw", "abc", "--temperature", "0", "--max-tokens", "4", "--model", model],
    )
}

fn on_hub(endpoint: &str, home: &Path, args: &[&str]) -> Command {
    let mut command = moeflux(args);
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", home).env_remove("HF_HUB_OFFLINE");
    command
}

#[test]
fn a_model_is_downloaded_by_name_and_works_offline_afterwards() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    hub.fail("/api/models", Fault::Reply(429, "Retry-After: 1\r\n", ""));
    let (answer, heard) = finish(&mut run(&hub.endpoint, home.path(), "org/name"));
    for words in [
        "org/name at revision main: retrying in 1 s (HTTP 429), attempt 2 of 5",
        "downloading org/name (commit 0123456): ",
        " in 7 files, to ",
        "where ",
        "received ",
    ] {
        assert!(heard.contains(words), "{words:?} is not in {heard:?}");
    }
    let local =
        moeflux(&["run", "--raw", "abc", "--temperature", "0", "--max-tokens", "4", "--model"])
            .arg(golden("hf-bf16"))
            .output()
            .unwrap();
    assert_eq!(answer.as_bytes(), local.stdout);
    assert!(home.path().join("hub/models--org--name/snapshots").is_dir());

    let n_requests = hub.requests().len();
    let mut offline = run(&hub.endpoint, home.path(), "org/name");
    assert_eq!(finish(offline.env("HF_HUB_OFFLINE", "1")).0, answer);
    assert_eq!(hub.requests().len(), n_requests);
    // The hub is away, and a copy is here.
    let mut away = run("http://127.0.0.1:1", home.path(), "org/name");
    let (text, heard) = finish(&mut away);
    assert_eq!(text, answer);
    assert!(heard.contains("using the copy from earlier"), "{heard:?}");
}

#[test]
fn what_the_hub_does_not_have_is_refused_by_name() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let mut command = run(&hub.endpoint, home.path(), "org/other");
    check_refusal(&mut command, 1, &["org/other", "not found", "HF_TOKEN"]);
    let mut command = run(&hub.endpoint, home.path(), "org/other");
    check_refusal(command.env("HF_HUB_OFFLINE", "1"), 1, &["org/other", "HF_HUB_OFFLINE"]);
}

#[test]
fn an_endpoint_that_is_no_address_is_named() {
    let home = tempfile::tempdir().unwrap();
    let mut command = run("not an address", home.path(), "org/name");
    check_refusal(&mut command, 2, &["not an address", "HF_ENDPOINT", "https://"]);
    assert!(!home.path().join("hub/models--org--name/snapshots").exists());
}

#[test]
fn a_plan_and_an_inspection_download_nothing() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let temp = tempfile::tempdir().unwrap();
    for command in ["plan", "inspect"] {
        let local =
            moeflux(&[command, "--json", "--model"]).arg(golden("hf-bf16")).output().unwrap();
        let local: serde_json::Value = serde_json::from_slice(&local.stdout).unwrap();
        let mut remote = on_hub(&hub.endpoint, home.path(), &[command, "--json", "-m", "org/name"]);
        let (text, _) = finish(remote.env("TMPDIR", temp.path()));
        let remote: serde_json::Value = serde_json::from_str(&text).unwrap();
        for field in ["resident_bytes", "expert_bytes", "record_bytes", "bytes_per_token"] {
            assert_eq!(remote[field], local[field], "{command} {field}");
        }
        let download = &remote["download"];
        assert_eq!((&download["files"], &download["fits"]), (&7.into(), &true.into()));
        assert_eq!(download["missing_bytes"], download["bytes"]);
        assert!(local["download"].is_null());
        let mut plain = on_hub(&hub.endpoint, home.path(), &[command, "-m", "org/name"]);
        let (text, _) = finish(plain.env("TMPDIR", temp.path()));
        assert!(text.contains("not downloaded") && text.contains(" in 7 files, to "), "{text}");
        assert!(!text.contains("missing") && !text.contains("moeflux-headers"), "{text}");
    }
    assert!(!home.path().join("hub").exists());
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    let has_weights =
        |range: &str| range.rsplit('-').next().unwrap().parse().unwrap_or(9999) > 9000;
    let requests = hub.requests();
    assert!(
        !requests.iter().any(|request| request.is_cdn && has_weights(&request.headers["range"]))
    );
    assert_eq!(hub.n_requests("tokenizer"), 0);

    // What is in the cache whole is used, and the Hub not asked.
    finish(&mut run(&hub.endpoint, home.path(), "org/name"));
    let n_before = hub.requests().len();
    let mut plan = on_hub(&hub.endpoint, home.path(), &["plan", "-m", "org/name"]);
    assert!(!finish(&mut plan).0.contains("not downloaded"));
    assert_eq!(hub.requests().len(), n_before);
}

#[test]
fn every_format_is_planned_by_its_headers() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo");
    let dirs = [golden("mlx-q4"), golden("deepseek_v3-fp8"), golden("gpt_oss-mxfp4"), demo];
    for dir in dirs {
        let (hub, home) = (
            hub_of(&dir, &["expected.json", "expected.safetensors"]),
            tempfile::tempdir().unwrap(),
        );
        let (want, _) = finish(moeflux(&["inspect", "--json", "-m"]).arg(&dir));
        let args = ["inspect", "--json", "-m", "org/name"];
        let (got, _) = finish(&mut on_hub(&hub.endpoint, home.path(), &args));
        let [want, got] =
            [want, got].map(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap());
        for field in ["format", "family", "layers", "storage", "resident_bytes", "record_bytes"] {
            assert_eq!(got[field], want[field], "{dir:?} {field}");
        }
    }
}

#[test]
fn a_model_that_cannot_run_is_refused_before_its_download() {
    let (copy, home) = (common::Copy::of(&golden("hf-bf16")), tempfile::tempdir().unwrap());
    copy.edit_json("config.json", |config| {
        config["model_type"] = "unheard_of".into();
        config["text_config"]["model_type"] = "unheard_of".into();
    });
    let hub = hub_of(copy.path(), &["expected.json", "expected.safetensors"]);
    let mut command = run(&hub.endpoint, home.path(), "org/name");
    check_refusal(&mut command, 1, &["not downloaded", "unheard_of"]);
    assert!(!home.path().join("hub").exists());
}

#[test]
fn damage_that_headers_show_is_named_as_on_the_hub() {
    let (copy, home) = (common::Copy::of(&golden("hf-bf16")), tempfile::tempdir().unwrap());
    fs::write(copy.file("config.json"), "{\"a\" 1}").unwrap();
    let hub = hub_of(copy.path(), &["expected.json", "expected.safetensors"]);
    for args in [&["inspect", "-m", "org/name"][..], &["run", "hi", "-m", "org/name"]] {
        let mut command = on_hub(&hub.endpoint, home.path(), args);
        let file = "org/name@0123456/config.json: line 1, column 6: a colon is missing";
        check_refusal(&mut command, 1, &[file]);
    }
}

#[test]
fn verify_downloads_nothing_and_says_what_is_missing() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let verify = || on_hub(&hub.endpoint, home.path(), &["verify", "org/name"]);
    check_refusal(
        &mut verify(),
        1,
        &["org/name is not downloaded", "moeflux run --model org/name"],
    );
    assert!(!home.path().join("hub").exists());
    finish(&mut run(&hub.endpoint, home.path(), "org/name"));
    let n_requests = hub.requests().len();
    assert!(finish(&mut verify()).0.contains("no damage found"));
    assert_eq!(hub.requests().len(), n_requests);
    let snapshots = home.path().join("hub/models--org--name/snapshots");
    let snapshot = fs::read_dir(snapshots).unwrap().next().unwrap().unwrap().path();
    let shard = fs::canonicalize(snapshot.join("model-00002-of-00002.safetensors"));
    fs::remove_file(shard.unwrap()).unwrap();
    fs::remove_file(snapshot.join("model-00002-of-00002.safetensors")).unwrap();
    let output = verify().output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("org/name is not complete") && line.contains("are missing"), "{line}");
    assert!(!snapshot.join("model-00002-of-00002.safetensors").exists());
}

#[cfg(unix)]
#[test]
fn an_interrupt_removes_headers_that_were_read() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let temp = tempfile::tempdir().unwrap();
    hub.fail("/cdn/model-00002", Fault::Stall(4));
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("moeflux"));
    command.args(["inspect", "-m", "org/name"]).env("TMPDIR", temp.path());
    command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", home.path());
    command.env_remove("HF_HUB_OFFLINE").stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let n_entries = || fs::read_dir(temp.path()).unwrap().count();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while n_entries() == 0 || hub.n_requests("/cdn/model-00002") == 0 {
        assert!(std::time::Instant::now() < deadline, "{:?}", hub.requests());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{status}");
    assert_eq!(n_entries(), 0);
}

#[test]
fn a_download_without_room_is_refused_with_both_numbers() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    hub.announce("tokenizer.json", 1 << 60);
    let mut command = run(&hub.endpoint, home.path(), "org/name");
    check_refusal(&mut command, 1, &["org/name needs 1048576.00 TiB", "are free", "HF_HUB_CACHE"]);
}

#[test]
fn paths_are_no_names_and_names_no_paths() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let here = tempfile::tempdir().unwrap();
    fs::create_dir_all(here.path().join("models/qwen-30b")).unwrap();
    fs::write(here.path().join("notes"), "").unwrap();
    for (model, remedy) in [
        ("models/foo", "no such file or directory"),
        ("models/qwen-30", "did you mean \"models/qwen-30b\"?"),
        ("models/foo@v1", "hf://models/foo"),
        ("notes/foo", "no such file"),
        ("./foo", "no such file"),
        ("../foo/bar", "no such file"),
        ("/no/where", "no such file"),
        ("~/foo", "$HOME"),
        ("org/x.safetensors", "no such file"),
        ("org\\name", "no such file"),
        ("C:/name", "no such file"),
        ("modles", "did you mean \"models\"?"),
        ("modles/qwen-30b", "did you mean \"models/qwen-30b\"? (for the Hub's model write hf://"),
        ("org/name/", "no such file"),
        ("", "org/name"),
        ("org/name:", "such as :Q4_K_M"),
        ("models/foo:Q4_K_M", "hf://models/foo:Q4_K_M"),
        ("org/name/sub", "write org/name"),
        ("https://example.com/org/name", "no address of"),
    ] {
        let mut command = on_hub(&hub.endpoint, home.path(), &["plan", "-m", model]);
        check_refusal(command.current_dir(here.path()), 2, &[remedy]);
    }
    assert!(hub.requests().is_empty());
    for model in
        ["org/name@refs/pr/3", "hf://org/name", "hf.co/org/name?x=1", "URL/org/name/tree/v1"]
    {
        let model = model.replace("URL", &hub.endpoint);
        let mut command = on_hub(&hub.endpoint, home.path(), &["inspect", "-m", &model]);
        finish(command.current_dir(here.path()));
    }
    assert_eq!(hub.n_requests("/revision/refs%2Fpr%2F3"), 1);
    assert_eq!(hub.n_requests("/revision/v1"), 1);
}

#[test]
fn gguf_files_are_chosen_by_name_and_said() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start(&[
        ("m-Q4_K_M.gguf", b"GGUF"),
        ("m-Q8_0.gguf", b"GGUF, and more"),
        ("mmproj-F16.gguf", b"GGUF"),
        ("imatrix.gguf", b"GGUF"),
    ]);
    let mut command = on_hub(&hub.endpoint, home.path(), &["plan", "-m", "org/name:Q9"]);
    let there =
        "no GGUF file called \"Q9\"; it has Q4_K_M (4 B), Q8_0 (14 B): write org/name:Q4_K_M";
    check_refusal(&mut command, 1, &[there]);
    let heard = |model: &str| {
        let mut command = on_hub(&hub.endpoint, home.path(), &["inspect", "-m", model]);
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let usual = heard("org/name");
    for words in [
        "org/name has several GGUF files: m-Q4_K_M.gguf is taken (write org/name:TAG",
        "imatrix.gguf is passed over: the model runs without it",
    ] {
        assert!(usual.contains(words), "{words:?} is not in {usual:?}");
    }
    let named = heard("org/name:q8_0");
    assert!(!named.contains("is taken") && named.contains("is passed over"), "{named:?}");
    assert_eq!(hub.n_requests("mmproj"), 0);
    // What exists is a path, whatever it is called.
    let here = tempfile::tempdir().unwrap();
    fs::create_dir_all(here.path().join("org/name:Q8_0")).unwrap();
    let n_before = hub.requests().len();
    let mut command = on_hub(&hub.endpoint, home.path(), &["plan", "-m", "org/name:Q8_0"]);
    check_refusal(command.current_dir(here.path()), 1, &["org/name:Q8_0: no model here"]);
    assert_eq!(hub.requests().len(), n_before);
}

#[cfg(unix)]
#[test]
fn an_interrupted_download_is_resumed() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let args =
        ["run", "--raw", "abc", "--temperature", "0", "--max-tokens", "4", "--model", "org/name"];
    let stalled =
        |request: &hub_server::Request| !request.headers.contains_key("range") && request.is_cdn;
    // Two requests read the header; the third one is for the content.
    hub.fail_later("/cdn/model-00002", 2, Fault::Stall(100_000));
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("moeflux"));
    command.args(args).env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", home.path());
    command.env_remove("HF_HUB_OFFLINE").stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let blobs = home.path().join("hub/models--org--name/blobs");
    let is_partial = |entry: fs::DirEntry| {
        let is_partial =
            entry.path().extension().is_some_and(|extension| extension == "incomplete");
        is_partial && entry.metadata().is_ok_and(|meta| meta.len() == 100_000)
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !fs::read_dir(&blobs).is_ok_and(|mut all| all.any(|entry| entry.is_ok_and(is_partial))) {
        assert!(std::time::Instant::now() < deadline, "{:?}", hub.requests());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(hub.requests().iter().any(stalled));
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert!(!child.wait().unwrap().success());
    let (_, heard) = finish(&mut run(&hub.endpoint, home.path(), "org/name"));
    assert!(heard.contains("are here already"), "{heard:?}");
    let is_rest = |request: &hub_server::Request| {
        request.headers.get("range").is_some_and(|r| r == "bytes=100000-")
    };
    assert!(hub.requests().iter().any(is_rest));
}
