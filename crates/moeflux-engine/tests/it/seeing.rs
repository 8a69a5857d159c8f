//! Models that see, as files: packed containers keep their towers and processors, `inspect` shows them and
//! `verify` reads them; the same with the tower in a GGUF file of its own.

use std::fs;
use std::path::Path;

use moeflux_backend::ActivationPrecision;
use moeflux_backend::cpu::{Cpu, Isa};
use moeflux_convert::pack::{PackOptions, verify};
use moeflux_convert::pack_checkpoint;
use moeflux_core::ShapedPart;
use moeflux_core::checkpoint::Container;
use moeflux_engine::{EngineOptions, inspect};
use moeflux_model::{Declared, Seen, TowerFiles, WithMtp, open_checkpoint};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};

use crate::mmproj::file::{Matrices, mmproj};
use crate::towers::{Run, dir, look_at_all};

/// Families whose text has no tables of rows.
const FAMILIES: [&str; 5] = ["gemma4", "glm4v_moe", "kimi_k25", "qwen3_5_moe", "qwen3_vl_moe"];

/// Writes a folder with the tower of a family, if asked for, and a text of zeros.
fn write_model(family: &str, has_tower: bool, to: &Path) {
    let from = dir().join(family);
    for name in ["config.json", "preprocessor_config.json"] {
        fs::copy(from.join(name), to.join(name)).expect("a copy");
    }
    let bytes = fs::read(from.join("model.safetensors")).expect("weights");
    let tower = SafeTensors::deserialize(&bytes).expect("tensors");
    let config = fs::read(from.join("config.json")).expect("a config");
    let config = moeflux_core::checkpoint::Config::from_slice(&from, &config).expect("a config");
    let declared = Declared::of_config(&config, WithMtp::Never).expect("a family");
    let mut shapes: Vec<(String, Vec<usize>)> = Vec::new();
    for decl in &declared.manifest.matrices {
        shapes.push((format!("{}.weight", decl.name), vec![decl.rows, decl.cols]));
    }
    for decl in &declared.manifest.vectors {
        shapes.push((decl.name.clone(), decl.shapes[0].clone()));
    }
    for decl in &declared.manifest.experts {
        let parts = decl.matrices.stacked_names().shaped(decl.hidden, decl.intermediate);
        for ShapedPart { part, rows, cols } in parts {
            let name = format!("{}.switch_mlp.{part}.weight", decl.prefix);
            shapes.push((name, vec![decl.n_experts, rows, cols]));
        }
    }
    shapes.sort();
    shapes.dedup();
    let zeros: Vec<Vec<u8>> =
        shapes.iter().map(|(_, shape)| vec![0; 2 * shape.iter().product::<usize>()]).collect();
    let text = shapes.iter().zip(&zeros).map(|((name, shape), bytes)| {
        let view = TensorView::new(Dtype::BF16, shape.clone(), bytes).expect("a tensor");
        (name.clone(), view)
    });
    let mut all: Vec<(String, TensorView<'_>)> = text.collect();
    if has_tower {
        all.extend(tower.tensors());
    }
    let bytes = serialize(all, None).expect("tensors");
    fs::write(to.join("model.safetensors"), bytes).expect("a file");
}

/// What the tower of a model makes of the pictures.
fn look(family: &str, model: &Path) -> Vec<Seen> {
    let checkpoint = open_checkpoint(model).expect("a checkpoint");
    let tower = TowerFiles::of_model(&checkpoint, None).expect("a tower that fits");
    let run = Run::of(64, ActivationPrecision::F32);
    look_at_all(family, &tower.expect("a tower"), &mut Cpu::new(2, Isa::detect()), run)
}

fn pack(source: &Path) -> tempfile::TempDir {
    let packed = tempfile::tempdir().expect("a folder");
    let options = PackOptions::unquantised();
    pack_checkpoint(source, packed.path(), &options, &mut |_| {}).expect("it packs");
    packed
}

#[test]
fn containers_keep_towers_and_processors() {
    for family in FAMILIES {
        let model = tempfile::tempdir().expect("a folder");
        write_model(family, true, model.path());
        let packed = pack(model.path());
        assert!(look(family, packed.path()) == look(family, model.path()), "{family}");
        assert!(packed.path().join("preprocessor_config.json").is_file(), "{family}");
        verify(packed.path(), &mut |_| {}).expect("whole");
        let [own, of_packed] = [model.path(), packed.path()].map(|path| {
            let facts = inspect(path, &EngineOptions::default()).expect("facts");
            facts.tower.expect("a tower")
        });
        assert_eq!(own.shape, of_packed.shape, "{family}");
        assert_eq!((own.pictures, own.n_tensors), (of_packed.pictures, of_packed.n_tensors));
        // Again, from the container itself.
        let again = pack(packed.path());
        assert!(look(family, again.path()) == look(family, model.path()), "{family}");
        // What was changed since is found, and no such tower is loaded.
        let path = packed.path().join(Container::TOWER);
        let mut bytes = fs::read(&path).expect("a file");
        let last = bytes.len() - 2;
        bytes[last] ^= 1;
        fs::write(&path, bytes).expect("a file");
        let err = verify(packed.path(), &mut |_| {}).expect_err("changed").to_string();
        assert!(err.contains(Container::TOWER), "{err}");
        let found = moeflux_convert::verify::verify(packed.path(), &mut |_| {}).expect("found");
        let part = found.damage[0].part.as_deref().expect("a tensor");
        assert!(part.starts_with("tensor vision_tower."), "{part}");
        let checkpoint = open_checkpoint(packed.path()).expect("a checkpoint");
        let tower = TowerFiles::find(&checkpoint).expect("a tower that fits").expect("a tower");
        let mut cpu = Cpu::new(1, Isa::detect());
        let inputs = ActivationPrecision::F32;
        let err = tower.load(&mut cpu, 16, inputs, &mut |_| {}).expect_err("changed").to_string();
        assert!(err.contains(Container::TOWER), "{err}");
    }
}

#[test]
fn weights_of_towers_that_are_no_numbers_are_found() {
    let model = tempfile::tempdir().expect("a folder");
    write_model("gemma4", true, model.path());
    let path = model.path().join("model.safetensors");
    let mut bytes = fs::read(&path).expect("a file");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize + 8;
    let found = moeflux_convert::verify::verify(model.path(), &mut |_| {}).expect("found");
    assert!(found.damage.is_empty(), "{:?}", found.damage);
    let (start, name) = {
        let all = SafeTensors::deserialize(&bytes).expect("tensors");
        let name = "model.vision_tower.encoder.layers.1.mlp.up_proj.linear.weight";
        let data = all.tensor(name).expect("a tensor").data().as_ptr() as usize;
        (data - bytes.as_ptr() as usize, name)
    };
    assert!(start >= header);
    bytes[start..start + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    fs::write(&path, bytes).expect("a file");
    let found = moeflux_convert::verify::verify(model.path(), &mut |_| {}).expect("found");
    let part = found.damage[0].part.as_deref().expect("a tensor");
    assert!(part.contains(name), "{part}");
}

/// Without a tower of its own a container gets the file of one that stands next to GGUF files.
#[test]
fn files_of_towers_are_shown_with_their_model() {
    let model = tempfile::tempdir().expect("a folder");
    write_model("qwen3_vl_moe", false, model.path());
    let facts = inspect(model.path(), &EngineOptions::default()).expect("facts");
    assert!(facts.tower.is_none());
    let path = model.path().join("tower.gguf");
    mmproj(&dir().join("qwen3_vl_moe"), Matrices::Bf16).write(&path);
    let options = EngineOptions::default().mmproj(path.clone());
    let facts = inspect(model.path(), &options).expect("facts");
    assert_eq!(facts.tower.expect("a tower").mmproj.as_ref(), Some(&path));
    assert!(facts.files.iter().any(|(file, _)| *file == path));
    let off = EngineOptions::default().mmproj(path).vision_off(true);
    assert!(inspect(model.path(), &off).expect("facts").tower.is_none());
    let missing = EngineOptions::default().mmproj(model.path().join("no.gguf"));
    let err = inspect(model.path(), &missing).expect_err("no file").to_string();
    assert!(err.contains("no.gguf"), "{err}");
}
