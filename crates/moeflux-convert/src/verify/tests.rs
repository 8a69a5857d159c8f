//! Damage in files of every format, and intact files.

use std::collections::BTreeMap;
use std::fs;

use moeflux_core::{SplitMix64, hex};
use sha1::{Digest, Sha1};
use sha2::Sha256;

use super::*;
use crate::pack::PackOptions;

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-engine/tests/golden").join(case)
}

fn run(path: &Path) -> Verification {
    verify(path, &mut |_| {}).unwrap()
}

fn packed(case: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("packed");
    crate::pack_checkpoint(&golden(case), &dst, &PackOptions::default(), &mut |_| {}).unwrap();
    dir
}

/// Every file below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Places of a file, the first and the last byte among them.
fn places(n_bytes: usize) -> impl Iterator<Item = usize> {
    (0..12u64).map(move |i| match i {
        0 => 0,
        1 => n_bytes - 1,
        _ => SplitMix64::new(i).below(n_bytes),
    })
}

#[test]
fn a_flipped_bit_anywhere_in_a_container_is_found() {
    for case in ["mlx-q4", "hf-bf16"] {
        let dir = packed(case);
        let root = dir.path().join("packed");
        assert_eq!(run(&root).damage, []);
        for file in files(&root).iter().filter(|file| !file.ends_with("moeflux.json")) {
            let good = fs::read(file).unwrap();
            for at in places(good.len()) {
                let mut bad = good.clone();
                bad[at] ^= 1 << (at % 8);
                fs::write(file, &bad).unwrap();
                let damage = run(&root).damage;
                assert!(
                    damage.iter().any(|part| part.file == *file),
                    "{}: {damage:?}",
                    file.display()
                );
            }
            fs::write(file, &good).unwrap();
        }
    }
}

#[test]
fn the_damaged_expert_and_the_damaged_tensor_are_named_and_all_files_are_looked_at() {
    let dir = packed("mlx-q4");
    let root = dir.path().join("packed");
    let flip = |name: &str, at: usize| {
        let mut bytes = fs::read(root.join(name)).unwrap();
        bytes[at] ^= 4;
        fs::write(root.join(name), bytes).unwrap();
    };
    let container = Container::read(&root.join(Container::FILE)).unwrap();
    let (layer, packed) = container
        .layers
        .iter()
        .enumerate()
        .find_map(|(i, layer)| Some((i, layer.as_ref()?)))
        .unwrap();
    flip(&packed.file, packed.stride_bytes as usize + 3);
    let n_bytes = container.file(Container::RESIDENT).unwrap().bytes as usize;
    flip(Container::RESIDENT, n_bytes - 1);
    fs::remove_file(root.join("config.json")).unwrap();
    let parts: BTreeMap<_, _> =
        run(&root).damage.into_iter().map(|part| (part.file, part.part)).collect();
    let expert = Some(format!("expert 1 of layer {layer}"));
    assert_eq!(parts[&root.join(&packed.file)], expert);
    assert!(parts[&root.join(Container::RESIDENT)].as_ref().unwrap().starts_with("tensor "));
    assert_eq!(parts[&root.join("config.json")], None);
    assert_eq!(parts.len(), 3);
}

/// Every format that opens: tensors that are computed have no file of their own.
#[test]
fn intact_models_of_every_format_verify() {
    let cases = fs::read_dir(golden(".")).unwrap().map(|entry| entry.unwrap().path());
    let cases: Vec<PathBuf> = cases.filter(|path| open_checkpoint(path).is_ok()).collect();
    assert!(cases.len() > 60, "{}", cases.len());
    for case in cases {
        let found = run(&case);
        assert_eq!(found.damage, [], "{}", case.display());
        assert!(found.n_files > 0 && found.n_bytes > 0, "{found:?}");
    }
}

#[test]
fn containers_without_sums_of_their_parts_open_and_verify() {
    let dir = packed("mlx-q4");
    let root = dir.path().join("packed");
    let path = root.join(Container::FILE);
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    value.as_object_mut().unwrap().remove("resident_xxh3_64").unwrap();
    for layer in value["layers"].as_array_mut().unwrap() {
        layer.as_object_mut().and_then(|object| object.remove("record_xxh3_64")).unwrap();
    }
    fs::write(&path, value.to_string()).unwrap();
    assert_eq!(run(&root).damage, []);
    let file = root.join(&Container::read(&path).unwrap().layers[0].as_ref().unwrap().file);
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::write(&file, bytes).unwrap();
    let damage = run(&root).damage;
    assert!(damage.len() == 1 && damage[0].file == file && damage[0].part.is_none(), "{damage:?}");
}

#[test]
fn safetensors_say_that_they_have_no_checksums_and_are_searched_for_odd_numbers() {
    let dir = tempfile::tempdir().unwrap();
    for file in files(&golden("hf-bf16")) {
        fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    let found = run(dir.path());
    assert_eq!(found.damage, []);
    assert!(found.checked.iter().any(|line| line.contains("safetensors have none")), "{found:?}");
    let opened = open_checkpoint(dir.path()).unwrap();
    let tensors = opened.tensors().iter();
    let expert = tensors.clone().find(|(name, _)| name.contains(".experts.down_proj")).unwrap().1;
    let norm = tensors.clone().find(|(name, _)| name.ends_with("norm.weight")).unwrap().1;
    for tensor in [expert, norm] {
        let file = &opened.files()[tensor.extent.file.0 as usize].path;
        let mut bytes = fs::read(file).unwrap();
        bytes[tensor.extent.offset as usize..][..2].copy_from_slice(&[0x80, 0xff]);
        fs::write(file, bytes).unwrap();
    }
    let found = run(dir.path());
    let parts: Vec<_> = found.damage.iter().flat_map(|part| part.part.clone()).collect();
    for tensor in [expert, norm] {
        assert!(parts.contains(&format!("tensor {}", tensor.stored_name)), "{parts:?}");
    }
    assert_eq!(found.damage.len(), 2, "{found:?}");
}

#[cfg(unix)]
#[test]
fn files_of_the_hubs_cache_are_compared_with_the_hashes_that_name_them() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (dir.path().join("blobs"), dir.path().join("snapshots/abc"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for file in files(&golden("mlx-q4")) {
        let (bytes, name) = (fs::read(&file).unwrap(), file.file_name().unwrap());
        let hash = if file.extension().is_some_and(|extension| extension == "safetensors") {
            hex(&Sha256::digest(&bytes))
        } else {
            let mut git = Sha1::new();
            git.update(format!("blob {}\0", bytes.len()));
            git.update(&bytes);
            hex(&git.finalize())
        };
        fs::write(blobs.join(&hash), bytes).unwrap();
        let target = format!("../../blobs/{hash}");
        std::os::unix::fs::symlink(target, snapshot.join(name)).unwrap();
    }
    let found = run(&snapshot);
    assert_eq!(found.damage, []);
    assert!(found.checked[0].contains("SHA-256"), "{found:?}");
    for file in files(&snapshot) {
        let good = fs::read(&file).unwrap();
        for at in places(good.len()).take(4) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            fs::write(&file, bad).unwrap();
            let damage = run(&snapshot).damage;
            assert!(damage.iter().any(|part| part.file == file), "{}: {damage:?}", file.display());
        }
        fs::write(&file, &good).unwrap();
    }
    fs::write(snapshot.join("notes.txt"), "").unwrap();
    let n_files = files(&snapshot).len();
    let partly = format!("{} of {n_files} files", n_files - 1);
    assert!(run(&snapshot).checked[0].starts_with(&partly), "a file without a hash was counted");
    fs::remove_file(fs::canonicalize(snapshot.join("config.json")).unwrap()).unwrap();
    let damage = run(&snapshot).damage;
    assert!(damage.iter().any(|part| part.file == snapshot.join("config.json")), "{damage:?}");
}

/// Writes a checkpoint whose experts are stacked as the original system prepares it.
fn prepare(case: &str, dir: &Path) {
    let checkpoint = open_checkpoint(&golden(case)).unwrap();
    let config = fs::read(golden(case).join("config.json")).unwrap();
    let (mut bin, mut index) = (Vec::new(), serde_json::Map::new());
    let mut layers: BTreeMap<String, BTreeMap<String, (usize, Vec<u8>)>> = BTreeMap::new();
    for tensor in checkpoint.tensors().values() {
        let file = &checkpoint.files()[tensor.extent.file.0 as usize].path;
        let bytes = fs::read(file).unwrap();
        let bytes = &bytes[tensor.extent.offset as usize..][..tensor.extent.len];
        let name = &tensor.stored_name;
        if let Some((layer, part)) = name.split_once(".mlp.switch_mlp.") {
            let layer = layer.rsplit('.').next().unwrap().to_owned();
            let of_layer = layers.entry(layer).or_default();
            of_layer.insert(part.to_owned(), (tensor.shape[0], bytes.to_vec()));
            continue;
        }
        let mut entry = serde_json::json!({"offset": bin.len(), "size": bytes.len(),
            "shape": tensor.shape, "dtype": tensor.dtype.name()});
        if tensor.dtype.name() == "U32" {
            entry["bits"] = 4.into();
        }
        index.insert(name.clone(), entry);
        bin.extend(bytes);
    }
    fs::write(dir.join("model_weights.bin"), bin).unwrap();
    let index = serde_json::json!({"tensors": index});
    fs::write(dir.join("model_weights.json"), index.to_string()).unwrap();
    fs::write(dir.join("config.json"), config).unwrap();
    fs::create_dir(dir.join("packed_experts")).unwrap();
    for (layer, parts) in layers {
        let n_experts = parts["gate_proj.weight"].0;
        let mut records = Vec::new();
        for expert in 0..n_experts {
            for part in ["gate_proj", "up_proj", "down_proj"] {
                for kind in ["weight", "scales", "biases"] {
                    let all = &parts[&format!("{part}.{kind}")].1;
                    let len = all.len() / n_experts;
                    records.extend(&all[expert * len..][..len]);
                }
            }
        }
        let number: usize = layer.parse().unwrap();
        fs::write(dir.join(format!("packed_experts/layer_{number:02}.bin")), records).unwrap();
    }
}

#[test]
fn prepared_directories_are_read_whole_and_every_damage_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    prepare("deepseek_v3-mlx-joined", dir.path());
    let found = run(dir.path());
    assert_eq!(found.damage, []);
    let layers = files(&dir.path().join("packed_experts"));
    assert_eq!(found.n_files, 1 + layers.len(), "{found:?}");
    let resident = dir.path().join("model_weights.bin");
    let all = layers.iter().chain([&resident]);
    let n_bytes: u64 = all.map(|file| fs::metadata(file).unwrap().len()).sum();
    assert_eq!(found.n_bytes, n_bytes, "{found:?}");
    assert!(found.checked.iter().any(|line| line.contains("prepared directories have none")));

    // The first expert's scales follow its codes; all bits set are no number.
    let layer = &layers[0];
    let good = fs::read(layer).unwrap();
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join("config.json")).unwrap()).unwrap();
    let of = |key: &str| config[key].as_u64().unwrap() as usize;
    let codes = of("moe_intermediate_size") * of("hidden_size") / 2;
    let mut bad = good.clone();
    bad[codes..codes + 2].copy_from_slice(&[0xff, 0xff]);
    fs::write(layer, bad).unwrap();
    let damage = run(dir.path()).damage;
    assert!(damage.len() == 1 && damage[0].file == *layer, "{damage:?}");
    assert!(damage[0].part.as_ref().unwrap().starts_with("expert 0 of layer "), "{damage:?}");

    fs::remove_file(layer).unwrap();
    let found = run(dir.path());
    assert!(found.damage.len() == 1 && found.damage[0].file == *layer, "{found:?}");
    assert_eq!((found.n_files, found.n_bytes), (layers.len(), n_bytes - good.len() as u64));

    fs::write(layer, &good[..good.len() - 1]).unwrap();
    let err = verify(dir.path(), &mut |_| {}).unwrap_err().to_string();
    assert!(err.contains("packed_experts") && err.contains("bytes"), "{err}");
}
