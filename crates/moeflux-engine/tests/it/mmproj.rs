//! Vision towers in GGUF files of their own (`mmproj`): they give the rows of the checkpoints that they are
//! made of, and files that cannot be end in one line.

pub(crate) mod file;

use std::collections::BTreeSet;
use std::path::Path;

use moeflux_backend::ActivationPrecision;
use moeflux_backend::cpu::{Cpu, Isa};
use moeflux_core::checkpoint::Checkpoint;
use moeflux_model::{LoadError, Seen, TowerFiles, open_checkpoint};

use crate::converted::writer::GgufWriter;
use crate::towers::{Run, dir, families, look_at_all};
use file::{Matrices, mmproj};

/// Largest difference of a float where matrices have eight bits; rows have a root mean square of about 1.
const MAX_DIFFERENCE_Q8: f32 = 0.2;

fn model(family: &str) -> Checkpoint {
    open_checkpoint(&dir().join(family)).expect("a checkpoint")
}

/// Writes a file and opens it for a model.
fn open(file: &GgufWriter, model: &Checkpoint) -> Result<TowerFiles, LoadError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mmproj.gguf");
    file.write(&path);
    let files = TowerFiles::open_mmproj(&path, model);
    if let Err(err) = &files {
        let text = err.to_string();
        assert!(text.lines().count() == 1 && text.contains("mmproj.gguf"), "{text}");
    }
    files
}

/// Looks at all pictures with a file's tower.
fn look(family: &str, file: &GgufWriter, max_difference: f32) -> Vec<Seen> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mmproj.gguf");
    file.write(&path);
    let files = TowerFiles::open_mmproj(&path, &model(family));
    let files = files.unwrap_or_else(|err| panic!("{family}: {err}"));
    let run = Run { max_difference, ..Run::of(64, ActivationPrecision::F32) };
    look_at_all(family, &files, &mut Cpu::new(2, Isa::detect()), run)
}

#[test]
fn rows_are_those_of_the_reference() {
    let run = Run::of(64, ActivationPrecision::F32);
    for family in &families() {
        let own = TowerFiles::find(&model(family)).expect("a tower that fits").expect("a tower");
        let own = look_at_all(family, &own, &mut Cpu::new(2, Isa::detect()), run);
        let same = look(family, &mmproj(&dir().join(family), Matrices::Bf16), run.max_difference);
        assert!(same == own, "{family}: the same numbers give other rows");
        for matrices in [Matrices::F32, Matrices::F16] {
            look(family, &mmproj(&dir().join(family), matrices), run.max_difference);
        }
        let rounded = look(family, &mmproj(&dir().join(family), Matrices::Q8), MAX_DIFFERENCE_Q8);
        assert!(rounded != own, "{family}: eight bits give the same rows");
    }
}

/// Files may have queries, keys and values of a block in three tensors.
#[test]
fn three_tensors_are_one() {
    for family in &families() {
        let whole = mmproj(&dir().join(family), Matrices::Bf16);
        let mut apart = whole.clone();
        apart.tensors.clear();
        for tensor in &whole.tensors {
            let Some((block, ending)) = tensor.name.split_once("attn_qkv") else {
                apart.tensors.push(tensor.clone());
                continue;
            };
            for (part, bytes) in
                ["q", "k", "v"].iter().zip(tensor.bytes.chunks(tensor.bytes.len() / 3))
            {
                let mut third = tensor.clone();
                third.name = format!("{block}attn_{part}{ending}");
                *third.dims.last_mut().expect("rows") /= 3;
                third.bytes = bytes.to_vec();
                apart.tensors.push(third);
            }
        }
        assert!(look(family, &apart, 5e-5) == look(family, &whole, 5e-5), "{family}");
    }
}

/// A list of blocks may be absent: mergers have the numbers of theirs.
#[test]
fn deepstack_is_known_by_its_tensors() {
    let mut file = mmproj(&dir().join("qwen3_vl_moe"), Matrices::Bf16);
    file.remove("clip.vision.is_deepstack_layers");
    look("qwen3_vl_moe", &file, 5e-5);
}

#[test]
fn files_of_other_models_are_refused_by_name() {
    let all = families();
    for family in &all {
        for other in &all {
            let mut file = mmproj(&dir().join(other), Matrices::Bf16);
            let is_alike = family == other
                || [family, other]
                    .iter()
                    .all(|name| ["qwen3_5_moe", "qwen4_exp"].contains(&name.as_str()));
            match open(&file, &model(family)) {
                Ok(_) => assert!(is_alike, "{other} for {family}"),
                Err(err) => {
                    assert!(!is_alike, "{other} for {family}: {err}");
                    assert!(err.to_string().contains("this model has"), "{err}");
                }
            }
            file.u32("clip.vision.projection_dim", 128);
            let err = open(&file, &model(family)).expect_err("another width").to_string();
            assert!(err.contains("name the model's own file (mmproj FILE)"), "{err}");
        }
    }
}

#[test]
fn models_without_a_tower_take_no_such_file() {
    let text = crate::common::golden_dir().join("olmoe-hf");
    let model = open_checkpoint(&text).expect("a checkpoint");
    let file = mmproj(&dir().join("gemma4"), Matrices::Bf16);
    let err = open(&file, &model).expect_err("no tower").to_string();
    assert!(err.contains("take no pictures here; leave mmproj out"), "{err}");
}

/// Every key, absent or with what it cannot be, is an error of one line or changes nothing.
#[test]
fn keys_that_cannot_be_end_in_a_line() {
    let absurd: [(u32, Vec<u8>); 6] = [
        (4, 0u32.to_le_bytes().to_vec()),
        (4, u32::MAX.to_le_bytes().to_vec()),
        (10, u64::MAX.to_le_bytes().to_vec()),
        (5, (-1i32).to_le_bytes().to_vec()),
        (6, f32::NAN.to_le_bytes().to_vec()),
        (8, crate::converted::writer::text("x")),
    ];
    for family in &families() {
        let (file, model) = (mmproj(&dir().join(family), Matrices::Bf16), model(family));
        let mut refused = BTreeSet::new();
        for (key, ..) in &file.keys {
            let mut without = file.clone();
            if open(without.remove(key), &model).is_err() {
                refused.insert(key.clone());
            }
            for (kind, bytes) in &absurd {
                let mut changed = file.clone();
                if open(changed.raw(key, *kind, bytes.clone()), &model).is_err() {
                    refused.insert(key.clone());
                }
            }
        }
        assert!(refused.len() >= 8, "{family}: {refused:?}");
    }
}

#[test]
fn tensors_that_cannot_be_end_in_a_line() {
    for family in &families() {
        let (file, model) = (mmproj(&dir().join(family), Matrices::Bf16), model(family));
        let refused = |change: &dyn Fn(&mut GgufWriter)| {
            let mut changed = file.clone();
            change(&mut changed);
            open(&changed, &model).expect_err("a file that cannot be").to_string()
        };
        for (nth, tensor) in file.tensors.iter().enumerate() {
            let name = &tensor.name;
            let missing = refused(&|file| drop(file.tensors.remove(nth)));
            // A frame or a block alone is another tensor, a merger by its block changes the rest.
            let may_be_other =
                ["patch_embd", "deepstack", "std_bias"].iter().any(|part| name.contains(part));
            assert!(missing.contains(name.as_str()) || may_be_other, "{name}: {missing}");
            let longer = |file: &mut GgufWriter| {
                let tensor = &mut file.tensors[nth];
                let rows = tensor.dims.last_mut().expect("rows");
                let n_bytes = tensor.bytes.len() / *rows as usize;
                *rows += 1;
                tensor.bytes.resize(tensor.bytes.len() + n_bytes, 0);
            };
            // A table by height and width may have any sides; one by axis has two axes.
            let has_sides = matches!(tensor.dims[..], [_, _, height] if height != 2);
            if !(name.contains("position_embd") && has_sides) {
                refused(&longer);
            }
            refused(&|file| {
                let tensor = &mut file.tensors[nth];
                tensor.dims = vec![tensor.dims.iter().product()];
                tensor.dims.push(1);
            });
            // Integers of as many bytes.
            refused(&|file| {
                let tensor = &mut file.tensors[nth];
                tensor.type_id = if tensor.type_id == 0 { 26 } else { 25 };
            });
        }
        let left = refused(&|file| {
            file.floats("v.blk.0.attn_q.input_min", &[1], &[0.0]);
        });
        assert!(left.contains("v.blk.0.attn_q.input_min"), "{left}");
        refused(&|file| {
            file.text("general.architecture", "llama");
        });
        refused(&|file| {
            file.bool("clip.has_vision_encoder", false);
        });
    }
}

/// A tower for sound has no part in it.
#[test]
fn sound_is_left_aside() {
    let mut file = mmproj(&dir().join("gemma4"), Matrices::Bf16);
    file.floats("a.blk.0.ln1.weight", &[1], &[0.0]).floats("mm.a.fc.weight", &[1], &[0.0]);
    open(&file, &model("gemma4")).expect("a tower");
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let mut file = mmproj(&dir().join("kimi_k25"), Matrices::F32);
    for name in ["v.blk.1.attn_qkv.weight", "v.patch_embd.weight"] {
        let bytes = file.tensor_mut(name).bytes.clone();
        file.tensor_mut(name).bytes[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mmproj.gguf");
        file.write(&path);
        let files = TowerFiles::open_mmproj(&path, &model("kimi_k25")).expect("a header");
        let mut cpu = Cpu::new(1, Isa::detect());
        let inputs = ActivationPrecision::F32;
        let err = files.load(&mut cpu, 16, inputs, &mut |_| {}).expect_err("not a number");
        assert!(err.to_string().contains(name), "{err}");
        file.tensor_mut(name).bytes = bytes;
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let err = TowerFiles::open_mmproj(Path::new("no-such-mmproj.gguf"), &model("gemma4"));
    assert!(err.expect_err("no file").to_string().contains("no-such-mmproj.gguf"));
}
