//! What is measured, what is kept of it, and what becomes of damaged files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use moeflux_backend::ActivationPrecision;
use moeflux_core::quant::{Affine, Float, MatrixFormat};

use super::file;
use crate::device::adapter::AdapterFacts;
use crate::device::adapter::enumerate;
use crate::device::context::Context;
use crate::layouts::product::Form;
use crate::layouts::product::Layout;
use crate::layouts::table::Tuned;
use crate::layouts::table::{Choice, Key, ProductShape};
use crate::tuning::tune::{TuneOptions, key_of, n_tuned, tune};

const BF16: MatrixFormat = MatrixFormat::Dense(Float::BF16);

fn facts(name: &str, driver: &str) -> AdapterFacts {
    AdapterFacts {
        name: name.to_owned(),
        driver: driver.to_owned(),
        api: String::from("vulkan"),
        id: (0x10de, 0x2335),
        kind: "discrete",
        subgroup_sizes: (32, 32),
        max_buffer_bytes: 4 << 30,
        max_binding_bytes: 2 << 30,
        has_f16: true,
        free_bytes: None,
        memory_bytes: None,
        is_unified: false,
        reads_host: false,
        lacks: None,
    }
}

fn shape(rows: usize, n: usize) -> ProductShape {
    ProductShape { format: BF16, inputs: ActivationPrecision::F32, rows, cols: 256, n }
}

fn choice(rows: u32) -> Choice {
    let layout =
        Layout { form: Form::Bytes, lanes: 32, rows, depth: 1, threads: 128, groups: u32::MAX };
    Choice { layout, us: 3.5, plain_us: 4.25 }
}

fn products() -> BTreeMap<Key, Choice> {
    [(key_of(&shape(512, 1)), choice(1)), (key_of(&shape(512, 16)), choice(4))].into()
}

/// What a file holds, where it is not damaged.
fn kept(dir: &Path, facts: &AdapterFacts) -> Result<BTreeMap<Key, Choice>, String> {
    Ok(file::read(dir, facts)?.into_iter().collect())
}

#[test]
fn a_file_gives_back_what_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let facts = facts("H200", "580");
    assert!(kept(dir.path(), &facts).unwrap().is_empty(), "there is none yet");
    file::write(dir.path(), &facts, &products()).unwrap();
    assert_eq!(kept(dir.path(), &facts).unwrap(), products());
    assert_eq!(n_tuned(dir.path(), &facts), 2);
    let n_files = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(n_files, 1, "there is no other file");
}

#[test]
fn another_driver_begins_anew_and_another_gpu_has_its_own_file() {
    let dir = tempfile::tempdir().unwrap();
    file::write(dir.path(), &facts("H200", "580"), &products()).unwrap();
    assert!(kept(dir.path(), &facts("H200", "590")).unwrap().is_empty());
    assert!(kept(dir.path(), &facts("M4", "580")).unwrap().is_empty());
    // Put under its name, it is still not taken.
    let other = facts("M4", "580");
    fs::copy(file::path(dir.path(), &facts("H200", "580")), file::path(dir.path(), &other))
        .unwrap();
    assert!(kept(dir.path(), &other).unwrap_err().contains("another GPU"));
}

#[test]
fn a_damaged_file_is_ignored_with_a_warning_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let facts = facts("H200", "580");
    file::write(dir.path(), &facts, &products()).unwrap();
    let path = file::path(dir.path(), &facts);
    let good = fs::read_to_string(&path).unwrap();
    let damaged = [
        String::new(),
        String::from("[]"),
        good[..good.len() / 2].to_owned(),
        good.replace("\"version\": 1", "\"version\": 9"),
        good.replace("\"lanes\": 32", "\"lanes\": -1"),
        good.replace("\"lanes\": 32", "\"lanes\": 33"),
        good.replace("\"lanes\": 32", "\"lanes\": 0"),
        good.replace("\"form\": \"bytes\"", "\"form\": \"octets\""),
        " ".repeat(5 << 20) + &good,
    ];
    for text in damaged {
        fs::write(&path, &text).unwrap();
        let warning = file::read(dir.path(), &facts).unwrap_err();
        assert!(warning.contains(path.to_str().unwrap()), "{warning}");
        assert!(!warning.contains('\n'), "{warning}");
    }
    file::write(dir.path(), &facts, &products()).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), good);
}

#[test]
fn a_file_that_cannot_be_written_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let warning = file::write(&file, &facts("H200", "580"), &products()).unwrap_err();
    assert!(warning.contains("is not kept"), "{warning}");
}

#[test]
fn many_writers_leave_a_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let facts = facts("H200", "580");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    file::write(dir.path(), &facts, &products()).unwrap();
                    assert_eq!(kept(dir.path(), &facts).unwrap(), products());
                }
            });
        }
    });
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn the_nearest_product_lends_its_layout() {
    let tuned = Tuned::default();
    tuned.learn(products());
    let of = |rows, n| tuned.get(key_of(&shape(rows, n))).map(|layout| layout.rows);
    assert_eq!(of(512, 1), Some(1));
    assert_eq!(of(2047, 1), Some(1));
    assert_eq!(of(4096, 1), None, "eight times as many rows");
    assert_eq!(of(512, 16), Some(4));
    assert_eq!(of(128, 16), Some(4));
    assert_eq!(of(64, 16), None);
    let wider = ProductShape { cols: 512, ..shape(512, 1) };
    assert_eq!(tuned.get(key_of(&wider)), None);
    let affine = Affine::new(4, 64, Float::BF16);
    let other = ProductShape { format: MatrixFormat::Affine(affine), ..shape(512, 1) };
    assert_eq!(tuned.get(key_of(&other)), None);
}

#[test]
fn measures_once_within_its_time_and_remembers() {
    let Some(adapter) = enumerate().into_iter().next() else { return };
    let Ok(context) = Context::open_anew(&adapter) else { return };
    let dir = tempfile::tempdir().unwrap();
    let shapes = [shape(64, 1), shape(64, 1), shape(16, 8)];
    let options = |budget, includes_software| TuneOptions {
        cache: Some(dir.path().to_owned()),
        budget,
        later_budget: budget,
        includes_software,
    };
    let is_empty = || fs::read_dir(dir.path()).unwrap().next().is_none();
    if context.facts().is_software() {
        let tuning = tune(&context, &shapes, &options(Duration::from_secs(600), false)).unwrap();
        assert_eq!((tuning.n_known, tuning.n_measured, tuning.n_left), (0, 0, 0));
        assert!(is_empty());
    }
    let none = tune(&context, &shapes, &options(Duration::ZERO, true)).unwrap();
    assert_eq!((none.n_known, none.n_measured, none.n_left), (0, 0, 2));
    assert!(is_empty(), "nothing was measured");
    let tuning = tune(&context, &shapes, &options(Duration::from_secs(600), true)).unwrap();
    assert_eq!((tuning.n_known, tuning.n_measured, tuning.n_left), (0, 2, 0));
    assert_eq!(tuning.warnings, Vec::<String>::new());
    let found = context.tuned.get(key_of(&shapes[0])).unwrap();

    // Another process of this machine.
    let other: Arc<Context> = Context::open_anew(&adapter).unwrap();
    let tuning = tune(&other, &shapes, &options(Duration::from_secs(600), true)).unwrap();
    assert_eq!((tuning.n_known, tuning.n_measured, tuning.n_left), (2, 0, 0));
    assert_eq!(other.tuned.get(key_of(&shapes[0])), Some(found));
}
