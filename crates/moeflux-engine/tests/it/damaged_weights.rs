//! NaN and infinities in weights: refused at load by the name of the tensor, or by the logits
//! where experts stream.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Golden, golden_dir};
use moeflux_engine::{Engine, EngineError, EngineOptions, Speculation};
use serde_json::Value;

/// A family and a format each, between them every kind of tensor.
const CASES: [&str; 12] = [
    "deepseek_v3-fp8",
    "deepseek_v3-mlx-q4",
    "glm4_moe-hf",
    "glm_moe_dsa-hf",
    "gpt_oss-hf",
    "gpt_oss-mxfp4",
    "hf-bf16",
    "hf-f16",
    "mixtral-mlx-q4",
    "mlx-q4",
    "qwen3_moe-mlx-mxfp8",
    "qwen3_next-hf",
];

/// A tensor in a file.
struct Place {
    file: PathBuf,
    name: String,
    dtype: String,
    offset: usize,
    len: usize,
}

/// A copy of a case whose files may be damaged.
struct Model {
    dir: tempfile::TempDir,
    tensors: Vec<Place>,
}

impl Model {
    fn of(case: &str) -> Model {
        let dir = tempfile::tempdir().unwrap();
        let mut tensors = Vec::new();
        for entry in fs::read_dir(golden_dir().join(case)).unwrap() {
            let (from, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
            let file = dir.path().join(&name);
            fs::copy(&from, &file).unwrap();
            let name = name.to_string_lossy();
            if name.ends_with(".safetensors") && !name.starts_with("expected") {
                tensors.extend(places(&file));
            }
        }
        Model { dir, tensors }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Whether a run without drafts leaves a tensor aside: vision towers, multi-token prediction.
    fn is_unused(&self, name: &str) -> bool {
        let config = fs::read(self.path().join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let n_layers = [&config, &config["text_config"]]
            .into_iter()
            .find_map(|config| config["num_hidden_layers"].as_u64())
            .unwrap();
        let layer =
            name.split_once("layers.").and_then(|parts| parts.1.split('.').next()?.parse().ok());
        let is_past_the_last = layer.is_some_and(|layer: u64| layer >= n_layers);
        is_past_the_last || ["visual", "mtp", "inv_freq"].iter().any(|part| name.contains(part))
    }
}

fn places(file: &Path) -> Vec<Place> {
    let bytes = fs::read(file).unwrap();
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let place = |(name, facts): (&String, &Value)| {
        let [from, to] = [0, 1].map(|i| facts["data_offsets"][i].as_u64().unwrap() as usize);
        let dtype = facts["dtype"].as_str().unwrap().to_owned();
        Place { file: file.into(), name: name.clone(), dtype, offset: start + from, len: to - from }
    };
    tensors.map(place).collect()
}

/// The code of a NaN, or an infinity, in an encoding that has one.
fn odd_code(place: &Place, is_nan: bool) -> Option<Vec<u8>> {
    let is_scale = place.name.ends_with("scales");
    Some(match (place.dtype.as_str(), is_nan) {
        ("F32", true) => f32::NAN.to_le_bytes().to_vec(),
        ("F32", false) => f32::NEG_INFINITY.to_le_bytes().to_vec(),
        ("BF16", true) => vec![0xc0, 0x7f],
        ("BF16", false) => vec![0x80, 0x7f],
        ("F16", true) => vec![0x00, 0x7e],
        ("F16", false) => vec![0x00, 0xfc],
        ("F8_E4M3", true) => vec![0xff],
        ("U8", true) if is_scale => vec![0xff],
        _ => return None,
    })
}

/// Kinds of tensors: names without numbers.
fn kind(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

fn is_expert(name: &str) -> bool {
    name.contains("switch_mlp") || name.contains(".experts.") && !name.contains("bias")
}

fn options() -> EngineOptions {
    EngineOptions::default().threads(Some(1)).speculation(Speculation::Off)
}

/// The logits of a whole sequence, or why there are none.
fn logits(model: &Path, golden: &Golden) -> Result<Vec<f32>, EngineError> {
    let engine = Engine::open(model, &options())?;
    let mut all = Vec::new();
    let mut sink = |_, logits: &[f32]| {
        all.extend_from_slice(logits);
        Ok(())
    };
    engine.session().eval_all(&golden.sequences[0].tokens, &mut sink)?;
    Ok(all)
}

/// Overwrites bytes of a file while `look` looks.
fn with_bytes<T>(
    place: &Place,
    code: &[u8],
    range: std::ops::Range<usize>,
    look: impl FnOnce() -> T,
) -> T {
    let good = fs::read(&place.file).unwrap();
    let mut bad = good.clone();
    for chunk in bad[place.offset..][range].chunks_exact_mut(code.len()) {
        chunk.copy_from_slice(code);
    }
    fs::write(&place.file, bad).unwrap();
    let seen = look();
    fs::write(&place.file, good).unwrap();
    seen
}

#[test]
fn one_odd_element_of_a_resident_tensor_is_refused_by_its_name() {
    let mut n_refused = 0;
    for case in CASES {
        let (model, golden) = (Model::of(case), Golden::read(&golden_dir().join(case)));
        let good = logits(model.path(), &golden).unwrap();
        let mut seen = BTreeSet::new();
        for (i, place) in model.tensors.iter().enumerate() {
            if is_expert(&place.name) || !seen.insert(kind(&place.name)) {
                continue;
            }
            let Some(code) = odd_code(place, i % 2 == 0).or_else(|| odd_code(place, true)) else {
                continue;
            };
            let n_elements = place.len / code.len();
            let element = i * 7 % n_elements;
            let at = element * code.len();
            let outcome =
                with_bytes(place, &code, at..at + code.len(), || logits(model.path(), &golden));
            match outcome {
                Err(err) => {
                    let (text, name) = (err.to_string(), &place.name);
                    let file = place.file.file_name().unwrap().to_str().unwrap();
                    assert!(
                        text.contains(&format!("element {element} of tensor {name} ")),
                        "{case}: {text}"
                    );
                    assert!(text.contains(file), "{case}: {text}");
                    n_refused += 1;
                }
                Ok(logits) => {
                    let is_unused = model.is_unused(&place.name);
                    assert!(is_unused && logits == good, "{case}: {} was not refused", place.name);
                }
            }
        }
    }
    assert!(n_refused > 150, "{n_refused} tensors were refused");
}

#[test]
fn odd_elements_of_experts_are_refused_by_the_logits() {
    let mut n_refused = 0;
    for case in CASES {
        let (model, golden) = (Model::of(case), Golden::read(&golden_dir().join(case)));
        let good = logits(model.path(), &golden).unwrap();
        let mut seen = BTreeSet::new();
        for place in &model.tensors {
            let Some(code) = odd_code(place, true).filter(|_| is_expert(&place.name)) else {
                continue;
            };
            if !seen.insert(kind(&place.name)) {
                continue;
            }
            // All experts of the layer where one tensor has them, else this one alone.
            let outcome = with_bytes(place, &code, 0..place.len, || logits(model.path(), &golden));
            match outcome {
                Err(EngineError::NotFinite { what, value }) => {
                    assert!(what.starts_with("the logit of token "), "{case}: {what}");
                    assert!(what.contains(" at position ") && value.is_nan(), "{case}: {what}");
                    n_refused += 1;
                }
                Err(err) => panic!("{case}: {}: {err}", place.name),
                Ok(logits) => {
                    // One expert of many may be one that no token chose.
                    let is_one = place.name.contains(".experts.0.");
                    let is_unused = model.is_unused(&place.name) || is_one;
                    assert!(is_unused && logits == good, "{case}: {}", place.name);
                }
            }
        }
    }
    assert!(n_refused > 15, "{n_refused} tensors were refused");
}
