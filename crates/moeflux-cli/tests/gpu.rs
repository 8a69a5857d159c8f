//! The binary on a GPU, and without one.
#![cfg(feature = "gpu")]

mod common;

use std::io::Read as _;
use std::process::{Command, Stdio};

use common::{check_refusal, finish, moeflux};

/// A place where no driver for Vulkan is.
const NO_DRIVERS: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

fn without_drivers(args: &[&str]) -> assert_cmd::Command {
    let mut command = moeflux(args);
    for variable in NO_DRIVERS {
        command.env(variable, "/nonexistent/driver.json");
    }
    command
}

#[test]
fn without_drivers_gpus_are_refused_and_the_rest_works() {
    let run = ["run", "--temperature", "0", "--max-tokens", "4", "Hello", "--device"];
    check_refusal(&mut without_drivers(&[&run[..], &["gpu"]].concat()), 1, &["no GPU was found"]);
    let (text, _) = finish(&mut without_drivers(&[&run[..], &["cpu"]].concat()));
    assert!(!text.trim().is_empty());
    let (text, _) = finish(&mut without_drivers(&["inspect", "--devices"]));
    assert!(text.contains("no GPU"), "{text}");
}

/// Whether there is a GPU to run on.
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn has_gpu() -> bool {
    let (text, _) = finish(&mut moeflux(&["inspect", "--devices"]));
    let has = text.contains("gpu:0") && !text.contains("cannot run models");
    assert!(has || std::env::var_os("MOEFLUX_EXPECTED_GPU").is_none(), "{text}");
    if !has {
        println!("SKIP: this machine has no GPU that runs models");
    }
    has
}

#[test]
fn a_run_that_is_killed_in_mid_token_leaves_a_device_that_works() {
    if !has_gpu() {
        return;
    }
    let args = ["run", "--device", "gpu", "--temperature", "0", "Once upon a time"];
    let (before, _) = finish(&mut moeflux(&[&args[..], &["--max-tokens", "8"]].concat()));
    for _ in 0..3 {
        let mut long = Command::new(assert_cmd::cargo::cargo_bin!("moeflux"))
            .args([&args[..], &["--max-tokens", "400"]].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It is computing the tokens behind the first.
        let mut first = [0];
        long.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        long.kill().unwrap();
        long.wait().unwrap();
    }
    let (after, _) = finish(&mut moeflux(&[&args[..], &["--max-tokens", "8"]].concat()));
    assert_eq!(after, before);
}
