//! The forecast of `plan` against what `bench` measures, with slack for machines that are busy with
//! other tests: a mistake in a unit or in a count of bytes is larger. `tools/memory/forecast.sh`
//! compares them on a machine of its own.

#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use crate::common::succeeds;
use serde_json::Value;

/// How far they may be apart.
const FACTOR: f64 = 4.0;

/// Something else may begin or end between the two.
const N_TRIES: usize = 4;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&succeeds(args).0).unwrap()
}

#[test]
fn the_forecast_is_near_what_is_measured() {
    // Next to the binary, which a folder for temporary files in memory would not measure.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = dir.path().join("model");
    let model = model.to_str().unwrap();
    // One layer: 256 experts of 1.7 MB, of which a token takes eight.
    let shape = ["--shape", "mid", "--layers", "1", "--format", "packed"];
    succeeds(&[&["synth"], &shape[..], &["--out", model]].concat());
    for cache in [&[][..], &["--expert-cache", "150MiB"]] {
        let on_cpu = ["--device", "cpu", "--model", model, "--ctx", "512", "--json"];
        let of_model = [&on_cpu, cache].concat();
        let mut seen = Vec::new();
        let is_near = (0..N_TRIES).any(|_| {
            let plan = json(&[&["plan"], &of_model[..]].concat());
            let flags = ["--prompt-tokens", "16", "--gen-tokens", "32", "--repeat", "1"];
            let bench = json(&[&["bench"], &flags[..], &of_model].concat());
            let Some(forecast) = plan["tok_s_streamed"].as_f64() else {
                // A file system without direct reads, or little memory: there is no forecast.
                println!("SKIP: {}", plan["verdict"]);
                return true;
            };
            let measured = bench["decode_tok_s"].as_f64().unwrap();
            seen.push((forecast, measured));
            (forecast / measured).max(measured / forecast) < FACTOR
        });
        assert!(is_near, "{cache:?}: forecast and measured tok/s are {seen:?}");
    }
}
