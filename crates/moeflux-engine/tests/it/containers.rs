//! Which family runs from which container, as tests of logits show it: the table of `docs/models.md` is made
//! from the cases of these tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use moeflux_core::checkpoint::{CheckpointKind, Config};
use moeflux_core::gguf::read_metadata;
use moeflux_model::{FAMILIES, Family, open_checkpoint};
use serde_json::Value;

use crate::common::{folders_of, golden_dir};
use crate::page::check_page;
use crate::{converted, wrapped};

const MARK: &str = "containers::";

/// What the cases of a family have.
#[derive(Default)]
struct Found {
    has_safetensors: bool,
    has_mlx: bool,
    /// Architectures of GGUF files.
    gguf: BTreeSet<String>,
}

fn architecture(model: &Path) -> String {
    let metadata = read_metadata(model).unwrap();
    metadata.text("general.architecture").unwrap().unwrap().to_owned()
}

/// The family of a golden case.
fn family_of(golden: &str) -> &'static Family {
    let checkpoint = open_checkpoint(&golden_dir().join(golden)).unwrap();
    Family::of(checkpoint.config()).unwrap()
}

fn is_mlx(config: &Config) -> bool {
    let declared = config.value().get("quantization");
    declared.is_some_and(|keys| keys.get("group_size").is_some() || keys.get("mode").is_some())
}

/// What golden cases and cases of converted checkpoints have, by family.
fn found() -> BTreeMap<&'static str, Found> {
    let mut all: BTreeMap<&'static str, Found> = BTreeMap::new();
    for folder in folders_of(&golden_dir()) {
        let checkpoint = open_checkpoint(&folder).unwrap();
        let family = Family::of(checkpoint.config()).unwrap();
        let found = all.entry(family.name).or_default();
        match checkpoint.kind() {
            CheckpointKind::Gguf => {
                found.gguf.insert(architecture(&folder.join("model.gguf")));
            }
            CheckpointKind::Safetensors if is_mlx(checkpoint.config()) => found.has_mlx = true,
            _ => found.has_safetensors = true,
        }
    }
    for case in converted::CASES {
        let found = all.entry(family_of(case.golden).name).or_default();
        found.gguf.insert(case.architecture.to_owned());
    }
    all
}

fn row(name: &str, found: &Found, has_shape: bool) -> String {
    let mark = |is_there| if is_there { "logits" } else { "" };
    let gguf: Vec<String> = found.gguf.iter().map(|name| format!("`{name}`")).collect();
    let mlx = if found.has_mlx {
        "logits"
    } else if has_shape {
        "opens"
    } else {
        ""
    };
    let safetensors = mark(found.has_safetensors);
    format!("| {name} | {safetensors} | {safetensors} | {} | {mlx} |\n", gguf.join(", "))
}

#[test]
fn every_family_runs_from_safetensors_and_from_gguf() {
    let all = found();
    for family in FAMILIES {
        let found = all.get(family.name).unwrap_or_else(|| panic!("{}", family.name));
        assert!(found.has_safetensors, "{} has no golden case of safetensors", family.name);
        assert!(!found.gguf.is_empty(), "{} has no case of GGUF", family.name);
        // A family that names an architecture has a case of it.
        if let Some(architecture) = family.gguf {
            assert!(found.gguf.contains(architecture.name), "{}", architecture.name);
        }
    }
}

#[test]
fn the_page_of_models_has_the_containers_of_every_family() {
    let mut made =
        String::from("\n| family | safetensors | packed | GGUF | MLX |\n|---|---|---|---|---|\n");
    let all = found();
    for family in FAMILIES {
        let has_shape = !family.shapes.is_empty();
        made.push_str(&row(&format!("`{}`", family.name), &all[family.name], has_shape));
    }
    // The same family in several wrappers has one row for each.
    let mut seen = BTreeSet::new();
    for case in wrapped::CASES {
        let family = family_of(case.golden);
        if !seen.insert((case.model_type, family.name)) {
            continue;
        }
        let (name, gguf) = (case.model_type, &all[family.name].gguf);
        let gguf: Vec<String> = gguf.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(
            made,
            "| `{name}`, read as `{}` | logits | logits | {} | opens |",
            family.name,
            gguf.join(", ")
        );
    }
    made.push('\n');
    check_page(MARK, &made);
}

/// MLX's block of a config, and no published one.
#[test]
fn checkpoints_of_mlx_are_told_by_their_config() {
    let config = |root: Value| Config::from_value(Path::new("config.json"), root).unwrap();
    assert!(is_mlx(&config(serde_json::json!({"quantization": {"group_size": 64, "bits": 4}}))));
    assert!(!is_mlx(&config(serde_json::json!({"quantization_config": {"quant_method": "fp8"}}))));
}
