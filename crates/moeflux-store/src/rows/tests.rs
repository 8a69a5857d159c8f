//! The guarantees of the row store to its callers, tested on real files.

mod faults;
mod fixture;
mod random;

use moeflux_core::RowEncoding;
use moeflux_core::quant::Float;

use self::fixture::{Fixture, encoded, options, value};
use crate::IoMode;

#[test]
fn rows_of_every_encoding_are_what_the_files_hold() {
    let encodings = [
        RowEncoding::Float(Float::F32),
        RowEncoding::Float(Float::F16),
        RowEncoding::Float(Float::BF16),
        RowEncoding::F8E4M3,
    ];
    for encoding in encodings {
        for mode in [IoMode::Pread, IoMode::Direct] {
            let fixture = Fixture::new(encoding, options(mode, 1 << 20));
            let all: Vec<u64> = (0..fixture.rows(0)).collect();
            fixture.check(0, &all);
            fixture.check(1, &[fixture.rows(1) - 1, 0, 7, 7, 0]);
        }
    }
}

#[test]
fn values_are_the_same_with_any_cache() {
    for budget in [0, 200, 5000, 1 << 20] {
        let fixture = Fixture::new(RowEncoding::F8E4M3, options(IoMode::Direct, budget));
        let rows: Vec<u64> = (0..3000).map(|i| i * 7919 % fixture.rows(0)).collect();
        let request = fixture.store.request(0, rows.clone());
        for chunk in rows.chunks(700) {
            fixture.check(0, chunk);
        }
        drop(request);
        fixture.check(0, &rows);
        let stats = fixture.store.stats();
        assert_eq!(stats.rows, 6000);
        assert!(stats.resident <= stats.n_slots, "{stats:?}");
    }
}

#[test]
fn rows_that_are_there_are_not_read_again() {
    let fixture = Fixture::new(RowEncoding::F8E4M3, options(IoMode::Pread, 1 << 20));
    fixture.check(0, &[3, 900, 3]);
    let first = fixture.store.stats();
    assert_eq!((first.rows, first.rows_read), (3, 2));
    fixture.check(0, &[900, 3]);
    let again = fixture.store.stats();
    assert_eq!((again.rows, again.ready, again.rows_read), (5, 2, 2));
    fixture.store.reset_stats();
    assert_eq!(fixture.store.stats().rows, 0);
}

#[test]
fn neighbours_are_one_read_and_distant_rows_are_not() {
    let fixture = Fixture::new(RowEncoding::Float(Float::F32), options(IoMode::Pread, 0));
    fixture.check(0, &[1, 0, 2, 5]);
    assert_eq!(fixture.store.stats().reads, 1);
    // Rows of different files, and more than a gap apart.
    fixture.check(0, &[0, fixture.rows(0) - 1, 600]);
    assert_eq!(fixture.store.stats().reads, 4);
}

#[test]
fn requested_rows_are_read_without_a_gather_and_stay_until_one() {
    let fixture = Fixture::new(RowEncoding::F8E4M3, options(IoMode::Pread, 40 * (16 + 72)));
    let wanted: Vec<u64> = (0..10).map(|i| i * 90).collect();
    let request = fixture.store.request(0, wanted.clone());
    fixture.wait_until(|stats| stats.rows_read == 10);
    // Others pass through the rest of the cache.
    for i in 0..20 {
        fixture.check(0, &(0..40).map(|j| i * 40 + j + 1000).collect::<Vec<_>>());
    }
    let before = fixture.store.stats();
    fixture.check(0, &wanted);
    let after = fixture.store.stats();
    assert_eq!(after.ready - before.ready, 10);
    assert_eq!(after.rows_read, before.rows_read);
    drop(request);
}

#[test]
fn a_withdrawn_request_makes_room() {
    let fixture = Fixture::new(RowEncoding::F8E4M3, options(IoMode::Pread, 40 * (16 + 72)));
    for round in 0..20 {
        let rows: Vec<u64> = (0..30).map(|i| round * 50 + i).collect();
        let request = fixture.store.request(0, rows);
        fixture.wait_until(|stats| stats.rows_read == 30 * (round + 1));
        drop(request);
    }
}

#[test]
fn a_long_request_is_read_as_the_cache_has_room() {
    let slots = 100;
    let fixture = Fixture::new(RowEncoding::F8E4M3, options(IoMode::Pread, slots * (16 + 72)));
    let rows: Vec<u64> = (0..1500).map(|i| i * 7 % fixture.rows(0)).collect();
    let request = fixture.store.request(0, rows.clone());
    fixture.wait_until(|stats| stats.rows_read == 75);
    for chunk in rows.chunks(25) {
        fixture.check(0, chunk);
    }
    drop(request);
    let stats = fixture.store.stats();
    assert!(stats.rows_read <= 1500, "{stats:?}");
}

#[test]
fn threads_gather_at_the_same_time() {
    let fixture = Fixture::new(RowEncoding::F8E4M3, options(IoMode::Direct, 10_000));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fixture = &fixture;
            scope.spawn(move || {
                for round in 0..20 {
                    let rows: Vec<u64> =
                        (0..200).map(|i| (i * 13 + round * 31 + thread) % 1900).collect();
                    let request = fixture.store.request(0, rows.clone());
                    fixture.check(0, &rows);
                    drop(request);
                }
            });
        }
    });
}

#[test]
fn a_row_that_is_no_number_is_refused_by_name() {
    let fixture = Fixture::damaged(RowEncoding::F8E4M3, options(IoMode::Pread, 1 << 20), 17);
    fixture.check(0, &[16, 18]);
    let err = fixture.store.gather(0, &[16, 17], &mut Vec::new()).unwrap_err().to_string();
    assert!(err.contains("row 17 of layers.0.table"), "{err}");
}

#[test]
fn what_a_value_encodes_is_what_it_decodes() {
    let bytes = encoded(RowEncoding::F8E4M3, 0, 3);
    assert_eq!(bytes.len(), fixture::COLS);
    assert!(value(RowEncoding::F8E4M3, 0, 3, 2).is_finite());
}
