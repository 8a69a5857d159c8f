//! Models that see, as files: packed containers keep their towers and processors, `inspect` shows them and
//! `verify` reads them; the same with the tower in a GGUF file of its own.

use std::fs;
use std::path::Path;

use moeflux_backend::ActivationPrecision;
use moeflux_backend::cpu::{Cpu, Isa};
use moeflux_convert::pack::{PackOptions, verify};
use moeflux_convert::pack_checkpoint;
use moeflux_core::checkpoint::Container;
use moeflux_engine::{EngineOptions, inspect};
use moeflux_model::{Seen, TowerFiles, open_checkpoint};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};

use crate::mmproj::file::{Matrices, mmproj};
use crate::towers::{Run, dir, families, look_at_all};

/// Writes a copy of the model of a family, with its tower or without.
fn write_model(family: &str, has_tower: bool, to: &Path) {
    let from = dir().join(family);
    for entry in from.read_dir().expect("the folder") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("a copy");
    }
    let bytes = fs::read(from.join("model.safetensors")).expect("weights");
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors").tensors();
    let is_tower = |name: &str| {
        ["visual.", "vision_tower.", "embed_vision."].iter().any(|part| name.contains(part))
    };
    let kept = tensors.into_iter().filter(|(name, _)| has_tower || !is_tower(name));
    let bytes = serialize(kept, None).expect("tensors");
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
    for family in &families() {
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

/// MLX's names, and its convolutions, whose inputs come last.
#[test]
fn towers_of_mlx_are_the_same() {
    for family in &families() {
        let model = tempfile::tempdir().expect("a folder");
        write_model(family, true, model.path());
        let own = look(family, model.path());
        let path = model.path().join("model.safetensors");
        let bytes = fs::read(&path).expect("weights");
        let mut tensors: Vec<(String, Vec<usize>, Dtype, Vec<u8>)> = Vec::new();
        for (name, view) in SafeTensors::deserialize(&bytes).expect("tensors").tensors() {
            let (mut shape, mut data) = (view.shape().to_vec(), view.data().to_vec());
            let is_convolution = ["patch_embed.proj.weight", "downsample.weight"]
                .iter()
                .any(|end| name.ends_with(end));
            if is_convolution {
                data = inputs_last(&shape, &data);
                let inputs = shape.remove(1);
                shape.push(inputs);
            }
            tensors.push((mlx_name(&name), shape, view.dtype(), data));
        }
        let views = tensors.iter().map(|(name, shape, dtype, data)| {
            (name.clone(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
        });
        fs::write(&path, serialize(views, None).expect("tensors")).expect("a file");
        assert!(look(family, model.path()) == own, "{family}");
    }
}

fn mlx_name(name: &str) -> String {
    let tower = ["model.visual.", "visual.", "model.vision_tower.", "vision_tower."];
    if let Some(rest) = tower.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        // Of Kimi's towers alone.
        let rest = rest.replace("encoder.blocks.", "blocks.").replace(".wqkv.", ".attn.wqkv.");
        let rest = rest.replace("encoder.final_layernorm.", "final_layernorm.");
        return format!("vision_tower.{}", rest.replace(".wo.", ".attn.wo."));
    }
    name.strip_prefix("model.embed_vision.")
        .map_or_else(|| name.to_owned(), |rest| format!("embed_vision.{rest}"))
}

/// Elements of two bytes of `(outputs, inputs, ...)` as `(outputs, ..., inputs)`.
fn inputs_last(shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    let (inputs, places) = (shape[1], shape[2..].iter().product::<usize>());
    let mut out = Vec::with_capacity(bytes.len());
    for output in bytes.chunks(2 * inputs * places) {
        for place in 0..places {
            for input in 0..inputs {
                out.extend_from_slice(&output[2 * (input * places + place)..][..2]);
            }
        }
    }
    out
}
