//! The binary on a GPU, and without one.
#![cfg(feature = "gpu")]

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{check_refusal, finish, moeflux};
use serde_json::Value;

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
    let run = ["run", "-q", "--temperature", "0", "--max-tokens", "4", "Hello", "--device"];
    check_refusal(
        &mut without_drivers(&[&run[..], &["gpu"]].concat()),
        1,
        &["no GPU was found", "--device cpu"],
    );
    let fifth = &[&run[..], &["gpu:5"]].concat();
    check_refusal(&mut without_drivers(fifth), 1, &["no GPU 5", "--device cpu"]);
    let (text, _) = finish(&mut without_drivers(&[&run[..], &["cpu"]].concat()));
    assert!(!text.trim().is_empty());
    let (text, _) = finish(&mut without_drivers(&["inspect", "--devices"]));
    assert!(text.contains("no GPU"), "{text}");
}

/// The model that `--device auto` has to think about: more than a small one, of zeros that take no room.
const SHAPE: [&str; 2] = ["--shape", "olmoe-1b-7b"];

#[test]
fn a_small_model_runs_on_the_processor_and_no_driver_is_asked() {
    let (_, stderr) = finish(&mut moeflux(&["run", "--max-tokens", "2", "Hello"]));
    assert!(stderr.contains("cpu: the model is small"), "{stderr}");
    let (_, stderr) =
        finish(&mut moeflux(&["run", "--max-tokens", "2", "--device", "cpu", "Hello"]));
    assert!(!stderr.contains("cpu:"), "{stderr}");
    let (_, stderr) = finish(&mut moeflux(&["run", "-q", "--max-tokens", "2", "Hello"]));
    assert_eq!(stderr, "");
}

#[test]
fn without_drivers_models_run_on_the_processor_and_that_is_said() {
    let plan =
        |args: &[&str]| finish(&mut without_drivers(&[&["plan"], &SHAPE[..], args].concat())).0;
    assert!(plan(&[]).contains("device: cpu: no GPU was found"));
    let json: Value = serde_json::from_str(&plan(&["--json"])).unwrap();
    assert_eq!(json["device"]["name"], "cpu");
    assert_eq!(json["device"]["reason"], "cpu: no GPU was found");
    assert!(plan(&["--device", "cpu"]).contains("device: cpu: as asked for"));
    let devices = ["inspect", "--devices", SHAPE[0], SHAPE[1]];
    let (text, _) = finish(&mut without_drivers(&devices));
    assert!(text.ends_with("the model runs on cpu: no GPU was found\n"), "{text}");
}

#[test]
fn a_software_device_is_never_chosen_and_prints_nothing() {
    if !has_gpu() {
        return;
    }
    let (text, _) = finish(&mut moeflux(&["inspect", "--devices", "--json"]));
    let devices: Value = serde_json::from_str(&text).unwrap();
    let devices = devices.as_array().unwrap();
    if devices.iter().any(|device| device["software"] == false) {
        return;
    }
    // A connection to a window system that fails is what drivers complain of.
    let mut command = moeflux(&[&["plan"], &SHAPE[..]].concat());
    command.env("XDG_RUNTIME_DIR", "/nonexistent").env("WAYLAND_DISPLAY", "wayland-9");
    command.env("DISPLAY", ":99");
    let (text, stderr) = finish(&mut command);
    assert_eq!(stderr, "");
    assert!(text.contains("device: cpu: the only GPU is a software device ("), "{text}");
    let devices = ["inspect", "--devices", SHAPE[0], SHAPE[1]];
    let (text, stderr) = finish(&mut moeflux(&devices));
    assert!(text.contains("the model runs on cpu: the only GPU is a software device"), "{text}");
    assert!(text.contains("used only where --device names it"), "{text}");
    assert_eq!(stderr, "");
}

#[test]
fn commands_whose_bits_count_stay_on_the_processor() {
    for command in ["logits", "perplexity", "calibrate", "inspect"] {
        let (help, _) = finish(&mut moeflux(&[command, "--help"]));
        let line = help.lines().find(|line| line.contains("--device <NAME>")).unwrap();
        assert!(line.ends_with("[default: cpu]"), "{command}: {line}");
    }
    for command in ["run", "chat", "serve", "bench", "plan"] {
        let (help, _) = finish(&mut moeflux(&[command, "--help"]));
        let line = help.lines().find(|line| line.contains("--device <NAME>")).unwrap();
        assert!(line.ends_with("[default: auto]"), "{command}: {line}");
    }
}

#[test]
fn a_variable_has_the_default_device() {
    let plan = |device: &str, args: &[&str]| {
        let mut command = without_drivers(&[&["plan"], args].concat());
        command.env("MOEFLUX_DEVICE", device);
        command
    };
    let said = |command: &mut assert_cmd::Command| finish(command).0;
    assert!(said(&mut plan("cpu", &[])).contains("device: cpu: as asked for"));
    assert!(said(&mut plan("", &[])).contains("device: cpu: the model is small"));
    let over = said(&mut plan("gpu", &["--device", "auto"]));
    assert!(over.contains("device: cpu: the model is small"), "{over}");
    check_refusal(&mut plan("gpu", &[]), 1, &["no GPU was found"]);
    check_refusal(&mut plan("tpu", &[]), 2, &["tpu", "MOEFLUX_DEVICE"]);
    let (help, _) = finish(plan("gpu", &[]).args(["--help"]));
    assert!(help.contains("[default: gpu]"));
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
    let args = ["run", "-q", "--device", "gpu", "--temperature", "0", "Once upon a time"];
    let (before, _) = finish(&mut moeflux(&[&args[..], &["--max-tokens", "8"]].concat()));
    for _ in 0..3 {
        let mut long = Command::new(assert_cmd::cargo::cargo_bin!("moeflux"))
            .args([&args[..], &["--max-tokens", "400"]].concat())
            .env("MOEFLUX_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
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

const BENCH: [&str; 9] =
    ["bench", "--device", "gpu", "--prompt-tokens", "24", "--gen-tokens", "6", "--repeat", "2"];

fn json(args: &[&str]) -> Value {
    let (text, _) = finish(&mut moeflux(&[&BENCH[..], args, &["--json"]].concat()));
    serde_json::from_str(&text).unwrap()
}

#[track_caller]
fn check_positive(object: &Value, keys: &[&str]) {
    for key in keys {
        assert!(object[key].as_f64().is_some_and(|number| number > 0.0), "{key}: {}", object[key]);
    }
}

const LIMITS: [&str; 6] = [
    "copy_gb_s",
    "read_gb_s",
    "upload_gb_s",
    "upload_gb_s_one_thread",
    "product_tflop_s",
    "product_tflop_s_int8",
];

#[test]
fn bench_measures_the_device_and_the_model() {
    if !has_gpu() {
        return;
    }
    for cache in [&[][..], &["--device-cache", "200kB"]] {
        let all = json(cache);
        check_positive(&all, &["prefill_tok_s", "decode_tok_s", "weight_bytes_per_token"]);
        check_positive(&all, &["memory_gb_s", "decode_memory_share", "prefill_arithmetic_share"]);
        check_positive(&all["gpu"], &LIMITS);
        assert_eq!(all["memory_gb_s"], all["gpu"]["copy_gb_s"]);
        assert!(all["gpu_tuning"]["left"].is_u64(), "{}", all["gpu_tuning"]);
        let share = all["decode_tok_s"].as_f64().unwrap()
            * all["weight_bytes_per_token"].as_f64().unwrap()
            / all["memory_gb_s"].as_f64().unwrap()
            / 1e9;
        let reported = all["decode_memory_share"].as_f64().unwrap();
        assert!((share / reported - 1.0).abs() < 0.5, "{share} {reported}");
    }
    let (text, _) = finish(&mut moeflux(&BENCH));
    for line in
        ["Matvec ", "wait for the host ", "gpu ", "upload ", "products ", "layouts ", "decode "]
    {
        assert!(text.lines().any(|text| text.starts_with(line)), "{line}: {text}");
    }
    let report = [&BENCH[..], &["--report", "x.html"]].concat();
    check_refusal(moeflux(&report).current_dir(env!("CARGO_TARGET_TMPDIR")), 2, &["--report"]);
}

#[test]
fn bench_times_every_product_of_the_model() {
    if !has_gpu() {
        return;
    }
    let args = ["bench", "--device", "gpu", "--prompt-tokens", "70", "--kernels", "--json"];
    let (text, _) = finish(&mut moeflux(&args));
    let all: Value = serde_json::from_str(&text).unwrap();
    check_positive(&all["device"], &LIMITS);
    let kernels = all["kernels"].as_array().unwrap();
    for kernel in kernels {
        check_positive(kernel, &["us", "gb_s", "copy_share", "tflop_s", "layers"]);
        // The kernel for many rows has a layout of its own.
        let has_layout = kernel["rows"].as_u64().unwrap() <= 64;
        assert_eq!(kernel["layout"].is_string(), has_layout, "{kernel}");
    }
    let with = |rows: u64, is_routed: bool| {
        let is_one = |value: &&Value| value["rows"] == rows && value["routed"] == is_routed;
        kernels.iter().filter(is_one).count()
    };
    // Gate and up together, and down; prompts group the rows of experts as they come.
    assert_eq!((with(1, true), with(70, true)), (2, 0));
    for rows in [1, 4, 8, 70] {
        assert!(with(rows, false) > 3, "{rows} rows");
    }
}
