//! The checks before a store is opened.

use std::fs;

use super::bank::{Shape, packed};
use super::*;

/// Opens a store over two layers after `tamper` has changed their files.
fn open(tamper: impl Fn(&Path), options: StoreOptions) -> Result<ExpertStore, String> {
    let dir = TempDir::new().unwrap();
    let bank = bank::write(dir.path(), &[packed(8), Shape::Dense, packed(8)]);
    tamper(dir.path());
    let store = ExpertStore::open(bank, zeroed(), options);
    store.map_err(|err| without_dir(&err, dir.path()))
}

#[track_caller]
fn check(tamper: impl Fn(&Path), want: &str) {
    for mode in [IoMode::Mmap, IoMode::Pread, IoMode::Direct] {
        assert_eq!(open(&tamper, options(mode)).unwrap_err(), want, "{mode}");
    }
}

fn resize(dir: &Path, len: u64) {
    let file = fs::OpenOptions::new().write(true).open(dir.join("layer-2-0")).unwrap();
    file.set_len(len).unwrap();
}

#[test]
fn refuses_files_that_are_not_what_the_bank_says() {
    check(
        |dir| fs::remove_file(dir.join("layer-2-0")).unwrap(),
        "layer 2: no expert file layer-2-0: restore it, or zero the layer's routed output with \
         allow_missing_experts",
    );
    check(
        |dir| {
            fs::remove_file(dir.join("layer-2-0")).unwrap();
            fs::create_dir(dir.join("layer-2-0")).unwrap();
        },
        "layer-2-0 is not a regular file: put the expert file in its place",
    );
    #[cfg(target_os = "linux")]
    check(
        |dir| {
            use rustix::fs::{CWD, FileType, Mode, mknodat};
            fs::remove_file(dir.join("layer-2-0")).unwrap();
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, dir.join("layer-2-0"), FileType::Fifo, mode, 0).unwrap();
        },
        "layer-2-0 is not a regular file: put the expert file in its place",
    );
    for len in [0, 32767, 32769] {
        check(
            |dir| resize(dir, len),
            &format!(
                "layer-2-0 has {len} bytes where 32768 belong: it was cut or replaced; fetch or \
                 pack it again"
            ),
        );
    }
}

/// A system that refuses to open any file.
struct Closed;

impl System for Closed {
    fn open(&self, _: &Path) -> io::Result<File> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn open_direct(&self, _: &Path) -> io::Result<(File, usize)> {
        unreachable!("no file was opened before")
    }
}

#[test]
fn refuses_files_that_cannot_be_opened() {
    let dir = TempDir::new().unwrap();
    let bank = bank::write(dir.path(), &[packed(8)]);
    let options = StoreOptions { allow_missing: true, ..options(IoMode::Pread) };
    let store = ExpertStore::open_with(bank, zeroed(), options, &Closed, |files| Box::new(files));
    let err = without_dir(&store.unwrap_err(), dir.path());
    assert_eq!(err, "cannot open layer-0-0: permission denied; make the file readable");
}

#[test]
fn a_missing_layer_may_be_allowed_to_add_nothing() {
    for mode in [IoMode::Mmap, IoMode::Pread, IoMode::Direct] {
        let options =
            StoreOptions { allow_missing: true, prefetch: Prefetch::LastToken, ..options(mode) };
        let store = open(|dir| fs::remove_file(dir.join("layer-0-0")).unwrap(), options).unwrap();
        assert!(store.warnings()[0].starts_with("layer 0 adds no routed experts: "));
        assert!(store.warnings()[0].ends_with("layer-0-0 is missing"));
        assert!(store.is_missing(LayerIdx(0)) && !store.is_missing(LayerIdx(2)));
        let mut arrivals = store.request(LayerIdx(0), &ids(&[1, 2]));
        assert!(arrivals.is_missing());
        assert!(arrivals.next_batch().unwrap().is_none());
        store.record(LayerIdx(0), &ids(&[1, 2]));
        store.begin_layer(LayerIdx(0));
        fetch(&store, 2, &[1, 2]);
    }
}

#[test]
fn files_that_no_layer_needs_are_not_opened() {
    let dir = TempDir::new().unwrap();
    let mut bank = bank::write(dir.path(), &[packed(8)]);
    let unused = moeflux_core::SourceFile::new(dir.path().join("nowhere"), 5);
    bank.files.push(unused);
    let store = ExpertStore::open(bank, zeroed(), options(IoMode::Mmap)).unwrap();
    fetch(&store, 0, &[3]);
}

#[test]
fn refuses_a_budget_below_one_layer_and_names_what_is_needed() {
    let options = StoreOptions { top_k: 4, cache_bytes: 4 * 4096 - 1, ..options(IoMode::Pread) };
    assert_eq!(
        open(|_| {}, options).unwrap_err(),
        "an expert cache of 16383 bytes is too small: 4 experts of 4096 bytes need 16384 \
         (expert_cache 16384)"
    );
    let enough = StoreOptions { cache_bytes: 4 * 4096, ..options };
    let store = open(|_| {}, enough).unwrap();
    assert_eq!(
        store.warnings(),
        ["the expert cache of 16.00 KiB holds 4 experts and one token uses 8: little will be \
          kept from token to token below 32.00 KiB"]
    );
    let plenty = StoreOptions { cache_bytes: u64::MAX, ..options };
    let store = open(|_| {}, plenty).unwrap();
    assert!(store.warnings().is_empty());
    assert_eq!(store.stats().n_slots, 16);
}

#[test]
fn a_slot_has_room_for_every_page_that_a_record_touches() {
    let dir = TempDir::new().unwrap();
    let odd = Shape::Packed { n_experts: 9, extents: vec![4096], stride: 4097 };
    let bank = bank::write(dir.path(), &[odd]);
    let store = ExpertStore::open(bank, zeroed(), options(IoMode::Pread)).unwrap();
    assert_eq!(store.slot_bytes(), 8192);
    fetch(&store, 0, &[0, 8]);
}

#[test]
fn a_bank_without_experts_opens() {
    for mode in [IoMode::Mmap, IoMode::Pread, IoMode::Direct] {
        let bank = moeflux_core::ExpertBank { files: vec![], layers: vec![None, None] };
        let options = StoreOptions { cache_bytes: 0, top_k: 8, ..options(mode) };
        let store = ExpertStore::open(bank, zeroed(), options).unwrap();
        assert_eq!(store.stats(), crate::StoreStats::default());
    }
}

#[test]
#[should_panic(expected = "lies outside")]
fn a_bank_that_points_outside_its_files_is_a_mistake() {
    let dir = TempDir::new().unwrap();
    let mut bank = bank::write(dir.path(), &[packed(8)]);
    bank.files[0].len = 100;
    let _ = ExpertStore::open(bank, zeroed(), options(IoMode::Pread));
}

#[test]
fn stores_are_shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<ExpertStore>();
}
