//! Snapshots and states: whatever is refused changes nothing.
#![no_main]

use std::fs;
use std::path::Path;
use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use moeflux_core::checkpoint::Checksum;
use moeflux_engine::{Engine, EngineOptions, Session, TokenId};

/// A session that holds four tokens, its snapshot and its state.
struct Begun {
    session: Session,
    snapshot: Vec<u8>,
    state: Vec<u8>,
    dir: tempfile::TempDir,
}

static BEGUN: LazyLock<Mutex<Begun>> = LazyLock::new(|| {
    let case = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/moeflux-engine/tests/golden/mlx-q4");
    let options = EngineOptions::default().threads(Some(1));
    let engine = Engine::open(Path::new(case), &options).expect("a golden case");
    let dir = tempfile::tempdir().expect("a folder");
    let mut session = engine.session();
    session.eval_prompt(&[1, 2, 3, 4].map(TokenId)).expect("a prompt");
    session.save(&dir.path().join("good")).expect("a snapshot");
    let snapshot = fs::read(dir.path().join("good")).expect("a snapshot");
    let mut state = vec![0; session.state_size().unwrap_or(0)];
    if !state.is_empty() {
        session.state_save(&mut state).expect("a state");
    }
    Mutex::new(Begun { session, snapshot, state, dir })
});

/// Overwrites, from `at` on, and cuts to `len`.
type Damage<'a> = (u16, u16, &'a [u8]);

fn damaged(good: &[u8], (at, cut, with): Damage<'_>) -> Vec<u8> {
    let mut bytes = good.to_vec();
    let at = usize::from(at).min(bytes.len());
    let n = with.len().min(bytes.len() - at);
    bytes[at..at + n].copy_from_slice(&with[..n]);
    bytes.truncate(good.len() - usize::from(cut).min(good.len()));
    bytes
}

fuzz_target!(|input: (bool, Damage<'_>)| {
    let (has_checksum, damage) = input;
    let begun = &mut *BEGUN.lock().expect("one thread");
    let before = begun.session.tokens().to_vec();
    let mut bytes = damaged(&begun.snapshot, damage);
    if has_checksum && bytes.len() > 32 {
        let end = bytes.len() - 32;
        let mut checksum = Checksum::default();
        checksum.update(&bytes[..end]);
        bytes[end..].copy_from_slice(checksum.hex().as_bytes());
    }
    let file = begun.dir.path().join("bad");
    fs::write(&file, bytes).expect("room for a snapshot");
    if begun.session.load(&file).is_err() {
        assert_eq!(begun.session.tokens(), before);
    }
    let position = begun.session.position();
    if begun.session.state_load(&damaged(&begun.state, damage)).is_err() {
        assert_eq!(begun.session.position(), position);
    }
    if begun.session.position() < 100 {
        let _ = begun.session.eval_token(TokenId(5));
    } else {
        begun.session.clear();
    }
});
