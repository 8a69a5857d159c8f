//! Reads that fail, end early or come late.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use moeflux_core::{FileIdx, HostBuf, OutOfMemory, RowEncoding};

use super::super::reader::BufAlloc;
use super::fixture::{Fixture, options};
use crate::drive::{Files, Source};
use crate::{IoMode, StoreError};

/// What goes wrong with reads of the first file.
#[derive(Debug, Default)]
struct Control {
    /// How many of the next reads fail.
    n_failures: AtomicUsize,
    /// Bytes that a read brings at most; 0 for all.
    longest: AtomicUsize,
    /// The file seems to end here; 0 for its end.
    end: AtomicU64,
    n_reads: AtomicUsize,
    /// How many of the next allocations fail.
    n_refusals: AtomicUsize,
}

#[derive(Debug)]
struct Faulty {
    files: Files,
    control: Arc<Control>,
}

impl Source for Faulty {
    fn read_at(&self, file: FileIdx, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if file.0 > 0 {
            return self.files.read_at(file, buf, offset);
        }
        let control = &self.control;
        control.n_reads.fetch_add(1, Ordering::SeqCst);
        let left = |n: usize| n.checked_sub(1);
        if control.n_failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            return Err(io::Error::from_raw_os_error(5));
        }
        let mut n = buf.len();
        match control.longest.load(Ordering::SeqCst) {
            0 => {}
            longest => n = n.min(longest),
        }
        match control.end.load(Ordering::SeqCst) {
            0 => {}
            end => n = n.min(usize::try_from(end.saturating_sub(offset)).unwrap()),
        }
        self.files.read_at(file, &mut buf[..n], offset)
    }

    fn len(&self, file: FileIdx) -> io::Result<u64> {
        self.files.len(file)
    }

    fn is_changed(&self, file: FileIdx) -> bool {
        self.files.is_changed(file)
    }
}

fn faulty(mode: IoMode) -> (Fixture, Arc<Control>) {
    let control = Arc::new(Control::default());
    let shared = Arc::clone(&control);
    let wrap = |files| Box::new(Faulty { files, control: shared }) as Box<dyn Source>;
    let shared = Arc::clone(&control);
    let alloc: BufAlloc = Box::new(move |len| {
        let left = |n: usize| n.checked_sub(1);
        match shared.n_refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
            Ok(_) => Err(OutOfMemory { bytes: len as u64 }),
            Err(_) => HostBuf::try_zeroed(len),
        }
    });
    (Fixture::with(RowEncoding::F8E4M3, options(mode, 1 << 20), None, wrap, alloc), control)
}

#[test]
fn a_failed_read_fails_one_gather_and_names_the_place() {
    let (fixture, control) = faulty(IoMode::Pread);
    control.n_failures.store(1, Ordering::SeqCst);
    let err = fixture.store.gather(0, &[3, 1500], &mut Vec::new()).unwrap_err();
    let StoreError::Io { offset, wanted, got, .. } = &err else { panic!("{err}") };
    assert_eq!((*offset, *wanted, *got), (96 + 3 * 16, 16, 0));
    let text = err.to_string();
    assert!(text.contains("0.bin") && text.contains("layers.0.table"), "{text}");
    fixture.check(0, &[3, 1500]);
}

#[test]
fn a_failed_read_ahead_is_tried_again_by_the_gather() {
    let (fixture, control) = faulty(IoMode::Pread);
    control.n_failures.store(1, Ordering::SeqCst);
    let request = fixture.store.request(0, vec![3]);
    while control.n_failures.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
    // The gather may still join the read that fails.
    if fixture.store.gather(0, &[3], &mut Vec::new()).is_err() {
        fixture.check(0, &[3]);
    }
    drop(request);
}

#[test]
fn a_reader_without_memory_fails_the_gather_and_serves_the_next() {
    // Farther apart than rows that share a read.
    let rows: Vec<u64> = (0..7).map(|i| i * 290).collect();
    for mode in [IoMode::Pread, IoMode::Direct] {
        for n_refusals in [1, rows.len()] {
            let (fixture, control) = faulty(mode);
            control.n_refusals.store(n_refusals, Ordering::SeqCst);
            let err = fixture.store.gather(0, &rows, &mut Vec::new()).unwrap_err();
            assert!(matches!(err, StoreError::NoRowMemory(_)), "{err}");
            assert!(err.to_string().contains("rows of tables"), "{err}");
            control.n_refusals.store(0, Ordering::SeqCst);
            // A gather may still join reads of the one that failed.
            while fixture.store.gather(0, &rows, &mut Vec::new()).is_err() {}
            fixture.check(0, &rows);
        }
    }
}

#[test]
fn reads_that_bring_few_bytes_go_on() {
    for (mode, longest) in [(IoMode::Pread, 5), (IoMode::Direct, 512)] {
        let (fixture, control) = faulty(mode);
        control.longest.store(longest, Ordering::SeqCst);
        fixture.check(0, &(0..300).collect::<Vec<_>>());
    }
}

#[test]
fn the_end_of_a_file_where_rows_belong_is_an_error() {
    let (fixture, control) = faulty(IoMode::Direct);
    control.end.store(96 + 100 * 16, Ordering::SeqCst);
    fixture.check(0, &[2, 3]);
    let err = fixture.store.gather(0, &[650], &mut Vec::new()).unwrap_err();
    assert!(matches!(err, StoreError::ShortRead { .. }), "{err}");
    fixture.check(0, &[2, 3, 1999]);
}

#[test]
fn a_file_that_was_cut_is_named() {
    let (fixture, _control) = faulty(IoMode::Pread);
    let path = fixture.dir.path().join("0.bin");
    File::options().write(true).open(path).unwrap().set_len(200).unwrap();
    let err = fixture.store.gather(0, &[650], &mut Vec::new()).unwrap_err();
    assert!(matches!(err, StoreError::Resized { actual: 200, .. }), "{err}");
}

#[test]
fn rows_of_a_request_and_its_gather_are_read_once() {
    let (fixture, control) = faulty(IoMode::Pread);
    for round in 0..50 {
        let row = round * 14;
        let before = control.n_reads.load(Ordering::SeqCst);
        let request = fixture.store.request(0, vec![row]);
        fixture.check(0, &[row]);
        assert_eq!(control.n_reads.load(Ordering::SeqCst) - before, 1);
        drop(request);
    }
}
