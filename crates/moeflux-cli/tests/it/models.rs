//! `models`, `pull`, `rm` and `ps`, models without a flag before them, and command lines of other programs.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

use crate::common::server::Server;
use crate::common::{Copy, check_refusal, finish, golden, moeflux, refuses, succeeds};
use crate::hub_server::Hub;

/// A Hub with a small model.
fn hub() -> Hub {
    let dir = golden("hf-bf16");
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_file() && !name.starts_with("expected") {
            files.push((name, fs::read(&path).unwrap()));
        }
    }
    let files: Vec<(&str, &[u8])> = files.iter().map(|(a, b)| (&a[..], &b[..])).collect();
    Hub::start(&files)
}

fn on_hub(endpoint: &str, home: &Path, args: &[&str]) -> Command {
    let mut command = moeflux(args);
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", home).env_remove("HF_HUB_OFFLINE");
    command
}

fn listed(home: &Path, dirs: &[&str]) -> Value {
    let mut args = vec!["models", "--json"];
    dirs.iter().for_each(|dir| args.extend(["--dir", dir]));
    let (text, _) = finish(moeflux(&args).env("HF_HOME", home));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_model_is_pulled_listed_used_by_its_bare_name_and_removed() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let run = |args: &[&str]| on_hub(&hub.endpoint, home.path(), args);
    let (said, heard) = finish(&mut run(&["pull", "org/name"]));
    assert!(said.contains("org/name is here") && said.contains("moeflux chat org/name"), "{said}");
    assert!(heard.contains("downloading org/name"), "{heard}");
    assert!(finish(&mut run(&["pull", "org/name"])).0.contains("was here already"));

    let found = listed(home.path(), &[]);
    let models = &found["cache"]["models"];
    assert_eq!(models[0]["name"], "org/name");
    assert_eq!((&models[0]["problem"], &models[0]["is_complete"]), (&Value::Null, &true.into()));
    assert!(models[0]["bytes"].as_u64() > Some(10_000) && models[0]["last_used"].is_u64());
    let (text, _) = finish(run(&["list"]).env("HF_HUB_OFFLINE", "1"));
    assert!(text.contains("  org/name  ") && text.contains("just now"), "{text}");

    let (flag, _) = finish(&mut run(&[
        "run", "-q", "-m", "org/name", "--raw", "abc", "-n", "3", "--temp", "0",
    ]));
    for args in [
        &["run", "org/name", "-q", "--raw", "abc", "-n", "3", "--temp", "0"][..],
        &[
            "run", "-q", "-hf", "org/name", "--raw", "-p", "abc", "-n", "3", "-c", "256", "--temp",
            "0",
        ],
    ] {
        assert_eq!(finish(&mut run(args)).0, flag, "{args:?}");
    }
    assert!(finish(&mut run(&["show", "org/name"])).0.contains("family     qwen3_5_moe"));

    refuses(&["rm", "org/name"], 1, &["org/name is not in"]);
    check_refusal(&mut run(&["rm", "org/name"]), 2, &["--yes", "org/name"]);
    check_refusal(
        &mut run(&["rm", "org/nmae", "-y"]),
        1,
        &["org/nmae is not in", "did you mean org/name?"],
    );
    let (said, _) = finish(&mut run(&["rm", "org/name", "--yes"]));
    assert!(said.contains("removed org/name ("), "{said}");
    assert!(!home.path().join("hub/models--org--name").exists());
    assert_eq!(listed(home.path(), &[])["cache"]["models"].as_array().unwrap().len(), 0);
}

#[cfg(unix)]
#[test]
fn nothing_is_removed_while_it_is_downloaded_and_nothing_outside_of_the_cache() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let run = |args: &[&str]| on_hub(&hub.endpoint, home.path(), args);
    finish(&mut run(&["pull", "org/name", "-q"]));
    let cache = home.path().join("hub");
    let lock = fs::File::create(cache.join(".locks/models--org--name/moeflux.lock")).unwrap();
    lock.lock().unwrap();
    check_refusal(
        &mut run(&["rm", "org/name", "-y"]),
        1,
        &["org/name is being downloaded", "moeflux.lock"],
    );
    drop(lock);
    let here = Copy::of(&golden("mlx-q4"));
    for path in [here.arg(), "./", "/"] {
        check_refusal(&mut run(&["rm", path, "-y"]), 2, &[path]);
    }
    let elsewhere = tempfile::tempdir().unwrap();
    fs::rename(cache.join("models--org--name"), elsewhere.path().join("m")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("m"), cache.join("models--org--name"))
        .unwrap();
    check_refusal(
        &mut run(&["rm", "org/name", "-y"]),
        1,
        &["models--org--name", "a link out of the cache"],
    );
    assert!(elsewhere.path().join("m/snapshots").is_dir() && here.file("config.json").is_file());
}

#[test]
fn published_models_are_listed_with_what_they_need_and_one_is_proposed() {
    let home = tempfile::tempdir().unwrap();
    let found = listed(home.path(), &[]);
    let all = found["published"].as_array().unwrap();
    assert!(all.len() >= 10, "{all:?}");
    for model in all {
        let bytes = |field: &str| model[field].as_u64().unwrap();
        assert!(bytes("download_bytes") > bytes("least_memory_bytes"), "{model}");
        assert!(model["model"].as_str().unwrap().contains('/'), "{model}");
        let fits =
            bytes("least_memory_bytes") <= found["available_bytes"].as_u64().unwrap() * 11 / 10;
        assert!(fits || model["fits"] == false, "{model}");
        assert!(model["fits"] == true || model["is_best"] == false, "{model}");
    }
    let fitting = all.iter().filter(|model| model["fits"] == true).count();
    let best = all.iter().filter(|model| model["is_best"] == true).count();
    assert!(best <= 1 && (fitting == 0 || best <= fitting), "{all:?}");
    // Their short names are names wherever a model is named.
    let mut command = moeflux(&["plan", "qwen3.6-35b-a3b"]);
    check_refusal(
        command.env("HF_HOME", home.path()),
        1,
        &["mlx-community/Qwen3.6-35B-A3B-4bit is not complete", "HF_HUB_OFFLINE"],
    );
}

#[test]
fn folders_are_searched_for_models() {
    let dir = tempfile::tempdir().unwrap();
    let copy = Copy::of(&golden("mlx-q4"));
    fs::create_dir(dir.path().join("more")).unwrap();
    fs::rename(copy.path(), dir.path().join("more/tiny")).unwrap();
    fs::write(dir.path().join("x-Q4_0-00001-of-00002.gguf"), b"GGUF").unwrap();
    fs::write(dir.path().join("mmproj-x.gguf"), b"GGUF").unwrap();
    let found = listed(dir.path(), &[dir.path().to_str().unwrap()]);
    let models = found["folders"][0]["models"].as_array().unwrap();
    assert_eq!(models.len(), 2, "{models:?}");
    assert!(models[0]["name"].as_str().unwrap().ends_with("more/tiny"));
    assert_eq!(models[0]["problem"], Value::Null);
    assert!(models[1]["problem"].is_string(), "{models:?}");
    refuses(&["models", "--dir", "/no/where"], 1, &["--dir /no/where"]);
}

#[test]
fn a_running_server_is_described() {
    let server = Server::start(Copy::of_demo().path());
    let (text, _) = succeeds(&["ps", "--address", server.addr()]);
    for words in [server.addr(), "contexts   0 of 8 in use", "idle", "memory     "] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    let (json, _) = succeeds(&["ps", "--addr", server.addr(), "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["now"]["running"], &json["now"]["tok_s"]), (&0.into(), &Value::Null));
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    refuses(&["ps", "--address", &free], 1, &[&free, "no server listens", "moeflux serve"]);
    let other = Hub::start(&[]);
    let addr = other.endpoint.trim_start_matches("http://").to_owned();
    refuses(&["ps", "--address", &addr], 1, &[&addr, "another program"]);
}

#[test]
fn a_server_with_a_key_is_asked_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    fs::write(&keys, "a-secret-of-thirty-two-characters\n").unwrap();
    let file = keys.to_str().unwrap();
    let server = Server::start_with(Copy::of_demo().path(), &["--api-key-file", file]);
    refuses(&["ps", "--address", server.addr()], 1, &["wants a key", "--api-key-file"]);
    succeeds(&["ps", "--address", server.addr(), "--api-key-file", file]);
    let mut command = moeflux(&["ps", "--address", server.addr()]);
    finish(command.env("MOEFLUX_API_KEY", "a-secret-of-thirty-two-characters"));
    let mut command = moeflux(&["ps", "--address", server.addr()]);
    check_refusal(
        command.env("MOEFLUX_API_KEY", "another-secret-of-many-characters"),
        1,
        &["does not know"],
    );
}

#[test]
fn command_lines_of_other_programs_are_understood_or_answered() {
    for (args, words) in [
        (&["run", "-hf", "org/name", "hi"][..], &["org/name", "HF_HUB_OFFLINE"][..]),
        (&["serve", "-hf", "org/name", "-c", "4096", "-ngl", "0"], &["org/name", "HF_HUB_OFFLINE"]),
    ] {
        refuses(args, 1, words);
    }
    for (args, words) in [
        (&["run", "-ngl", "99", "hi"][..], &["-ngl", "--device gpu", "--device-cache"][..]),
        (&["-hf", "org/name"], &["-hf", "moeflux chat --model"]),
        (&["org/name"], &["'org/name' is a model", "moeflux chat org/name"]),
        (&["stop"], &["Ctrl-C", "moeflux serve"]),
        (&["create", "x"], &["did you mean pack?"]),
        (&["remove", "x"], &["did you mean rm?"]),
        (&["download", "x"], &["did you mean pull?"]),
        (&["generate", "--model", "x"], &["did you mean run?"]),
        (&["logs"], &["'logs' is no command: moeflux --help lists them"]),
        (&["pull", "-hf"], &["-hf needs a value"]),
        (&["ps", "-hf", "x"], &["there is no flag -hf"]),
        (&["doctor", "-hello"], &["there is no flag -hello"]),
        (&["-hello"], &["there is no flag -hello"]),
        (&["--version", "foo"], &["'foo'", "--version"]),
        (&["plan", "tiny", "--bits", "16"], &["--bits", "--model"]),
        (&["show", "-m", "tiny", "--bits", "16"], &["--bits", "--model"]),
        (&["run", "-b", "2048", "-ub", "512", "hi"], &["-b and -ub", "--chunk"]),
        (&["pull", "qwen3.6-35b-a3"], &["qwen3.6-35b-a3", "did you mean qwen3.6-35b-a3b?"]),
        (&["plan", "qwen3.6"], &["did you mean qwen3.6-"]),
        (&["run", "gpt-oss-20", "hi"], &["gpt-oss-20", "did you mean gpt-oss-20b?"]),
        (&["plan", "mid"], &["--shape mid"]),
        (&["rm"], &["NAME"]),
        (&["pull"], &["NAME"]),
    ] {
        refuses(args, 2, words);
    }
    assert!(succeeds(&["version"]).0.starts_with("moeflux "));
    assert_eq!(succeeds(&["version"]), succeeds(&["--version"]));
    let (answer, heard) = succeeds(&["run", "hi", "--raw", "--jinja", "-fa", "on", "-n", "2"]);
    assert!(heard.contains("--jinja is left out") && heard.contains("-fa is left out"), "{heard}");
    let (quiet, heard) = succeeds(&["run", "hi", "--raw", "--jinja", "-n", "2", "-q"]);
    assert_eq!((quiet, heard), (answer, String::new()));
}

#[test]
fn nothing_is_done_where_a_later_name_is_wrong() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let run = |args: &[&str]| on_hub(&hub.endpoint, home.path(), args);
    check_refusal(&mut run(&["pull", "org/name", "c"]), 2, &["NAME", "\"c\""]);
    assert!(!home.path().join("hub/models--org--name").exists());
    finish(&mut run(&["pull", "-q", "-hf", "org/name"]));
    for names in [["org/name", "org/other"], ["org/other", "org/name"]] {
        check_refusal(&mut run(&["rm", names[0], names[1], "-y"]), 1, &["org/other is not in"]);
        assert!(home.path().join("hub/models--org--name/snapshots").is_dir());
    }
    // Two names may be of one repository.
    let again = ["rm", "org/name@main", "org/name", "-y"];
    finish(&mut run(&again));
    assert!(!home.path().join("hub/models--org--name").exists());
}

#[test]
fn a_folder_in_the_place_of_a_short_name_is_told_from_the_model() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("qwen3.6-35b-a3b")).unwrap();
    let mut command = moeflux(&["pull", "qwen3.6-35b-a3b"]);
    let words = ["is a path here", "hf://mlx-community/Qwen3.6-35B-A3B-4bit"];
    check_refusal(command.current_dir(dir.path()).env("HF_HOME", dir.path()), 2, &words);
}

#[test]
fn a_password_in_the_address_of_the_hub_is_not_shown() {
    let home = tempfile::tempdir().unwrap();
    let mut command = on_hub("http://user:geheim@127.0.0.1:1", home.path(), &["pull", "org/name"]);
    let out = command.output().unwrap();
    let heard = String::from_utf8(out.stderr).unwrap();
    assert!(heard.contains("127.0.0.1:1") && !heard.contains("geheim"), "{heard}");
}

#[cfg(unix)]
#[test]
fn the_file_of_rates_may_be_of_another_version_or_a_pipe() {
    let cache = tempfile::tempdir().unwrap();
    let file = cache.path().join("rates.json");
    let newer = r#"{"version": 2, "of": "another form"}"#;
    fs::write(&file, newer).unwrap();
    for args in [&["models"][..], &["plan", "--shape", "tiny"]] {
        let (_, heard) = finish(moeflux(args).env("MOEFLUX_CACHE", cache.path()));
        assert!(heard.contains("is of version 2"), "{args:?}: {heard}");
        assert_eq!(fs::read_to_string(&file).unwrap(), newer);
    }
    fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    for args in [&["models"][..], &["plan", "--shape", "tiny"]] {
        let mut command = moeflux(args);
        command.env("MOEFLUX_CACHE", cache.path()).timeout(std::time::Duration::from_secs(60));
        let (_, heard) = finish(&mut command);
        assert!(heard.contains("this is a pipe"), "{args:?}: {heard}");
    }
}

#[cfg(unix)]
#[test]
fn a_line_break_in_a_folders_name_breaks_no_table() {
    let dir = tempfile::tempdir().unwrap();
    let copy = Copy::of(&golden("mlx-q4"));
    fs::rename(copy.path(), dir.path().join("a\nb")).unwrap();
    let (text, _) = succeeds(&["models", "--dir", dir.path().to_str().unwrap()]);
    assert!(text.lines().any(|line| line.contains("a\\nb  ")), "{text}");
}

/// A server that answers each request with this, or not at all.
fn other_server(answer: Option<&'static [u8]>) -> String {
    use std::io::{Read, Write};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            match answer {
                Some(answer) => {
                    let _ = stream.read(&mut [0; 1 << 12]);
                    let _ = stream.write_all(answer);
                }
                None => held.push(stream),
            }
        }
    });
    addr
}

#[test]
fn what_answers_in_place_of_a_server_is_named_with_a_remedy() {
    for answer in
        [&b"garbage\r\n\r\n"[..], b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\n\r\n{}", b""]
    {
        let addr = other_server(Some(answer));
        refuses(&["ps", "--address", &addr], 1, &["another program answers", &addr, "--address"]);
    }
    let addr = other_server(None);
    refuses(&["ps", "--address", &addr], 1, &["did not answer within", &addr, "--address"]);
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    fs::write(&keys, "a-secret\u{1}-with-a-control-character\n").unwrap();
    let file = keys.to_str().unwrap();
    refuses(&["ps", "--address", &addr, "--api-key-file", file], 1, &[file, "printable ASCII"]);
}
