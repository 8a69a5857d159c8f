//! `moeflux launch` with scripts in place of agents.

#![cfg(unix)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::server::Server;
use crate::common::{Copy, check_refusal, moeflux, refuses};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Writes down what it was started with, and ends when the file `go` is there.
const AGENT: &str = r#"#!/bin/sh
trap 'echo interrupt >> "$SPY/signals"' INT
trap 'echo terminate >> "$SPY/signals"' TERM
printf '%s\n' "$@" > "$SPY/args"
echo $$ > "$SPY/pid"
env > "$SPY/env.tmp"
mv "$SPY/env.tmp" "$SPY/env"
while [ -d "$SPY" ] && [ ! -e "$SPY/go" ]; do sleep 0.05; done
exit 7
"#;

/// A model with a context for agents, and a folder with one that is installed.
struct Place {
    model: Copy,
    spy: tempfile::TempDir,
    addr: SocketAddr,
}

impl Place {
    fn new(agent: &str) -> Place {
        let model = Copy::of_demo();
        model.edit_json("moeflux.json", |value| {
            value["config"]["max_position_embeddings"] = 65536.into();
        });
        let spy = tempfile::tempdir().unwrap();
        let program = spy.path().join(agent);
        fs::write(&program, AGENT).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        // Free until the server takes it.
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Place { model, spy, addr }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.spy.path().join(name)
    }

    /// `moeflux launch` with the model, which shows what it says.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
        let (address, path) = (self.addr.to_string(), std::env::var("PATH").unwrap());
        command
            .args(["launch", args[0], "--addr", &address])
            .args(["--model", self.model.arg(), "--ctx", "40000"])
            .args(&args[1..])
            .env("PATH", format!("{}:{path}", self.spy.path().display()))
            .env("SPY", self.spy.path())
            .env("HOME", self.spy.path())
            .env("MOEFLUX_CACHE", self.spy.path())
            .env("HF_HUB_OFFLINE", "1")
            .env_remove("MOEFLUX_API_KEY")
            .env("ANTHROPIC_API_KEY", "sk-of-elsewhere")
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// Starts it and waits for its agent.
    fn launch(&self, args: &[&str]) -> Child {
        let child = self.command(args).stderr(Stdio::null()).spawn().unwrap();
        until(|| self.file("env").exists());
        child
    }

    /// The value of a variable that the agent has.
    fn variable(&self, name: &str) -> Option<String> {
        let text = fs::read_to_string(self.file("env")).unwrap();
        let start = format!("{name}=");
        text.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    }

    fn release(&self) {
        fs::write(self.file("go"), "").unwrap();
    }

    fn is_served(&self) -> bool {
        get(self.addr, "/health").is_some_and(|reply| reply.starts_with("HTTP/1.1 200"))
    }
}

/// The reply to a request; `None` where nothing listens.
fn get(addr: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(addr).ok()?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    Some(reply)
}

#[track_caller]
fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(20));
    }
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

#[test]
fn an_agent_gets_a_server_of_its_own() {
    let place = Place::new("claude");
    let mut child = place.launch(&["claude", "--", "-p", "two words"]);
    assert!(place.is_served());
    assert_eq!(fs::read_to_string(place.file("args")).unwrap(), "-p\ntwo words\n");
    let name = place.model.path().file_name().unwrap().to_str().unwrap().to_owned();
    for (variable, want) in [
        ("ANTHROPIC_BASE_URL", format!("http://{}", place.addr)),
        ("ANTHROPIC_AUTH_TOKEN", "none".into()),
        ("ANTHROPIC_MODEL", name.clone()),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", name),
        ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "40000".into()),
        ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "10000".into()),
        ("CLAUDE_CODE_ATTRIBUTION_HEADER", "0".into()),
    ] {
        assert_eq!(place.variable(variable), Some(want), "{variable}");
    }
    assert_eq!(place.variable("ANTHROPIC_API_KEY"), None);
    place.release();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert!(!place.is_served());
    let log = fs::read_to_string(place.file(&format!("launch-{}.log", place.addr.port())));
    assert!(log.unwrap().contains("listening on"));
}

#[test]
fn the_server_ends_however_the_agent_or_the_launcher_ends() {
    let place = Place::new("codex");
    let mut child = place.launch(&["codex"]);
    let agent = pid(&fs::read_to_string(place.file("pid")).unwrap());
    kill_process(agent, Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
    assert!(!place.is_served());

    fs::remove_file(place.file("env")).unwrap();
    let mut child = place.launch(&["codex"]);
    assert!(place.is_served());
    kill_process(pid(&child.id().to_string()), Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    until(|| !place.is_served());
    place.release();
}

#[test]
fn signals_go_to_the_agent() {
    let place = Place::new("claude");
    let mut child = place.launch(&["claude"]);
    let signals = || fs::read_to_string(place.file("signals")).unwrap_or_default();
    // As a terminal does it: to all processes of the group.
    kill_process_group(pid(&child.id().to_string()), Signal::INT).unwrap();
    until(|| signals().contains("interrupt"));
    assert!(place.is_served() && child.try_wait().unwrap().is_none());
    kill_process(pid(&child.id().to_string()), Signal::TERM).unwrap();
    until(|| signals().contains("terminate"));
    assert!(place.is_served() && child.try_wait().unwrap().is_none());
    place.release();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert!(!place.is_served());
}

#[test]
fn keys_are_passed_on_and_never_printed() {
    let place = Place::new("codex");
    let keys = place.file("keys");
    fs::write(&keys, "\nfirst-key-1234\nsecond-key-1234\n").unwrap();
    let file = keys.to_str().unwrap();
    let mut child = place.launch(&["codex", "--api-key-file", file]);
    let refused = get(place.addr, "/v1/models").unwrap();
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    assert_eq!(place.variable("MOEFLUX_API_KEY").as_deref(), Some("first-key-1234"));
    let args = fs::read_to_string(place.file("args")).unwrap();
    for want in [
        "model_provider=\"moeflux\"\n",
        &format!("model_providers.moeflux.base_url=\"http://{}/v1\"\n", place.addr),
        "model_providers.moeflux.wire_api=\"responses\"\n",
        "model_providers.moeflux.env_key=\"MOEFLUX_API_KEY\"\n",
        "model_context_window=40000\n",
    ] {
        assert!(args.contains(want), "{want} is not in {args}");
    }
    // Without the key, and with one that the server does not know.
    let address = place.addr.to_string();
    refuses(&["launch", "codex", "--addr", &address], 1, &["wants a key", "--api-key-file"]);
    check_refusal(
        moeflux(&["launch", "codex", "--addr", &address]).env("MOEFLUX_API_KEY", "unknown-key"),
        1,
        &["does not know", "--api-key-file"],
    );
    place.release();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    for agent in ["claude", "codex", "opencode"] {
        let output = place.command(&[agent, "--api-key-file", file, "--print"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !text.contains("first-key"), "{text}");
        assert!(text.contains(&format!("grep -m 1 . {file}")), "{text}");
    }
    assert!(!place.is_served());
}

#[test]
fn a_server_that_runs_is_used_and_left_running() {
    let place = Place::new("opencode");
    let server = Server::start_with(place.model.path(), &["--ctx", "50000"]);
    let port = server.addr().rsplit(':').next().unwrap().to_owned();
    let place = Place { addr: format!("127.0.0.1:{port}").parse().unwrap(), ..place };
    let mut child = place.launch(&["opencode"]);
    let config = place.variable("OPENCODE_CONFIG_CONTENT").unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let provider = &config["provider"]["moeflux"];
    assert_eq!(provider["options"]["baseURL"], format!("http://127.0.0.1:{port}/v1"));
    let name = config["model"].as_str().unwrap().strip_prefix("moeflux/").unwrap();
    assert_eq!(provider["models"][name]["limit"]["context"], 50000);
    place.release();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert!(place.is_served(), "it was there before");

    let address = place.addr.to_string();
    let base = ["launch", "opencode", "--addr", address.as_str()];
    let refuses = |more: &[&str], words: &[&str]| refuses(&[&base[..], more].concat(), 1, words);
    refuses(&["--model", "org/other"], &["--model org/other", name, "--addr"]);
    refuses(&["--ctx", "100000"], &["--ctx 100000", "50000", "--addr"]);
    drop(server);
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_started() {
    let place = Place::new("claude");
    let address = place.addr.to_string();
    let base = ["launch", "claude", "--addr", address.as_str()];
    // The demo model.
    let small = [&base[..], &["--ctx", "4096"]].concat();
    refuses(&small, 2, &["Claude Code", "20000 tokens", "4096", "--ctx 65536"]);
    refuses(&["launch", "claude", "-p", "hello"], 2, &["-p", "after --"]);
    refuses(&["launch", "cursor"], 2, &["'cursor'", "claude, codex or opencode"]);
    check_refusal(
        moeflux(&base).env("PATH", "/nowhere").env("HOME", "/nowhere"),
        1,
        &["claude is not installed", "npm install -g @anthropic-ai/claude-code"],
    );
    // Another program's port.
    let other = TcpListener::bind(place.addr).unwrap();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
    });
    refuses(&base, 1, &["another program", "--addr"]);
    answer.join().unwrap();
    assert!(!place.file("env").exists() && !place.is_served());
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let place = Place::new("claude");
    fs::remove_file(place.model.file("moeflux.json")).unwrap();
    let output = place.command(&["claude"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.lines().last().unwrap().contains(place.model.arg()), "{said}");
    assert!(!Path::new(&place.file("env")).exists());
}
