//! Vision towers against transformers: rows of prompts from pictures, on the processor and on a GPU,
//! in chunks and at once.
//!
//! `tests/towers` has, by family, the tower of a small random model, its processor's file and the rows that
//! transformers 5.24 makes of ten pictures with it; `images.safetensors` has these pictures' pixels.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use moeflux_backend::cpu::{Cpu, Isa};
use moeflux_backend::{ActivationPrecision, Backend};
use moeflux_image::{Frames, Picture as Pixels, Processor, Size};
use moeflux_model::{Grid, Picture, Seen, TowerFiles, open_checkpoint};
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// Largest difference of a float of a row, whose root mean square is about 1. The wrong kind of GELU
/// alone changes 7e-4.
const MAX_DIFFERENCE: f32 = 5e-5;

pub(crate) fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/towers")
}

/// The folders of families.
pub(crate) fn families() -> Vec<String> {
    let entries = dir().read_dir().expect("the folder").map(|entry| entry.expect("an entry"));
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names = folders.map(|entry| entry.file_name().into_string().expect("a name"));
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert!(names.len() >= 6, "{names:?}");
    names
}

/// The pictures, by name.
pub(crate) fn pictures() -> Vec<(String, Pixels)> {
    let bytes = std::fs::read(dir().join("images.safetensors")).expect("the pictures");
    let all = SafeTensors::deserialize(&bytes).expect("tensors");
    let picture = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let [height, width, 3] = view.shape()[..] else { panic!("{name}: not RGB") };
        let name = name.trim_end_matches(".rgb").to_owned();
        (name, Pixels::from_rgb(Size { width, height }, view.data().to_vec()))
    };
    let mut pictures: Vec<_> = all.tensors().into_iter().map(picture).collect();
    pictures.sort_by(|a, b| a.0.cmp(&b.0));
    pictures
}

/// What a tower makes of a picture.
struct Want {
    rows: Vec<f32>,
    deepstack: Vec<Vec<f32>>,
}

impl Want {
    fn read(golden: &SafeTensors<'_>, picture: &str) -> Want {
        let floats = |name: &str| {
            let view = golden.tensor(&format!("{picture}.{name}")).ok()?;
            let floats = view.data().as_chunks::<4>().0.iter();
            Some(floats.map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>())
        };
        let deepstack = (0..).map_while(|nth| floats(&format!("deep.{nth}"))).collect();
        Want { rows: floats("embeds").expect("rows"), deepstack }
    }

    #[track_caller]
    fn check(&self, got: &Seen, name: &str, max_difference: f32) {
        let of = |seen: &Seen| [&[seen.rows.clone()][..], &seen.deepstack].concat();
        let want = [&[self.rows.clone()][..], &self.deepstack].concat();
        let got = of(got);
        assert_eq!(got.len(), want.len(), "{name}: layers");
        for (layer, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.len(), want.len(), "{name}, {layer}: floats");
            let differences = got.iter().zip(want).map(|(a, b)| (a - b).abs());
            let worst = differences.fold(0.0, f32::max);
            let are_numbers = got.iter().all(|value| value.is_finite());
            assert!(are_numbers && worst <= max_difference, "{name}, {layer}: {worst:e}");
        }
    }
}

/// How a tower is run, and how far its rows may be from those of the reference.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) max_rows: usize,
    pub(crate) inputs: ActivationPrecision,
    pub(crate) max_difference: f32,
}

impl Run {
    pub(crate) fn of(max_rows: usize, inputs: ActivationPrecision) -> Run {
        Run { max_rows, inputs, max_difference: MAX_DIFFERENCE }
    }
}

/// The tower in the folder of a family.
fn own_files(family: &str) -> TowerFiles {
    let checkpoint = open_checkpoint(&dir().join(family)).expect("a checkpoint");
    TowerFiles::find(&checkpoint).expect("a tower that fits").expect("a tower")
}

/// Looks at all pictures with a tower of a family.
pub(crate) fn look_at_all(
    family: &str,
    files: &TowerFiles,
    backend: &mut dyn Backend,
    run: Run,
) -> Vec<Seen> {
    let Run { max_rows, inputs, max_difference } = run;
    let folder = dir().join(family);
    let mut tower = files.load(backend, max_rows, inputs, &mut |_| {}).expect("it loads");
    let json = std::fs::read(folder.join("preprocessor_config.json")).expect("the processor");
    let json = serde_json::from_slice(&json).expect("JSON");
    let processor = Processor::from_json(&json).expect("a processor");
    let golden = std::fs::read(folder.join("golden.safetensors")).expect("rows");
    let golden = SafeTensors::deserialize(&golden).expect("tensors");
    let look = |(name, pixels): (String, Pixels)| {
        let layout = processor.layout(pixels.width(), pixels.height()).expect("a size");
        let prepared = processor.prepare(&pixels, &layout).expect("memory");
        let write_patch = |nth, to: &mut [f32]| prepared.write(nth..nth + 1, Frames::All, to);
        let grid = Grid { rows: layout.grid().rows, columns: layout.grid().columns };
        let picture = Picture { grid, write_patch: &write_patch };
        let seen = tower
            .look(picture, backend, &mut |_, _| ControlFlow::Continue(()))
            .expect("the device works")
            .expect("nothing ends it");
        assert_eq!(seen.rows.len(), layout.n_tokens() * tower.hidden(), "{family}: {name}");
        let want = Want::read(&golden, &name);
        want.check(&seen, &format!("{family}, {max_rows}: {name}"), max_difference);
        seen
    };
    pictures().into_iter().map(look).collect()
}

#[test]
fn rows_are_those_of_the_reference() {
    for family in &families() {
        let files = own_files(family);
        let [at_once, in_chunks] = [256, 20].map(|max_rows| {
            let mut cpu = Cpu::new(2, Isa::detect());
            look_at_all(family, &files, &mut cpu, Run::of(max_rows, ActivationPrecision::Int16))
        });
        assert!(at_once == in_chunks, "{family}: chunks change a bit");
        for isa in Isa::available() {
            let run = Run::of(256, ActivationPrecision::F32);
            let seen = look_at_all(family, &files, &mut Cpu::new(1, isa), run);
            assert!(seen == at_once, "{family}: {isa:?} changes a bit");
        }
    }
}

/// Every value of a tower's config, replaced by what it cannot be, is an error or changes no shape.
#[test]
fn configs_that_cannot_be_end_in_a_line() {
    let absurd = [json!(0), json!(-1), json!(1 << 19), json!(u64::MAX), json!("x"), json!([])];
    for family in &families() {
        let of_family = dir().join(family);
        let text = std::fs::read(of_family.join("config.json")).expect("a config");
        let config: Value = serde_json::from_slice(&text).expect("JSON");
        let folder = tempfile::tempdir().expect("a folder");
        let weights = "model.safetensors";
        std::fs::copy(of_family.join(weights), folder.path().join(weights)).expect("a copy");
        let mut n_refused = 0;
        for key in config["vision_config"].as_object().expect("the tower's").keys() {
            for value in &absurd {
                let mut changed = config.clone();
                changed["vision_config"][key] = value.clone();
                std::fs::write(folder.path().join("config.json"), changed.to_string())
                    .expect("a file");
                let checkpoint = open_checkpoint(folder.path()).expect("a checkpoint");
                if let Err(err) = TowerFiles::find(&checkpoint) {
                    n_refused += 1;
                    assert_eq!(err.to_string().lines().count(), 1, "{family}, {key}: {err}");
                }
            }
        }
        assert!(n_refused >= 20, "{family}: {n_refused}");
    }
}

#[test]
fn a_picture_can_be_given_up_between_blocks() {
    let files = own_files(&families()[0]);
    let mut cpu = Cpu::new(2, Isa::detect());
    let inputs = ActivationPrecision::F32;
    let mut tower = files.load(&mut cpu, 64, inputs, &mut |_| {}).expect("it loads");
    let grid = Grid { rows: tower.merge(), columns: tower.merge() };
    let picture = Picture { grid, write_patch: &|_, to| to.fill(0.25) };
    let mut seen_blocks = Vec::new();
    let seen = tower.look(picture, &mut cpu, &mut |done, all| {
        seen_blocks.push((done, all));
        if done == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(seen.expect("the device works"), None);
    assert_eq!(seen_blocks, [(0, 3), (1, 3)]);
}

#[cfg(feature = "gpu")]
#[test]
#[expect(clippy::print_stdout, reason = "a skipped test is counted")]
fn rows_on_a_gpu_are_those_of_the_reference() {
    let context = match moeflux_wgpu::Context::open(None) {
        Ok(context) => context,
        Err(err) if std::env::var_os("MOEFLUX_EXPECTED_GPU").is_some() => panic!("{err}"),
        Err(err) => {
            println!("SKIP: {err}");
            return;
        }
    };
    for family in &families() {
        for inputs in [ActivationPrecision::F32, ActivationPrecision::Int16] {
            let mut gpu = moeflux_wgpu::new_backend(std::sync::Arc::clone(&context), None);
            look_at_all(family, &own_files(family), &mut gpu, Run::of(64, inputs));
        }
    }
}
