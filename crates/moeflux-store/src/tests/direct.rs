//! Reads past the page cache: whole blocks, and files that refuse them.

use moeflux_core::ExpertMemory;

use super::bank::{Shape, listed, packed, stacked};
use super::*;

fn direct() -> StoreOptions {
    options(IoMode::Direct)
}

fn shapes() -> [Shape; 4] {
    // Neither file of `Packed` and `Stacked` ends with a block.
    let odd = Shape::Packed { n_experts: 5, extents: vec![3000, 100, 901], stride: 4001 };
    [packed(8), stacked(5), listed(6), odd]
}

#[test]
fn reads_whole_blocks_and_keeps_their_slack() {
    for n_slots in [1, 3, 100] {
        let Fixture { dir: _dir, store, .. } = fixture(&shapes(), n_slots, direct());
        for _ in 0..3 {
            assert_eq!(stream(&store, 0, &[7, 0, 3]).unwrap(), 3);
            assert_eq!(stream(&store, 1, &[4, 1, 0, 2, 3]).unwrap(), 5);
            assert_eq!(stream(&store, 2, &[5, 4, 3, 2, 1, 0]).unwrap(), 6);
            assert_eq!(stream(&store, 3, &[4, 2]).unwrap(), 2);
        }
    }
}

#[test]
fn extents_begin_where_their_blocks_put_them() {
    let Fixture { dir: _dir, store, .. } = fixture(&shapes(), 8, direct());
    let held = fetch(&store, 3, &[3]);
    let ExpertMemory::Owned { starts, .. } = &held[0].memory else { panic!("a mapped expert") };
    let lead = 3 * 4001 % BLOCK;
    assert_eq!(*starts, [lead, lead + 3000, lead + 3100]);
}

#[test]
fn real_files_are_read_directly() {
    let dir = TempDir::new().unwrap();
    let bank = bank::write(dir.path(), &shapes());
    let store = match ExpertStore::open(bank, zeroed(), direct()) {
        Ok(store) => store,
        // Not every file system can.
        Err(StoreError::NoDirect { .. }) => return,
        Err(err) => panic!("{err}"),
    };
    for (layer, n_experts) in [(0, 8), (1, 5), (2, 6), (3, 5)] {
        let experts: Vec<u16> = (0..n_experts).collect();
        assert_eq!(fetch(&store, layer, &experts).len(), experts.len());
    }
}

fn open_refused(options: StoreOptions) -> Result<ExpertStore, String> {
    let dir = TempDir::new().unwrap();
    let bank = bank::write(dir.path(), &[packed(8)]);
    let system = Pretended { direct: || Err(io::ErrorKind::InvalidInput.into()) };
    let store = ExpertStore::open_with(bank, zeroed(), options, &system, |file| Box::new(file));
    store.map_err(|err| without_dir(&err, dir.path()))
}

#[test]
fn a_file_that_refuses_is_named() {
    assert_eq!(
        open_refused(direct()).unwrap_err(),
        "layer-0-0 cannot be read directly: invalid input parameter; expert_io pread reads it \
         through the page cache"
    );
}

#[test]
fn a_file_that_refuses_is_read_through_the_page_cache_where_that_was_allowed() {
    let store = open_refused(StoreOptions { may_fall_back: true, ..direct() }).unwrap();
    assert_eq!(store.options().mode, IoMode::Pread);
    let warning = &store.warnings()[0];
    assert!(warning.starts_with("experts are read through the page cache: "), "{warning}");
    fetch(&store, 0, &[1, 5]);
}

#[test]
fn a_device_that_refuses_later_is_no_broken_drive() {
    let fixture = fixture(&[packed(8)], 2, direct());
    fixture.control.expect_blocks(8192);
    let err = stream(&fixture.store, 0, &[1]).unwrap_err();
    assert!(matches!(err, StoreError::NoDirect { .. }), "{err}");
}
