//! Drives that fail and files that change under a running store.

use std::fs::OpenOptions;
use std::io;

use moeflux_core::LayerIdx;

use super::bank::{packed, stacked};
use super::probe::Fault;
use super::*;

/// The modes that read into slots.
const MODES: [IoMode; 2] = [IoMode::Pread, IoMode::Direct];

fn resize(fixture: &Fixture, name: &str, len: u64) {
    let file = OpenOptions::new().write(true).open(fixture.dir.path().join(name)).unwrap();
    file.set_len(len).unwrap();
}

#[track_caller]
fn check_error(fixture: &Fixture, experts: &[u16], want: &str) {
    let err = stream(&fixture.store, 0, experts).unwrap_err();
    assert_eq!(without_dir(&err, fixture.dir.path()), want);
}

#[test]
fn short_and_interrupted_reads_are_continued() {
    for mode in MODES {
        let fixture = fixture(&[stacked(4)], 4, options(mode));
        fixture.control.limit(700);
        for _ in 0..3 {
            fixture.control.spoil(0, Fault::Error(io::ErrorKind::Interrupted));
        }
        fetch(&fixture.store, 0, &[0, 1, 2, 3]);
    }
}

#[test]
fn a_failed_read_is_reported_and_its_slot_serves_again() {
    for mode in MODES {
        let fixture = fixture(&[packed(8), packed(8)], 1, options(mode));
        fixture.control.spoil(0, Fault::Error(io::ErrorKind::ConnectionReset));
        check_error(
            &fixture,
            &[3],
            "layer-0-0: expert 3 of layer 0: 0 of 4000 bytes at offset 12288: connection reset; check the drive",
        );
        fetch(&fixture.store, 1, &[5]);
        fetch(&fixture.store, 0, &[3]);
    }
}

#[test]
fn one_failed_read_does_not_keep_the_others_from_arriving() {
    for mode in MODES {
        let Fixture { dir: _dir, store, control } = fixture(&[packed(8)], 8, options(mode));
        control.spoil(0, Fault::Error(io::ErrorKind::Other));
        let mut arrivals = store.request(LayerIdx(0), &ids(&[0, 1, 2, 3]));
        let (mut n_arrived, mut n_failed) = (0, 0);
        loop {
            match arrivals.next_batch() {
                Ok(Some(batch)) => n_arrived += batch.len(),
                Ok(None) => break,
                Err(_) => n_failed += 1,
            }
        }
        assert_eq!((n_arrived, n_failed), (3, 1));
    }
}

#[test]
fn a_second_request_for_a_failing_read_tries_again() {
    for mode in MODES {
        let Fixture { dir: _dir, store, control } = fixture(&[packed(8)], 8, options(mode));
        control.hold();
        let mut first = store.request(LayerIdx(0), &ids(&[2]));
        let mut second = store.request(LayerIdx(0), &ids(&[2]));
        control.spoil(0, Fault::Error(io::ErrorKind::Other));
        control.release();
        assert!(first.next_batch().is_err());
        assert_eq!(second.next_batch().unwrap().unwrap().len(), 1);
    }
}

#[test]
fn a_request_does_not_fail_for_a_read_that_an_earlier_one_left_behind() {
    for mode in MODES {
        let Fixture { dir: _dir, store, control } = fixture(&[packed(8)], 8, options(mode));
        control.hold();
        let left_behind = store.request(LayerIdx(0), &ids(&[2]));
        control.begun(1);
        drop(left_behind);
        let mut later = store.request(LayerIdx(0), &ids(&[2]));
        control.spoil(0, Fault::Error(io::ErrorKind::Other));
        control.release();
        assert_eq!(later.next_batch().unwrap().unwrap().len(), 1);
    }
}

#[test]
fn a_request_does_not_fail_for_a_read_that_was_predicted() {
    for mode in MODES {
        let Fixture { dir: _dir, store, control } = fixture(&[packed(8)], 8, options(mode));
        control.hold();
        store.prefetch(LayerIdx(0), &ids(&[2]));
        control.begun(1);
        let mut wanted = store.request(LayerIdx(0), &ids(&[2]));
        control.spoil(0, Fault::Error(io::ErrorKind::Other));
        control.release();
        assert_eq!(wanted.next_batch().unwrap().unwrap().len(), 1);
    }
}

#[test]
fn an_early_end_of_a_file_of_full_length_is_a_short_read() {
    for mode in MODES {
        let fixture = fixture(&[packed(8)], 2, options(mode));
        fixture.control.spoil(0, Fault::End);
        check_error(
            &fixture,
            &[1],
            "layer-0-0: expert 1 of layer 0: 0 of 4000 bytes at offset 4096: check the drive",
        );
    }
}

#[test]
fn a_file_cut_while_running_is_named_with_both_lengths() {
    for mode in MODES {
        let fixture = fixture(&[packed(8)], 2, options(mode));
        fetch(&fixture.store, 0, &[1]);
        resize(&fixture, "layer-0-0", 4096 * 5 + 17);
        let want = "layer-0-0 has 20497 bytes where 32768 belong: it was cut or replaced; fetch or pack it again";
        check_error(&fixture, &[2, 5], want);
        check_error(&fixture, &[4], want);
    }
}

#[test]
fn a_file_written_to_while_running_is_noticed_at_the_next_read() {
    for mode in [IoMode::Pread, IoMode::Direct, IoMode::Mmap] {
        let fixture = fixture(&[packed(8), packed(8)], 2, options(mode));
        fetch(&fixture.store, 0, &[1]);
        let path = fixture.dir.path().join("layer-0-0");
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let then = file.metadata().unwrap().modified().unwrap();
        file.set_modified(then + std::time::Duration::from_secs(1)).unwrap();
        check_error(
            &fixture,
            &[4],
            "layer-0-0: it was written to while the model runs; start again",
        );
        fetch(&fixture.store, 1, &[4]);
    }
}

/// Only on Unix: Windows does not allow a mapped file to be resized.
#[cfg(unix)]
#[test]
fn a_mapped_file_that_changes_length_is_refused_before_it_is_touched() {
    for len in [4096, 32769] {
        let fixture = fixture(&[packed(8), packed(8)], 2, options(IoMode::Mmap));
        fetch(&fixture.store, 0, &[1, 7]);
        resize(&fixture, "layer-0-0", len);
        check_error(
            &fixture,
            &[1],
            &format!(
                "layer-0-0 has {len} bytes where 32768 belong: it was cut or replaced; fetch or \
                 pack it again"
            ),
        );
        fetch(&fixture.store, 1, &[1, 7]);
        fixture.store.prefetch(LayerIdx(0), &ids(&[2]));
        resize(&fixture, "layer-0-0", 32768);
        fetch(&fixture.store, 1, &[2]);
    }
}

#[test]
fn random_faults_never_lose_a_slot() {
    for mode in MODES {
        let Fixture { dir: _dir, store, control } =
            fixture(&[packed(8), stacked(8)], 3, options(mode));
        for round in 0..200u16 {
            let layer = round % 2;
            let kind =
                [io::ErrorKind::Other, io::ErrorKind::Interrupted][usize::from(round / 2 % 2)];
            control.spoil(u32::from(layer), Fault::Error(kind));
            let experts = [round % 8, (round + 3) % 8, (round + 5) % 8];
            // Half of the requests are dropped at their first error.
            let _ = stream(&store, layer, &experts);
        }
        for layer in 0..2 {
            // Faults that have not occurred yet occur here, where they are expected.
            while stream(&store, layer, &[0, 1, 2, 3, 4, 5, 6, 7]).is_err() {}
            assert_eq!(fetch(&store, layer, &[0, 4, 7]).len(), 3);
        }
    }
}
