//! Processors of folders and of keys of GGUF files.

use std::collections::BTreeMap;
use std::fs;

use moeflux_core::gguf::{Array, Value};
use moeflux_model::open_checkpoint;

use super::*;

const FAMILIES: [&str; 6] =
    ["gemma4", "glm4v_moe", "kimi_k25", "qwen3_5_moe", "qwen3_vl_moe", "qwen4_exp"];

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/towers").join(family)
}

/// The model in a folder, and its tower.
fn opened(folder: &Path) -> (Checkpoint, TowerFiles) {
    let checkpoint = open_checkpoint(folder).expect("a checkpoint");
    let tower = TowerFiles::find(&checkpoint).expect("a tower that fits").expect("a tower");
    (checkpoint, tower)
}

/// The processor of a copy of a family's folder with other files of processors.
fn with_files(family: &str, files: &[(&str, &str)]) -> Result<Processor, EngineError> {
    let copy = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(folder(family).join(name), copy.path().join(name)).expect("a copy");
    }
    for (name, text) in files {
        fs::write(copy.path().join(name), text).expect("a file");
    }
    let (checkpoint, tower) = opened(copy.path());
    processor_of(&checkpoint, &tower)
}

fn published(family: &str) -> (String, Processor) {
    let text = fs::read_to_string(folder(family).join(PROCESSORS[0])).expect("a file");
    let json = serde_json::from_str(&text).expect("JSON");
    (text, Processor::from_json(&json).expect("a processor"))
}

#[test]
fn folders_say_it_in_either_file() {
    for family in FAMILIES {
        let (text, want) = published(family);
        let (checkpoint, tower) = opened(&folder(family));
        assert_eq!(processor_of(&checkpoint, &tower).expect("a processor"), want, "{family}");
        let newer = format!("{{\"processor_class\": \"X\", \"image_processor\": {text}}}");
        let got = with_files(family, &[(PROCESSORS[1], &newer)]).expect("a processor");
        assert_eq!(got, want, "{family}");
        let both = with_files(family, &[(PROCESSORS[0], &text), (PROCESSORS[1], "{}")]);
        assert_eq!(both.expect("a processor"), want, "{family}");
    }
}

/// Folders of weights alone have the values of the family, with patches of the tower's size.
#[test]
fn folders_without_a_file_have_the_values_of_the_family() {
    for family in FAMILIES {
        let got = with_files(family, &[]).expect("a processor");
        let (_, want) = published(family);
        let (got, want) = (got.parameters(), want.parameters());
        assert_eq!(got.patch_size, want.patch_size, "{family}");
        assert_eq!(got.order, want.order, "{family}");
        assert_eq!(got.levels, want.levels, "{family}");
    }
}

#[test]
fn files_of_other_models_are_refused() {
    for family in FAMILIES {
        for other in FAMILIES {
            let (text, processor) = published(other);
            let alike = published(family).1;
            let makes_the_same = processor.patch_values() == alike.patch_values()
                && processor.parameters().order == alike.parameters().order
                && processor.parameters().merge_size == alike.parameters().merge_size;
            match with_files(family, &[(PROCESSORS[0], &text)]) {
                Ok(_) => assert!(makes_the_same, "{other} for {family}"),
                Err(err) => {
                    let line = err.to_string();
                    assert!(!makes_the_same && line.contains(PROCESSORS[0]), "{line}");
                    assert!(line.ends_with("fetch the files of the model again"), "{line}");
                }
            }
        }
    }
}

#[test]
fn files_that_cannot_be_are_named() {
    for text in ["", "{", "[]", "{\"image_processor_type\": \"Other\"}", "{\"image_processor\": 3}"]
    {
        let err = with_files("gemma4", &[(PROCESSORS[0], text)]).expect_err("refused").to_string();
        assert!(err.contains(PROCESSORS[0]) && err.lines().count() == 1, "{text}: {err}");
    }
}

fn floats(all: [f32; 3]) -> Value {
    Value::Array(Array::Floats(all.map(f64::from).to_vec()))
}

/// The keys that llama.cpp's converter writes for a processor.
fn keys(parameters: &Parameters) -> BTreeMap<String, Value> {
    let mut keys = BTreeMap::new();
    let mut put = |key: &str, value: Value| keys.insert(format!("clip.vision.{key}"), value);
    put("patch_size", parameters.patch_size.into());
    let (mean, deviation) = match parameters.levels {
        Levels::Standardised { mean, deviation } => (mean, deviation),
        Levels::Unit => ([0.0; 3], [1.0; 3]),
    };
    put("image_mean", floats(mean));
    put("image_std", floats(deviation));
    match parameters.rule {
        SizeRule::Area { min_pixels, max_pixels, .. } => {
            put("image_min_pixels", min_pixels.into());
            put("image_max_pixels", max_pixels.into());
        }
        SizeRule::PatchLimit { max_patches, .. } => {
            let of_patch = parameters.patch_size * parameters.patch_size;
            put("image_min_pixels", (8 * of_patch).into());
            put("image_max_pixels", (max_patches * of_patch).into());
        }
        _ => {}
    }
    keys
}

fn of_keys(family: &str, keys: BTreeMap<String, Value>) -> Result<Processor, EngineError> {
    let (_, tower) = opened(&folder(family));
    let (usual, path) = (usual(&tower), Path::new("mmproj.gguf"));
    let parameters = of_mmproj(&Metadata::new(path, keys), &usual, &tower)?;
    checked(path, Processor::new(parameters), &usual, &tower)
}

#[test]
fn keys_of_gguf_files_say_the_same() {
    for family in FAMILIES {
        let (_, want) = published(family);
        let mut got = of_keys(family, keys(want.parameters())).expect("a processor");
        let mut want = want.parameters().clone();
        // Files have no key for these two: the family's values stand.
        match &mut want.rule {
            SizeRule::PatchLimit { max_side_patches, .. } => *max_side_patches = 512,
            SizeRule::TokenBudget { tokens } => *tokens = 280,
            _ => {}
        }
        got = got.with_max_tokens(None);
        assert_eq!(got.parameters(), &want, "{family}");
        let without = of_keys(family, BTreeMap::new()).expect("the family's values");
        assert_eq!(without.parameters().order, want.order, "{family}");
    }
}

#[test]
fn keys_that_cannot_be_end_in_a_line() {
    let absurd = [
        Value::Integer(0),
        Value::Integer(-1),
        Value::Integer(i128::MAX),
        Value::Float(f64::NAN),
        Value::Text("x".to_owned()),
        Value::Array(Array::Floats(vec![1.0, 2.0])),
        floats([f32::INFINITY; 3]),
    ];
    for family in FAMILIES {
        let (_, published) = published(family);
        let good = keys(published.parameters());
        let mut n_refused = 0;
        for key in good.keys() {
            for value in &absurd {
                let mut changed = good.clone();
                changed.insert(key.clone(), value.clone());
                if let Err(err) = of_keys(family, changed) {
                    n_refused += 1;
                    let line = err.to_string();
                    assert!(
                        line.starts_with("mmproj.gguf: ") && line.lines().count() == 1,
                        "{line}"
                    );
                }
            }
        }
        assert!(n_refused >= 6, "{family}: {n_refused}");
    }
}
