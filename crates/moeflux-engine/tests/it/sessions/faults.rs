//! Snapshots that are damaged or of something else, and steps that fail:
//! refused with the right error, and nothing has changed.

use std::fs;
use std::path::Path;

use moeflux_convert::pack::PackOptions;
use moeflux_convert::pack_checkpoint;
use moeflux_core::OptionId;
use moeflux_engine::{
    Activations, Engine, EngineError, EngineOptions, KvType, Session, SnapshotError, StateError,
};
use moeflux_store::{IoChoice, StoreError};
use proptest::test_runner::{Config, TestRunner};

use super::{Subject, bits, families};
use crate::common::golden_dir;

use proptest::prelude::*;

/// A session in the middle of its tokens, and what it saved before.
fn begun(subject: &Subject, dir: &Path) -> (Session, Vec<u8>) {
    let mut session = subject.engine.session();
    session.eval_prompt(&subject.tokens[..3]).unwrap();
    session.checkpoint(3).unwrap();
    session.eval_prompt(&subject.tokens[3..7]).unwrap();
    let file = dir.join("good");
    session.save(&file).unwrap();
    session.eval_prompt(&subject.tokens[7..9]).unwrap();
    (session, fs::read(file).unwrap())
}

fn load(session: &mut Session, dir: &Path, bytes: &[u8]) -> Result<(), SnapshotError> {
    let file = dir.join("bad");
    fs::write(&file, bytes).unwrap();
    session.load(&file).map_err(|err| match err {
        EngineError::Snapshot(err) => err,
        err => panic!("{err}"),
    })
}

#[track_caller]
fn check_unchanged(subject: &Subject, session: &mut Session) {
    assert_eq!(session.tokens(), &subject.tokens[..9]);
    assert!(session.checkpoints().is_none_or(|checkpoints| checkpoints == [3]));
    let logits = session.eval_prompt(&subject.tokens[9..12]).unwrap();
    assert!(bits(&logits) == subject.want[11], "{}", subject.dir.display());
}

#[test]
fn every_shorter_snapshot_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for family in families() {
        let subject = Subject::open(family, &EngineOptions::default());
        let (mut session, good) = begun(&subject, dir.path());
        let path = dir.path().join("bad");
        fs::write(&path, &good).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        // All lengths of the beginning, some of the rest.
        let is_tried = |n: &usize| *n < 1500 || n.is_multiple_of(37) || n + 40 > good.len();
        for len in (0..good.len()).rev().filter(is_tried) {
            file.set_len(len as u64).unwrap();
            let err = match session.load(&path).unwrap_err() {
                EngineError::Snapshot(err) => err,
                err => panic!("{err}"),
            };
            let is_short = matches!(err, SnapshotError::Length { .. });
            let is_tiny = matches!(err, SnapshotError::NotASnapshot { .. }) && len < 8;
            assert!(is_short || is_tiny, "{len} bytes: {err}");
        }
        let longer = [&good[..], &[0]].concat();
        let err = load(&mut session, dir.path(), &longer).unwrap_err();
        assert!(matches!(err, SnapshotError::Length { .. }), "{err}");
        check_unchanged(&subject, &mut session);
        assert!(load(&mut session, dir.path(), &good).is_ok());
        subject.check_rest(&mut session, 7);
    }
}

#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    for family in families() {
        let subject = Subject::open(family, &EngineOptions::default());
        let (session, good) = begun(&subject, dir.path());
        let session = std::cell::RefCell::new(session);
        let config = Config { cases: 120, failure_persistence: None, ..Config::default() };
        let place = prop_oneof![0..good.len(), 0..good.len().min(600)];
        let run = |(at, bit): (usize, u32)| {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            let refused = load(&mut session.borrow_mut(), dir.path(), &bytes);
            prop_assert!(refused.is_err(), "byte {at}");
            Ok(())
        };
        TestRunner::new(config).run(&(place, 0..8u32), run).unwrap();
        check_unchanged(&subject, &mut session.borrow_mut());
    }
}

#[test]
fn snapshots_of_something_else_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let families = families();
    let plain = EngineOptions::default();
    let subject = Subject::open(families[0].clone(), &plain);
    let (mut session, good) = begun(&subject, dir.path());
    let mut version = good.clone();
    version[8] = 9;
    let err = load(&mut session, dir.path(), &version).unwrap_err();
    assert!(matches!(err, SnapshotError::Version { got: 9, known: 1, .. }), "{err}");
    let err = load(&mut session, dir.path(), b"{\"format\": \"moeflux-chat\"}").unwrap_err();
    assert!(matches!(err, SnapshotError::NotASnapshot { .. }), "{err}");
    let missing = session.load(&dir.path().join("none")).unwrap_err();
    assert!(matches!(missing, EngineError::Snapshot(SnapshotError::Io { .. })), "{missing}");
    check_unchanged(&subject, &mut session);

    let refused = |dir: &Path, path: &Path, options: EngineOptions| {
        let mut session = Engine::open(path, &options).unwrap().session();
        load(&mut session, dir, &good).unwrap_err()
    };
    let own = &families[0];
    let q8 = plain.clone().kv_type(KvType::Q8);
    let err = refused(dir.path(), own, q8);
    let is_kv = matches!(&err, SnapshotError::OtherOption { option: OptionId::KvType, .. });
    assert!(is_kv && err.to_string().contains("f32, now it is q8"), "{err}");
    let full = plain.clone().activations(Activations::Full);
    let err = refused(dir.path(), own, full);
    assert!(
        matches!(err, SnapshotError::OtherOption { option: OptionId::Activations, .. }),
        "{err}"
    );
    let fewer = plain.clone().experts_per_token(Some(1));
    let err = refused(dir.path(), own, fewer);
    assert!(matches!(err, SnapshotError::OtherModel { .. }), "{err}");
    let short = plain.clone().ctx(Some(6));
    let err = refused(dir.path(), own, short);
    assert!(matches!(err, SnapshotError::TooLong { positions: 7, limit: 6, .. }), "{err}");
    for other in &families[1..] {
        let err = refused(dir.path(), other, plain.clone());
        assert!(matches!(err, SnapshotError::OtherModel { .. }), "{err}");
    }
}

#[test]
fn a_copy_of_the_model_is_the_same_model_and_changed_weights_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let subject = Subject::open(families()[0].clone(), &EngineOptions::default());
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&subject.dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let identity = || {
        let engine = Engine::open(&copy, &EngineOptions::default()).unwrap();
        engine.identity().to_owned()
    };
    assert_eq!(identity(), subject.engine.identity());
    let weights = copy.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    assert_ne!(identity(), subject.engine.identity());
}

fn state(session: &mut Session) -> Option<Vec<u8>> {
    let mut bytes = vec![0; session.state_size().ok()?];
    session.state_save(&mut bytes).unwrap();
    Some(bytes)
}

fn load_state(session: &mut Session, bytes: &[u8]) -> StateError {
    match session.state_load(bytes) {
        Err(EngineError::State(err)) => err,
        other => panic!("{other:?}"),
    }
}

#[test]
fn states_that_do_not_fit_are_refused_with_the_right_error() {
    let dir = tempfile::tempdir().unwrap();
    for family in families() {
        let subject = Subject::open(family, &EngineOptions::default());
        let (mut session, _) = begun(&subject, dir.path());
        let Some(good) = state(&mut session) else { continue };
        for len in (0..good.len()).filter(|len| *len < 200 || len % 499 == 0) {
            let err = load_state(&mut session, &good[..len]);
            assert!(matches!(err, StateError::Truncated { .. }), "{len} bytes: {err}");
        }
        let with_word = |at: usize, value: u32| {
            let mut bytes = good.clone();
            bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        let err = load_state(&mut session, &with_word(0, 1));
        assert!(matches!(err, StateError::BadMagic { got: 1, want: 0x4D46_4C58 }), "{err}");
        let err = load_state(&mut session, &with_word(1, 3));
        assert!(matches!(err, StateError::BadVersion { got: 3 }), "{err}");
        let version = u32::from_le_bytes(*good[4..].first_chunk().unwrap());
        let n_fields = if version == 1 { 6 } else { 8 };
        for field in 0..n_fields {
            let err = load_state(&mut session, &with_word(2 + field, 999_999));
            assert!(matches!(err, StateError::ShapeMismatch { got: 999_999, .. }), "{err}");
        }
        if version == 2 {
            assert_eq!(load_state(&mut session, &with_word(1, 1)), StateError::MlaUnsupported);
        }
        let err = load_state(&mut session, &[&good[..], &[1, 2]].concat());
        assert_eq!(err, StateError::TrailingBytes { n: 2 });
        if !subject.engine.shape().caches[0].is_recurrent() {
            let err = load_state(&mut session, &with_word(2 + n_fields, u32::MAX));
            assert_eq!(err, StateError::NegativeLen { layer: 0, len: -1 });
            let err = load_state(&mut session, &with_word(2 + n_fields, i32::MAX as u32));
            assert!(matches!(err, StateError::LenOverflow { .. }), "{err}");
            let err = load_state(&mut session, &with_word(2 + n_fields, 8));
            assert!(!matches!(err, StateError::BadMagic { .. }), "{err}");
        }
        check_unchanged(&subject, &mut session);
    }
}

#[test]
fn both_versions_of_a_state_without_latent_attention_are_read() {
    let dir = tempfile::tempdir().unwrap();
    for family in families() {
        let subject = Subject::open(family, &EngineOptions::default());
        let (mut session, _) = begun(&subject, dir.path());
        let Some(good) = state(&mut session).filter(|state| state[4] == 1) else { continue };
        let second = [&good[..4], &[2, 0, 0, 0], &good[8..32], &[0; 8], &good[32..]].concat();
        let mut loaded = subject.engine.session();
        loaded.state_load(&second).unwrap();
        subject.check_rest(&mut loaded, 9);
    }
}

#[test]
fn after_a_state_was_loaded_a_failed_step_goes_back_to_it() {
    for family in families() {
        let subject = Subject::open(family, &EngineOptions::default());
        let mut session = subject.engine.session();
        session.eval_prompt(&subject.tokens[..5]).unwrap();
        let Some(bytes) = state(&mut session) else { continue };
        session.state_load(&bytes).unwrap();
        session.eval_prompt(&subject.tokens[5..8]).unwrap();
        // A saved state holds no tokens, so those of the first five positions are unknown.
        let replay = session.truncate(6).unwrap();
        subject.check_rest(&mut session, 6 - replay);
        session.restore_to(5).unwrap();
        assert_eq!((session.n_unknown(), session.tokens()), (5, &[][..]));
        subject.check_rest(&mut session, 5);
        // A prompt shares nothing with what is unknown.
        assert_eq!(session.match_prefix(&subject.tokens).unwrap(), 0);
        subject.check_rest(&mut session, 0);
    }
}

/// The smallest options under which experts are read again and again.
fn streaming(dir: &Path) -> EngineOptions {
    let options = |bytes| {
        EngineOptions::default()
            .expert_io(IoChoice::Pread)
            .expert_cache(Some(bytes))
            .threads(Some(1))
    };
    match Engine::open(dir, &options(0)).err().unwrap() {
        EngineError::Store(StoreError::BudgetTooSmall { needed, .. }) => options(needed),
        err => panic!("{err}"),
    }
}

#[test]
fn a_step_that_fails_between_checkpoints_is_made_good_from_the_last_one() {
    for case in ["mlx-q4", "qwen3_moe-mlx-q4", "deepseek_v3-mlx-q4"] {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        let source = golden_dir().join(case);
        pack_checkpoint(&source, &model, &PackOptions::unquantised(), &mut |_| {}).unwrap();
        let subject = Subject::with_tokens_of(&source, model.clone(), &streaming(&model));
        let layers: Vec<_> = fs::read_dir(model.join("packed_experts")).unwrap().collect();
        let mut layers: Vec<_> = layers.into_iter().map(|layer| layer.unwrap().path()).collect();
        layers.sort();
        let contents: Vec<_> = layers.iter().map(|layer| fs::read(layer).unwrap()).collect();
        for knows_tokens in [true, false] {
            for last in 0..layers.len() {
                let mut session = subject.engine.session();
                session.eval_prompt(&subject.tokens[..5]).unwrap();
                session.checkpoint(5).unwrap();
                if !knows_tokens {
                    let Some(bytes) = state(&mut session) else { continue };
                    session.state_load(&bytes).unwrap();
                }
                session.eval_prompt(&subject.tokens[5..8]).unwrap();
                for file in &layers[last..] {
                    fs::File::options().write(true).open(file).unwrap().set_len(0).unwrap();
                }
                let failed = session.eval_prompt(&subject.tokens[8..]).unwrap_err();
                assert!(matches!(failed, EngineError::Store(_)), "{failed}");
                assert_eq!(session.position(), 8);
                for (file, bytes) in layers.iter().zip(&contents) {
                    fs::write(file, bytes).unwrap();
                }
                subject.check_rest(&mut session, 8);
            }
        }
    }
}

#[test]
fn a_chunk_whose_logits_are_not_taken_is_rolled_back() {
    let dir = tempfile::tempdir().unwrap();
    for family in families() {
        let subject = Subject::open(family, &EngineOptions::default());
        let (mut session, _) = begun(&subject, dir.path());
        for n_taken in [0, 2] {
            let mut left = n_taken;
            let mut sink = |_, _: &[f32]| {
                left = usize::checked_sub(left, 1).ok_or(EngineError::EmptyPrompt)?;
                Ok(())
            };
            let outcome = session.eval_all(&subject.tokens[9..13], &mut sink);
            assert!(matches!(outcome, Err(EngineError::EmptyPrompt)), "{outcome:?}");
            assert_eq!(session.tokens(), &subject.tokens[..9]);
        }
        check_unchanged(&subject, &mut session);
    }
}
