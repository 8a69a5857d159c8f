//! What the system refuses: memory, threads, pages of files that were cut. One line each, and
//! exit code 1.

#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Output, Stdio};

use crate::common::moeflux;

const RUN: [&str; 7] = ["run", "-q", "--threads=2", "--temperature", "0", "--max-tokens=3", "hi"];

/// The result of `moeflux` with `args`, started by a shell after `limit`.
fn run_limited(limit: &str, args: &[&str]) -> Output {
    let binary = assert_cmd::cargo::cargo_bin!("moeflux");
    let mut command = assert_cmd::Command::new("sh");
    for (name, value) in moeflux::<&str>(&[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")]).arg(binary).args(args);
    command.timeout(std::time::Duration::from_secs(60)).output().unwrap()
}

const GLIBC_FATAL: &str = "Fatal glibc error: failed to register TLS destructor: out of memory\n";

/// Whether it answered; where it did not, it said why in one line.
#[track_caller]
fn answers_or_says_why(limit: &str, output: &Output) -> bool {
    let line = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => return true,
        // The C library itself ends a process in which it cannot note what a thread does at its
        // end. Another thread may say its line meanwhile.
        None if line.starts_with(GLIBC_FATAL) => {
            let is_own = |line: &str| line.starts_with("moeflux: out of memory: ");
            assert!(line.lines().skip(1).all(is_own), "{limit}: {line:?}");
            return false;
        }
        Some(1) => {}
        _ => panic!("{limit}: {}: {line}", output.status),
    }
    assert!(line.starts_with("moeflux: ") && line.ends_with('\n'), "{limit}: {line:?}");
    assert_eq!(line.lines().count(), 1, "{limit}: {line:?}");
    assert!(!line.contains("panicked"), "{limit}: {line:?}");
    false
}

#[test]
fn a_small_allocation_that_fails_is_one_line() {
    let mut lines = String::new();
    // What fails depends on how the allocator of the C library lays its arenas out, so that a
    // larger limit may fail where a smaller one does not. The binary alone takes some 100 MiB.
    for mib in (60..=460).step_by(20) {
        let limit = format!("ulimit -v {}", mib * 1024);
        let output = run_limited(&limit, &RUN);
        // Below that, the loader of shared libraries has the word.
        if output.status.code() != Some(127) && !answers_or_says_why(&limit, &output) {
            lines += &String::from_utf8_lossy(&output.stderr);
        }
    }
    assert!(lines.contains("bytes could not be allocated") && lines.contains("--ctx"), "{lines}");
}

#[test]
fn a_plan_within_a_limit_of_addresses_is_made_or_says_why_not() {
    let mut n_plans = 0;
    for mib in (100..=460).step_by(20) {
        let limit = format!("ulimit -v {}", mib * 1024);
        let output = run_limited(&limit, &["plan"]);
        if output.status.code() != Some(127) && answers_or_says_why(&limit, &output) {
            assert!(!output.stdout.is_empty(), "{limit}");
            n_plans += 1;
        }
    }
    assert!(n_plans > 0);
}

/// A control group for this process's children, where one can be made.
struct ThreadGroup(PathBuf);

impl ThreadGroup {
    fn new() -> Option<ThreadGroup> {
        let lines = fs::read_to_string("/proc/self/cgroup").ok()?;
        let of_pids = lines.lines().find_map(|line| line.split_once(":pids:"))?.1;
        let parent = PathBuf::from(format!("/sys/fs/cgroup/pids{of_pids}"));
        let dir = parent.join(format!("moeflux-test-{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        Some(ThreadGroup(dir))
    }
}

impl Drop for ThreadGroup {
    fn drop(&mut self) {
        // A child that renders templates may need a moment to end.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn threads_that_cannot_be_started_are_named_with_the_limit() {
    let Some(ThreadGroup(dir)) = &ThreadGroup::new() else {
        // No control group can be made here.
        return;
    };
    let mut n_refused = 0;
    // With 16 threads the server starts, and would not end.
    for n_threads in 1..16 {
        fs::write(dir.join("pids.max"), n_threads.to_string()).unwrap();
        let limit = format!("echo $$ > {}/cgroup.procs", dir.display());
        let serve = ["serve", "--threads=2", "--addr", "127.0.0.1:0"];
        let args = if n_threads > 12 { &serve[..] } else { &RUN[..] };
        let output = run_limited(&limit, args);
        if output.status.code() == Some(1) {
            let text = String::from_utf8_lossy(&output.stderr);
            let line = text.lines().last().unwrap_or_default();
            assert!(line.starts_with("moeflux: cannot start "), "{n_threads}: {text}");
            assert!(line.contains(&format!("at most {n_threads} processes")), "{text}");
            assert!(!text.contains("panicked") && !text.contains("template does not"), "{text}");
            n_refused += 1;
        } else {
            assert!(answers_or_says_why(&limit, &output), "{n_threads}");
        }
    }
    assert!(n_refused > 8, "{n_refused}");
}

#[test]
fn a_mapped_file_that_was_cut_is_the_last_line_of_a_server() {
    let binary = assert_cmd::cargo::cargo_bin!("moeflux");
    let mut command = std::process::Command::new(binary);
    for (name, value) in moeflux::<&str>(&[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(["serve", "--addr", "127.0.0.1:0"]).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "the server ended");
    }
    // What the kernel sends when a page of a mapped file is gone.
    let kill = std::process::Command::new("kill").args(["-BUS", &server.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(1));
    assert!(rest.starts_with("moeflux: a mapped file of the model was cut short"), "{rest:?}");
    assert_eq!(rest.lines().count(), 1, "{rest:?}");
}
