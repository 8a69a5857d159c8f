//! Random damage to small checkpoints: opened or refused, never a panic.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use crate::common::{self, Copy, golden};
use moeflux_core::SplitMix64;
use moeflux_engine::{Engine, EngineOptions, TokenId, inspect};

/// Up to three changes among the first `len` bytes.
fn damage(random: &mut SplitMix64, bytes: &mut Vec<u8>, len: usize) {
    for _ in 0..=random.below(3) {
        let len = len.min(bytes.len()).max(1);
        let at = random.below(len).min(bytes.len().saturating_sub(1));
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..(at + 1 + random.below(9)).min(bytes.len()))),
            2 => bytes.insert(at, random.below(256) as u8),
            3 => bytes[at..].iter_mut().take(1).for_each(|byte| *byte = b'9'),
            4 => bytes[at..].iter_mut().take(1).for_each(|byte| *byte = b'-'),
            5 => bytes[at..].iter_mut().take(4).for_each(|byte| *byte = 0xff),
            _ => bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        }
    }
}

/// Opens a checkpoint and runs a token. Numbers may be nonsense, memory safety
/// and one error message are what is asked for.
fn open(dir: &Path) -> Result<(), String> {
    let options = EngineOptions::default().threads(Some(1)).ctx(None);
    let looked = inspect(dir, &options).map(drop).map_err(|err| err.to_string());
    let engine = Engine::open(dir, &options).map_err(|err| err.to_string())?;
    looked.map_err(|err| format!("opens, but does not inspect: {err}"))?;
    engine.session().eval_prompt(&[TokenId(0), TokenId(1)]).map_err(|err| err.to_string())?;
    Ok(())
}

#[track_caller]
fn survives(case: &Path, files: &[&str], n: usize) {
    let copy = Copy::of(case);
    let mut random = SplitMix64::new(case.as_os_str().len() as u64);
    let (mut n_opened, mut n_refused) = (0, 0);
    for i in 0..n {
        let file = files[i % files.len()];
        let good = fs::read(copy.file(file)).unwrap();
        let mut bad = good.clone();
        let header =
            if file.ends_with(".safetensors") { common::header(&good).0 } else { good.len() };
        damage(&mut random, &mut bad, header);
        fs::write(copy.file(file), &bad).unwrap();
        match catch_unwind(|| open(copy.path())) {
            Ok(Ok(())) => n_opened += 1,
            Ok(Err(text)) => {
                assert!(!text.is_empty() && !text.contains("panicked"), "{text}");
                assert!(!text.starts_with("opens, but"), "{file}, change {i}: {text}");
                n_refused += 1;
            }
            Err(_) => {
                let kept = std::env::temp_dir().join(format!("moeflux-mutation-{i}"));
                fs::write(&kept, &bad).unwrap();
                panic!("{} {file}, change {i}: kept as {}", case.display(), kept.display());
            }
        }
        fs::write(copy.file(file), &good).unwrap();
    }
    assert!(n_refused > n / 3, "{n_opened} of {n} opened");
}

#[test]
fn damaged_hugging_face_checkpoints_never_panic() {
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let text = ["config.json", "model.safetensors.index.json"];
    survives(&golden("hf-bf16"), &[&shards[..], &text].concat(), 120);
}

#[test]
fn damaged_mlx_checkpoints_never_panic() {
    survives(&golden("mlx-q4"), &["model.safetensors", "config.json"], 100);
    survives(&golden("mlx-q3"), &["model.safetensors", "config.json"], 40);
}

#[test]
fn damaged_containers_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("packed");
    let options = moeflux_convert::pack::PackOptions::default();
    moeflux_convert::pack_checkpoint(&golden("mlx-q4"), &packed, &options, &mut |_| {}).unwrap();
    survives(&packed, &["moeflux.json", "resident.safetensors", "moeflux.json"], 120);
}
