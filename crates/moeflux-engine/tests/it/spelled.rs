//! Other spellings of the same model: the names under which transformers 5 holds it, an index that is not that of the
//! files, a file that was cut into pieces. Each gives the bits of the golden case.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use moeflux_engine::{Activations, Engine, EngineOptions};
use moeflux_store::IoChoice::{self, Direct, Mmap, Pread};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;

use crate::common::{Golden, logits_by_chunk};

const WEIGHTS: &str = "model.safetensors";

/// What transformers 5 calls parts of a published checkpoint, by the `model_type` (its `conversion_mapping.py`, and
/// what `save_pretrained` writes for Kimi K2.5).
const RENAMED: &str = include_str!("../transformers5.json");

/// A tensor on its own.
#[derive(Clone)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

type Tensors = BTreeMap<String, Stored>;

/// All spellings of a case give its bits.
pub(crate) fn check(case: &Path) {
    let gguf = case.join("model.gguf");
    if gguf.exists() {
        return check_same(case, &[in_pieces(&gguf)], &[Pread, Direct, Mmap]);
    }
    if !case.join(WEIGHTS).exists() {
        return;
    }
    let tensors = read(case);
    let mut spelled = vec![with_another_index(case, &tensors)];
    let config = fs::read_to_string(case.join("config.json")).unwrap();
    spelled.extend(of_transformers(&config, &tensors).map(|tensors| copy(case, &tensors)));
    check_same(case, &spelled, &[IoChoice::Auto]);
}

#[track_caller]
fn check_same(case: &Path, spelled: &[tempfile::TempDir], ways: &[IoChoice]) {
    let tokens = Golden::read(case).sequences.pop().unwrap().tokens;
    let bits = |model: &Path, io: IoChoice| -> Vec<u32> {
        let options = EngineOptions::default().activations(Activations::Full).expert_io(io);
        let engine = Engine::open(model, &options).unwrap();
        logits_by_chunk(&engine, &tokens, usize::MAX).iter().map(|logit| logit.to_bits()).collect()
    };
    let want = bits(case, IoChoice::Pread);
    for (nth, dir) in spelled.iter().enumerate() {
        for io in ways {
            assert!(bits(dir.path(), *io) == want, "{}, spelling {nth}, {io:?}", case.display());
        }
    }
}

fn read(case: &Path) -> Tensors {
    let bytes = fs::read(case.join(WEIGHTS)).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap();
    let stored = |view: TensorView<'_>| Stored {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    all.tensors().into_iter().map(|(name, view)| (name, stored(view))).collect()
}

fn write(path: PathBuf, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, stored)| {
        let shape = stored.shape.clone();
        (name, TensorView::new(stored.dtype, shape, &stored.bytes).unwrap())
    });
    fs::write(path, serialize(views, None).unwrap()).unwrap();
}

/// The small files of a case in a folder of their own.
fn folder_of(case: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in case.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_owned();
        if path.is_file() && name != WEIGHTS {
            fs::copy(&path, dir.path().join(name)).unwrap();
        }
    }
    dir
}

fn copy(case: &Path, tensors: &Tensors) -> tempfile::TempDir {
    let dir = folder_of(case);
    write(dir.path().join(WEIGHTS), tensors);
    dir
}

/// Two files with the index of a model in three.
fn with_another_index(case: &Path, tensors: &Tensors) -> tempfile::TempDir {
    let dir = folder_of(case);
    let mut first = tensors.clone();
    let middle = tensors.keys().nth(tensors.len() / 2).unwrap();
    let second = first.split_off(middle);
    for (nth, part) in [first, second].iter().enumerate() {
        write(dir.path().join(format!("model-{:05}-of-00002.safetensors", nth + 1)), part);
    }
    let file = |nth: usize| format!("model-{:05}-of-00003.safetensors", nth % 3 + 1);
    let map: serde_json::Map<_, _> =
        tensors.keys().enumerate().map(|(nth, name)| (name.clone(), json!(file(nth)))).collect();
    let index = json!({"weight_map": map}).to_string();
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    dir
}

/// A file in three pieces, of which the ends are in tensors or in the header.
fn in_pieces(file: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let bytes = fs::read(file).unwrap();
    let ends = [0, bytes.len() / 3 + 1, bytes.len() * 3 / 4 + 5, bytes.len()];
    for (nth, end) in ends.windows(2).enumerate() {
        let name = format!("model.gguf.part{}of3", nth + 1);
        fs::write(dir.path().join(name), &bytes[end[0]..end[1]]).unwrap();
    }
    dir
}

/// The tensors as transformers 5 holds them; `None` where these are the published ones, or where experts are not
/// floats, which it does not fuse.
fn of_transformers(config: &str, tensors: &Tensors) -> Option<Tensors> {
    let all: BTreeMap<String, Vec<[String; 2]>> = serde_json::from_str(RENAMED).unwrap();
    let is_of = |model_type: &str| config.contains(&format!("\"model_type\": \"{model_type}\""));
    let renamed: Vec<[String; 2]> = all
        .into_iter()
        .filter(|(model_type, _)| is_of(model_type))
        .flat_map(|(_, pairs)| pairs)
        .collect();
    let name = |name: &String| {
        renamed.iter().fold(name.clone(), |name, [from, to]| name.replacen(from, to, 1))
    };
    let named: Tensors = tensors.iter().map(|(old, stored)| (name(old), stored.clone())).collect();
    let fused = fused(named);
    (fused.keys().ne(tensors.keys())).then_some(fused)
}

/// The experts of each layer in one tensor for gate and up, and one for down.
fn fused(tensors: Tensors) -> Tensors {
    let is_float = |stored: &Stored| matches!(stored.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
    let mut out = Tensors::new();
    // By the block, the part and the expert.
    let mut experts: BTreeMap<(String, String), BTreeMap<usize, Stored>> = BTreeMap::new();
    for (name, stored) in tensors {
        let place = name.split_once(".experts.").and_then(|(block, rest)| {
            let (expert, part) = rest.split_once('.')?;
            Some((
                block.to_owned(),
                expert.parse().ok()?,
                part.strip_suffix("_proj.weight")?.to_owned(),
            ))
        });
        match place {
            Some((block, expert, part)) if is_float(&stored) => {
                experts.entry((block, part)).or_default().insert(expert, stored);
            }
            _ => drop(out.insert(name, stored)),
        }
    }
    let blocks: Vec<String> = experts.keys().map(|(block, _)| block.clone()).collect();
    for block in blocks {
        let mut part = |part: &str| experts.remove(&(block.clone(), part.to_owned()));
        let (gate, up, down) = (part("gate"), part("up"), part("down"));
        let up_name = if gate.is_some() { "gate_up" } else { "up" };
        for (part, halves) in [
            (up_name, gate.into_iter().chain(up).collect::<Vec<_>>()),
            ("down", down.into_iter().collect()),
        ] {
            let Some(first) = halves.first().and_then(|half| half.get(&0)) else { continue };
            let shape = vec![halves[0].len(), halves.len() * first.shape[0], first.shape[1]];
            let of_expert =
                |expert: usize| halves.iter().flat_map(move |half| half[&expert].bytes.clone());
            let bytes = (0..halves[0].len()).flat_map(of_expert).collect();
            out.insert(
                format!("{block}.experts.{part}_proj"),
                Stored { dtype: first.dtype, shape, bytes },
            );
        }
    }
    out
}
