//! Unusual configs, read as transformers reads them (`tools/golden/make_configs.py`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use moeflux_engine::{Activations, Engine, EngineOptions, TokenId};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Variation {
    case: String,
    set: BTreeMap<String, Value>,
    drop: Vec<String>,
}

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn words(view: &TensorView<'_>) -> Vec<[u8; 4]> {
    view.data().as_chunks::<4>().0.to_vec()
}

/// The first sequence of a case.
fn tokens(case: &str) -> Vec<TokenId> {
    let bytes = fs::read(golden_dir().join(case).join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let ids = words(&tensors.tensor("tokens.0").unwrap());
    ids.into_iter().map(|id| TokenId(u32::from_le_bytes(id))).collect()
}

/// A copy of a golden checkpoint with another config.
fn varied(variation: &Variation) -> tempfile::TempDir {
    let (from, to) = (golden_dir().join(&variation.case), tempfile::tempdir().unwrap());
    for entry in fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = to.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let keys = config.as_object_mut().unwrap();
    keys.extend(variation.set.clone());
    keys.retain(|key, _| !variation.drop.contains(key));
    fs::write(&path, config.to_string()).unwrap();
    to
}

fn exact(dir: &Path) -> Engine {
    let options = EngineOptions::default().activations(Activations::Full);
    Engine::open(dir, &options).unwrap()
}

#[test]
fn unusual_configs_give_the_logits_of_the_reference() {
    let dir = golden_dir();
    let list = fs::read(dir.join("configs.json")).unwrap();
    let variations: Vec<Variation> = serde_json::from_slice(&list).unwrap();
    let expected = fs::read(dir.join("configs.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    assert_eq!(variations.len(), expected.len());
    for (i, variation) in variations.iter().enumerate() {
        let name = format!("{} {:?} without {:?}", variation.case, variation.set, variation.drop);
        let want = words(&expected.tensor(&i.to_string()).unwrap());
        let want: Vec<f32> = want.into_iter().map(f32::from_le_bytes).collect();
        let copy = varied(variation);
        let engine = exact(copy.path());
        let mut all = Vec::new();
        let mut sink = |_, logits: &[f32]| {
            all.extend_from_slice(logits);
            Ok(())
        };
        engine.session().eval_all(&tokens(&variation.case), &mut sink).unwrap();
        let got = &all[all.len() - want.len()..];
        let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
        assert!(worst <= 2e-3, "{name}: {worst}");
    }
}
