//! Rows a second of a table in a file: requested at once and gathered in chunks, as for a prompt, and
//! token by token.
//!
//! ```text
//! cargo run --release -p moeflux-store --example rows -- FILE [direct|pread] [TOKENS] [READERS]
//! ```
//!
//! The file is taken for rows of 160 numbers in E4M3, of which a token needs 16 at random places.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a report")]

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use moeflux_core::{FileIdx, RowBank, RowEncoding, RowPart, RowTable, SourceFile, SplitMix64};
use moeflux_store::{IoMode, RowStats, RowStore, RowStoreOptions, StoreError};

const COLS: usize = 160;
const PER_TOKEN: usize = 16;
const CHUNK_TOKENS: usize = 512;

/// Readers that are tried where the command line names no number.
const READERS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        eprintln!("usage: rows FILE [direct|pread] [TOKENS] [READERS]");
        return ExitCode::FAILURE;
    };
    let mode = if args.next().as_deref() == Some("pread") { IoMode::Pread } else { IoMode::Direct };
    let mut number = || args.next().and_then(|text| text.parse::<usize>().ok());
    let n_tokens = number().unwrap_or(4096);
    let readers = number().map_or(READERS.to_vec(), |n| vec![n]);
    for n_readers in readers {
        if let Err(err) = measure(Path::new(&path), mode, n_tokens, n_readers) {
            eprintln!("{err}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn open(path: &Path, mode: IoMode, n_readers: usize) -> Result<RowStore, StoreError> {
    let opened =
        path.metadata().map_err(|source| StoreError::Open { path: path.to_path_buf(), source });
    let len = opened?.len();
    let table = RowTable {
        name: String::from("table"),
        cols: COLS,
        encoding: RowEncoding::F8E4M3,
        scale: 1.0,
        parts: vec![RowPart { file: FileIdx(0), offset: 0, rows: len / COLS as u64 }],
    };
    let bank =
        RowBank { files: vec![SourceFile::new(path.to_path_buf(), len)], tables: vec![table] };
    let cache_bytes = 128 << 20;
    RowStore::open(bank, RowStoreOptions { mode, may_fall_back: false, cache_bytes, n_readers })
}

fn measure(path: &Path, mode: IoMode, n_tokens: usize, n_readers: usize) -> Result<(), StoreError> {
    let store = open(path, mode, n_readers)?;
    let n_rows = store.bank().tables[0].rows();
    let mut key = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
    let mut random = |n: usize| -> Vec<u64> {
        let next = || {
            key = key.wrapping_add(SplitMix64::STEP);
            SplitMix64::mix(key) % n_rows
        };
        std::iter::repeat_with(next).take(n).collect()
    };
    let mut out = Vec::new();
    let prompt = random(n_tokens * PER_TOKEN);
    let start = Instant::now();
    let request = store.request(0, prompt.clone());
    let mut first = Duration::ZERO;
    for chunk in prompt.chunks(CHUNK_TOKENS * PER_TOKEN) {
        store.gather(0, chunk, &mut out)?;
        if first.is_zero() {
            first = start.elapsed();
        }
    }
    drop(request);
    let time = start.elapsed().as_secs_f64();
    let RowStats { reads, bytes_read, .. } = store.stats();
    println!(
        "{n_readers:3} readers: a prompt of {n_tokens} tokens {:.0} rows/s, {reads} reads, {:.1} MB/s; \
         first chunk after {:.1} ms, all after {:.1} ms",
        prompt.len() as f64 / time,
        bytes_read as f64 / time / 1e6,
        1e3 * first.as_secs_f64(),
        1e3 * time,
    );
    let n_decoded = 500;
    let start = Instant::now();
    for _ in 0..n_decoded {
        store.gather(0, &random(PER_TOKEN), &mut out)?;
    }
    let time = start.elapsed().as_secs_f64() / f64::from(n_decoded);
    println!("{n_readers:3} readers: the rows of one token {:.0} us", 1e6 * time);
    Ok(())
}
