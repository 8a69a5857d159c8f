//! Split sets, and directories with several models.

use std::fs;
use std::path::Path;

use super::small::model;
use super::writer::GgufWriter;
use super::{message, open_checkpoint};
use crate::checkpoint::CheckpointKind;

fn part_name(prefix: &str, nth: usize, n: usize) -> String {
    format!("{prefix}-{:05}-of-{n:05}.gguf", nth + 1)
}

/// The parts of a model. The first holds the keys, and `n_first` tensors.
fn split(file: &GgufWriter, n: usize, n_first: usize) -> Vec<GgufWriter> {
    let per_part = (file.tensors.len() - n_first).div_ceil(n - 1);
    let part = |nth: usize| {
        let mut part = match nth {
            0 => file.clone(),
            _ => GgufWriter::new(),
        };
        part.tensors = match nth {
            0 => file.tensors[..n_first].to_vec(),
            _ => {
                let first = n_first + (nth - 1) * per_part;
                file.tensors[first..file.tensors.len().min(first + per_part)].to_vec()
            }
        };
        part.u16("split.no", nth as u16).u16("split.count", n as u16);
        part.i32("split.tensors.count", file.tensors.len() as i32);
        part
    };
    (0..n).map(part).collect()
}

fn write_parts(dir: &Path, prefix: &str, parts: &[GgufWriter]) {
    for (nth, part) in parts.iter().enumerate() {
        part.write(&dir.join(part_name(prefix, nth, parts.len())));
    }
}

#[test]
fn a_split_set_opens_by_any_part_and_by_its_directory() {
    let file = model();
    let whole = super::open(&file).unwrap();
    for n_first in [0, 3] {
        let dir = tempfile::tempdir().unwrap();
        let mut parts = split(&file, 3, n_first);
        // A part has an alignment of its own.
        parts[2].alignment = 64;
        parts[2].u32("general.alignment", 64);
        write_parts(dir.path(), "m", &parts);
        for name in [".", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]
        {
            let got = open_checkpoint(&dir.path().join(name)).unwrap();
            assert_eq!(got.config().value(), whole.config().value(), "{name}");
            assert_eq!(got.files().len(), 3);
            assert!(got.root().ends_with("m-00001-of-00003.gguf"));
            for (name, tensor) in got.tensors() {
                let want = &whole.tensors()[name];
                let bytes = got.reader().read(tensor.extent).unwrap();
                assert_eq!(bytes, whole_bytes(&file, &tensor.stored_name), "{name}");
                assert_eq!((&tensor.shape, &tensor.dtype), (&want.shape, &want.dtype), "{name}");
            }
            assert_eq!(got.tensors().len(), whole.tensors().len());
        }
    }
}

fn whole_bytes(file: &GgufWriter, name: &str) -> Vec<u8> {
    file.clone().tensor_mut(name).bytes.clone()
}

/// The message for parts of which some are changed or left out.
#[track_caller]
fn refused(edit: impl FnOnce(&mut Vec<GgufWriter>), missing: Option<usize>, open: usize) -> String {
    let mut parts = split(&model(), 3, 4);
    edit(&mut parts);
    let dir = tempfile::tempdir().unwrap();
    write_parts(dir.path(), "m", &parts);
    if let Some(nth) = missing {
        fs::remove_file(dir.path().join(part_name("m", nth, 3))).unwrap();
    }
    message(dir.path(), open_checkpoint(&dir.path().join(part_name("m", open, 3))))
}

#[test]
fn refuses_sets_that_lack_a_part() {
    let gone = |nth, open| refused(|_| {}, Some(nth), open);
    let rest = "of 3 is not there; is the download complete?";
    assert_eq!(gone(0, 1), format!("m-00001-of-00003.gguf: part 1 {rest}"));
    assert_eq!(gone(1, 0), format!("m-00002-of-00003.gguf: part 2 {rest}"));
    assert_eq!(gone(2, 1), format!("m-00003-of-00003.gguf: part 3 {rest}"));
}

#[test]
fn refuses_sets_whose_parts_contradict_each_other() {
    let rule = |n| format!("it must be {n}, as its name and the first part say");
    let got = refused(
        |parts| {
            parts[1].u16("split.no", 2);
        },
        None,
        0,
    );
    assert_eq!(got, format!("m-00002-of-00003.gguf: split.no is 2; {}", rule(1)));
    let got = refused(
        |parts| {
            parts[2].u16("split.count", 4);
        },
        None,
        0,
    );
    assert_eq!(got, format!("m-00003-of-00003.gguf: split.count is 4; {}", rule(3)));
    let got = refused(
        |parts| {
            parts[2].remove("split.no");
        },
        None,
        0,
    );
    assert_eq!(got, format!("m-00003-of-00003.gguf: split.no is missing; {}", rule(2)));
    let n = model().tensors.len();
    let got = refused(
        |parts| {
            parts[1].i32("split.tensors.count", 5);
        },
        None,
        0,
    );
    assert_eq!(got, format!("m-00002-of-00003.gguf: split.tensors.count is 5; {}", rule(n)));
    let got = refused(
        |parts| {
            parts[0].u16("split.count", 2);
        },
        None,
        0,
    );
    assert_eq!(got, "m-00001-of-00003.gguf: split.count is 2, its name says 3 parts");
    let got = refused(
        |parts| {
            parts[0].remove("split.count");
        },
        None,
        1,
    );
    assert_eq!(got, "m-00001-of-00003.gguf: split.count is 1, its name says 3 parts");
}

#[test]
fn refuses_sets_with_other_tensors_than_they_say() {
    let n = model().tensors.len();
    let got = refused(
        |parts| {
            parts[2].tensors.pop();
        },
        None,
        0,
    );
    let want = format!("split.tensors.count is {n}, the parts have {}", n - 1);
    assert_eq!(got, format!("m-00001-of-00003.gguf: {want}"));
    let twice = |parts: &mut Vec<GgufWriter>| parts[2].tensors[0] = parts[0].tensors[0].clone();
    let got = refused(twice, None, 0);
    let want = "tensor token_embd.weight is in another part, too";
    assert_eq!(got, format!("m-00003-of-00003.gguf: {want}"));
}

#[test]
fn a_part_needs_the_name_by_which_the_others_are_found() {
    let mut file = model();
    file.u16("split.no", 0).u16("split.count", 3).i32("split.tensors.count", 27);
    let want = "split.count is 3, but the name is not PREFIX-00001-of-00003.gguf, by which the \
                other parts are found; give all parts their names";
    assert_eq!(super::refused(&file), format!("m.gguf: {want}"));
    file.u16("split.count", 1);
    assert!(super::open(&file).is_ok());
}

#[test]
fn one_model_of_a_directory_opens_and_others_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let open = || open_checkpoint(dir.path());
    let empty = message(dir.path(), open());
    assert!(empty.starts_with(".: no model here; expected"), "{empty}");
    let mut companion = GgufWriter::new();
    companion.text("general.type", "mmproj");
    companion.write(&dir.path().join("mmproj-F16.gguf"));
    fs::write(dir.path().join("imatrix.gguf"), "anything").unwrap();
    let want = ".: 2 GGUF files of projectors, importance matrices or layers of multi-token \
                prediction, none of a model";
    assert_eq!(message(dir.path(), open()), want);
    model().write(&dir.path().join("a-Q4_0.gguf"));
    assert!(open().unwrap().root().ends_with("a-Q4_0.gguf"));
    // What a header says counts where a name does not.
    companion.text("general.type", "adapter").write(&dir.path().join("lora.gguf"));
    assert!(open().unwrap().root().ends_with("a-Q4_0.gguf"));
    write_parts(dir.path(), "a-Q8_0", &split(&model(), 3, 0));
    let want = ".: 2 models: a-Q4_0.gguf, a-Q8_0-00001-of-00003.gguf; name one of these files";
    assert_eq!(message(dir.path(), open()), want);
    let named = message(dir.path(), open_checkpoint(&dir.path().join("lora.gguf")));
    let want = "lora.gguf: general.type is \"adapter\": this file belongs to a model and is not \
                one; name the model's file";
    assert_eq!(named, want);
}

#[test]
fn models_are_found_in_folders_and_without_names() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("UD-Q2_K_XL");
    fs::create_dir(&folder).unwrap();
    write_parts(&folder, "m", &split(&model(), 3, 0));
    let got = open_checkpoint(dir.path()).unwrap();
    assert!(got.root().ends_with("UD-Q2_K_XL/m-00001-of-00003.gguf"));
    let blob = dir.path().join("sha256-0123");
    model().write(&blob);
    assert_eq!(open_checkpoint(&blob).unwrap().root(), blob);
}

#[test]
fn safetensors_come_before_gguf_files() {
    let dir = tempfile::tempdir().unwrap();
    model().write(&dir.path().join("m.gguf"));
    fs::write(dir.path().join("model.safetensors"), "").unwrap();
    let got = message(dir.path(), open_checkpoint(dir.path()));
    assert!(got.starts_with("config.json"), "{got}");
}

#[test]
fn other_safetensors_of_a_directory_without_a_config_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    model().write(&dir.path().join("m.gguf"));
    fs::write(dir.path().join("importance.safetensors"), "").unwrap();
    assert_eq!(open_checkpoint(dir.path()).unwrap().kind(), CheckpointKind::Gguf);
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    let got = message(dir.path(), open_checkpoint(dir.path()));
    assert!(got.starts_with("importance.safetensors"), "{got}");
}

#[cfg(unix)]
#[test]
fn links_of_a_download_lead_to_parts() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (dir.path().join("blobs"), dir.path().join("snapshots"));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir(&snapshot).unwrap();
    for (nth, part) in split(&model(), 3, 0).iter().enumerate() {
        part.write(&blobs.join(nth.to_string()));
        let link = snapshot.join(part_name("m", nth, 3));
        std::os::unix::fs::symlink(format!("../blobs/{nth}"), link).unwrap();
    }
    assert_eq!(open_checkpoint(&snapshot).unwrap().files().len(), 3);
    let second = snapshot.join(part_name("m", 1, 3));
    assert_eq!(open_checkpoint(&second).unwrap().files().len(), 3);
    fs::remove_file(blobs.join("2")).unwrap();
    let got = message(&snapshot, open_checkpoint(&snapshot));
    let want = "m-00003-of-00003.gguf: part 3 of 3 is not there; is the download complete?";
    assert_eq!(got, want);
}

/// Cuts a file after some of its bytes.
fn cut(dir: &Path, name: impl Fn(usize) -> String, bytes: &[u8], ends: &[usize]) -> Vec<String> {
    let starts = [&[0], ends].concat();
    let ends = [ends, &[bytes.len()]].concat();
    let names: Vec<String> = (1..=ends.len()).map(name).collect();
    for ((name, start), end) in names.iter().zip(starts).zip(ends) {
        fs::write(dir.join(name), &bytes[start..end]).unwrap();
    }
    names
}

#[test]
fn pieces_of_a_file_are_joined() {
    let file = model();
    let whole = super::open(&file).unwrap();
    let bytes = file.to_bytes();
    let up = whole.tensors()["layers.1.mlp.switch_mlp.up_proj.weight"].extent;
    // In the header, in the middle of a tensor of experts, twice in it, and between tensors.
    let inside = up.offset as usize + up.len / 2;
    for ends in [vec![100], vec![inside], vec![inside - 8, inside], vec![up.offset as usize]] {
        let names: [&dyn Fn(usize) -> String; 5] = [
            &|nth| format!("m.gguf.part{nth}of{}", ends.len() + 1),
            &|nth| format!("m.gguf-split-{}", ["a", "b", "c"][nth - 1]),
            &|nth| format!("m.gguf.00{nth}"),
            &|nth| format!("m.gguf.part{nth}"),
            &|nth| format!("m.gguf.part-0000{nth}-of-0000{}", ends.len() + 1),
        ];
        for name in names {
            let dir = tempfile::tempdir().unwrap();
            let names = cut(dir.path(), name, &bytes, &ends);
            for name in names.iter().map(String::as_str).chain(["."]) {
                let got = open_checkpoint(&dir.path().join(name)).unwrap();
                assert_eq!(got.kind(), CheckpointKind::Gguf);
                assert_eq!(got.config().value(), whole.config().value(), "{name}");
                for tensor in got.tensors().values() {
                    let bytes = got.reader().read(tensor.extent).unwrap();
                    assert_eq!(bytes, whole_bytes(&file, &tensor.stored_name), "{name} {ends:?}");
                }
            }
            let last = dir.path().join(names.last().unwrap());
            fs::write(&last, &bytes[..10]).unwrap();
            message(dir.path(), open_checkpoint(&last));
            fs::remove_file(dir.path().join(&names[0])).unwrap();
            let got = message(dir.path(), open_checkpoint(&last));
            assert_eq!(
                got,
                format!(
                    "{}: this piece of a file is not there; is the download complete?",
                    names[0]
                )
            );
        }
    }
}

#[test]
fn parts_that_were_joined_by_cat_are_one_model() {
    let file = model();
    for n_first in [0, 3] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cat.gguf");
        let parts = split(&file, 3, n_first);
        let all: Vec<Vec<u8>> = parts.iter().map(GgufWriter::to_bytes).collect();
        fs::write(&path, all.concat()).unwrap();
        let got = open_checkpoint(&path).unwrap();
        for tensor in got.tensors().values() {
            let bytes = got.reader().read(tensor.extent).unwrap();
            assert_eq!(bytes, whole_bytes(&file, &tensor.stored_name));
        }
        // In another order, or without one.
        fs::write(&path, [&all[0][..], &all[2], &all[1]].concat()).unwrap();
        let got = message(dir.path(), open_checkpoint(&path));
        assert!(got.contains("split.no is 2; it must be 1"), "{got}");
        fs::write(&path, all[..2].concat()).unwrap();
        let got = message(dir.path(), open_checkpoint(&path));
        assert!(got.ends_with("give all parts their names"), "{got}");
    }
}

#[test]
fn a_model_is_alone_with_its_parts_and_with_files_that_are_no_models() {
    use crate::gguf::is_only_model;

    let dir = tempfile::tempdir().unwrap();
    write_parts(dir.path(), "m", &split(&model(), 3, 0));
    for name in ["mmproj-F16.gguf", "imatrix.gguf", "notes.txt"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    let parts = [0, 2].map(|nth| dir.path().join(part_name("m", nth, 3)));
    assert!(parts.iter().all(|part| is_only_model(part)));
    fs::write(dir.path().join("m-Q8_0.gguf"), "").unwrap();
    assert!(!parts.iter().any(|part| is_only_model(part)));
}
