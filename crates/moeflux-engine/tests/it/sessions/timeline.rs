//! Going back, saving and loading, one at a time and in any order.

use std::fs;

use moeflux_engine::{EngineError, EngineOptions, Session, StateError, TokenId};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::{Subject, bits, families, subjects};

#[test]
fn saved_and_loaded_at_any_position_nothing_is_different() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.snapshot");
    for (i, subject) in subjects().iter().enumerate() {
        // Every position of the first of three types, some of the others.
        let step = if i % 3 == 0 { 1 } else { 7 };
        for position in (0..subject.tokens.len()).step_by(step) {
            let (before, after) = (&subject.tokens[..position], position);
            let mut session = subject.engine.session();
            if position > 0 {
                session.eval_prompt(before).unwrap();
            }
            session.save(&file).unwrap();
            let mut loaded = subject.engine.session();
            loaded.eval_token(subject.tokens[3]).unwrap();
            loaded.load(&file).unwrap();
            assert_eq!((loaded.tokens(), loaded.n_unknown()), (before, 0));
            subject.check_rest(&mut loaded, after);
            if let Ok(size) = session.state_size() {
                let mut bytes = vec![0; size];
                assert_eq!(session.state_save(&mut bytes).unwrap(), size);
                let mut loaded = subject.engine.session();
                loaded.eval_token(subject.tokens[3]).unwrap();
                loaded.state_load(&bytes).unwrap();
                assert_eq!((loaded.tokens(), loaded.n_unknown()), (&[][..], position));
                subject.check_rest(&mut loaded, after);
            }
            subject.check_rest(&mut session, after);
        }
    }
}

#[test]
fn the_wire_format_has_the_originals_sizes() {
    for subject in subjects() {
        let mut session = subject.engine.session();
        let shape = subject.engine.shape();
        let Ok(empty) = session.state_size() else { continue };
        session.eval_prompt(&subject.tokens[..5]).unwrap();
        let size = session.state_size().unwrap();
        // Floats, whatever the cache keeps.
        let plain = EngineOptions::default();
        let plain = Subject::open(subject.dir.clone(), &plain);
        // What multi-token prediction keeps is no part of it.
        let n_own = shape.caches.len() - shape.n_mtp_caches;
        let floats =
            plain.engine.shape().caches[..n_own].iter().map(|cache| cache.bytes_per_position());
        assert_eq!(size - empty, 5 * floats.sum::<usize>());
        let own = &shape.caches[..n_own];
        let is_latent = own
            .iter()
            .any(|cache| matches!(cache, moeflux_engine::CacheSpec::Pages { v_dim: 0, .. }));
        let n_growing = own.iter().filter(|cache| !cache.is_recurrent()).count();
        let header = if is_latent { 40 } else { 32 };
        let state = subject.engine.plan().state_bytes as usize;
        assert_eq!(empty, header + 4 * n_growing + state);
        let mut short = vec![7; size - 1];
        let refused = session.state_save(&mut short).unwrap_err();
        let EngineError::State(StateError::BufferTooSmall { have, need }) = refused else {
            panic!("{refused}");
        };
        assert_eq!((have, need), (size - 1, size));
        assert!(short.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn checkpoints_are_where_the_session_is_and_nowhere_else() {
    for subject in subjects() {
        let mut session = subject.engine.session();
        session.eval_prompt(&subject.tokens[..6]).unwrap();
        for wrong in [0, 5, 7] {
            let refused = session.checkpoint(wrong).unwrap_err();
            assert!(matches!(refused, EngineError::WrongPosition { actual: 6, .. }), "{refused}");
        }
        session.checkpoint(6).unwrap();
        session.eval_prompt(&subject.tokens[6..15]).unwrap();
        let refused = session.restore_to(16).unwrap_err();
        assert!(matches!(refused, EngineError::NoCheckpoint { position: 16 }), "{refused}");
        if subject.engine.shape().is_recurrent() {
            assert!(session.restore_to(7).is_err());
        }
        assert_eq!(session.tokens(), &subject.tokens[..15]);
        session.restore_to(6).unwrap();
        assert_eq!(session.tokens(), &subject.tokens[..6]);
        subject.check_rest(&mut session, 6);
        session.restore_to(6).unwrap();
        subject.check_rest(&mut session, 6);
        session.restore_to(0).unwrap();
        subject.check_rest(&mut session, 0);
        // What was behind a position is gone with it.
        assert!(session.checkpoints().is_none_or(|checkpoints| checkpoints.is_empty()));
    }
}

#[test]
fn truncating_to_any_position_says_what_to_replay() {
    for subject in subjects() {
        let n = subject.tokens.len();
        for position in 0..=n {
            let mut session = subject.engine.session();
            session.eval_prompt(&subject.tokens[..9]).unwrap();
            session.checkpoint(9).unwrap();
            session.eval_prompt(&subject.tokens[9..]).unwrap();
            let replay = session.truncate(position).unwrap();
            let want = match position {
                _ if !subject.engine.shape().is_recurrent() || position == n => 0,
                0..9 => position,
                _ => position - 9,
            };
            assert_eq!(replay, want);
            subject.check_rest(&mut session, position - replay);
            let beyond = session.truncate(n + 1).unwrap_err();
            assert!(matches!(beyond, EngineError::BeyondEnd { .. }), "{beyond}");
        }
    }
}

#[test]
fn a_budget_too_small_for_a_copy_is_said() {
    for dir in families() {
        let options = EngineOptions::default().checkpoint_bytes(Some(1));
        let subject = Subject::open(dir, &options);
        let mut session = subject.engine.session();
        session.eval_prompt(&subject.tokens[..6]).unwrap();
        let result = session.checkpoint(6);
        if subject.engine.shape().is_recurrent() {
            let refused = result.unwrap_err();
            assert!(matches!(refused, EngineError::CheckpointBudget { .. }), "{refused}");
            assert_eq!(session.truncate(5).unwrap(), 5);
        } else {
            result.unwrap();
            assert_eq!(session.truncate(5).unwrap(), 0);
        }
    }
}

#[test]
fn interleaved_sessions_do_not_see_each_other() {
    for subject in subjects() {
        let tokens = &subject.tokens;
        let [mut first, mut second] = [0; 2].map(|_| subject.engine.session());
        for (at, token) in tokens.iter().enumerate() {
            assert!(bits(&first.eval_token(*token).unwrap()) == subject.want[at]);
            if at % 3 == 2 {
                second.checkpoint(second.position()).unwrap();
                assert!(bits(&second.eval_prompt(&tokens[at - 2..=at]).unwrap()).len() > 1);
                second.restore_to(at - 2).unwrap();
                let logits = second.eval_prompt(&tokens[at - 2..=at]).unwrap();
                assert!(bits(&logits) == subject.want[at], "{}", subject.dir.display());
            }
        }
    }
}

/// Something that happens to a session.
#[derive(Clone, Debug)]
enum Act {
    Eval(usize),
    /// Tokens that belong to another text.
    Stray(usize),
    Checkpoint,
    Restore(usize),
    Truncate(usize),
    SaveAndLoad,
    StateSaveAndLoad,
    Prompt(usize, usize),
    Clear,
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..6usize).prop_map(Act::Eval),
        1 => (1..4usize).prop_map(Act::Stray),
        3 => Just(Act::Checkpoint),
        2 => (0..24usize).prop_map(Act::Restore),
        2 => (0..24usize).prop_map(Act::Truncate),
        1 => Just(Act::SaveAndLoad),
        1 => Just(Act::StateSaveAndLoad),
        2 => (1..24usize, 0..24usize).prop_map(|(n, mark)| Act::Prompt(n, mark)),
        1 => Just(Act::Clear),
    ]
}

/// The logits' bits of a fresh session that ends with these tokens.
fn fresh(subject: &Subject, tokens: &[TokenId]) -> Vec<u32> {
    bits(&subject.engine.session().eval_prompt(tokens).unwrap())
}

/// Does one thing to the session and to `held`, the tokens that it must hold.
fn act(
    subject: &Subject,
    session: &mut Session,
    held: &mut Vec<TokenId>,
    act: &Act,
) -> Result<(), TestCaseError> {
    let n = held.len();
    match *act {
        Act::Eval(k) | Act::Stray(k) => {
            let stray = matches!(act, Act::Stray(_));
            let start = if stray { 1 } else { n.min(subject.tokens.len() - 1) };
            let new = subject.tokens[start..].iter().take(k).copied().collect::<Vec<_>>();
            let logits = session.eval_prompt(&new).unwrap();
            held.extend(new);
            prop_assert!(bits(&logits) == fresh(subject, held), "eval {held:?}");
        }
        Act::Checkpoint => session.checkpoint(n).unwrap(),
        Act::Restore(to) => match session.restore_to(to) {
            Ok(()) => held.truncate(to),
            Err(EngineError::NoCheckpoint { .. }) => {
                let known = session.checkpoints();
                prop_assert!(
                    to > n || known.is_some_and(|checkpoints| !checkpoints.contains(&to)) && to > 0
                );
            }
            Err(err) => prop_assert!(false, "{err}"),
        },
        Act::Truncate(to) if to > n => prop_assert!(session.truncate(to).is_err()),
        Act::Truncate(to) => {
            let replay = session.truncate(to).unwrap();
            held.truncate(to - replay);
        }
        Act::SaveAndLoad => {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("s");
            session.save(&file).unwrap();
            let mut other = subject.engine.session();
            other.load(&file).unwrap();
            *session = other;
            prop_assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        Act::StateSaveAndLoad => {
            if let Ok(size) = session.state_size() {
                let mut bytes = vec![0; size];
                session.state_save(&mut bytes).unwrap();
                session.state_load(&bytes).unwrap();
                prop_assert!(session.tokens().is_empty());
            }
        }
        Act::Prompt(k, mark) => {
            let tokens = &subject.tokens[..k];
            let checkpoints = [mark];
            let prompt = moeflux_engine::Prompt {
                tokens,
                checkpoints: &checkpoints,
                ..moeflux_engine::Prompt::default()
            };
            let read = session.eval_conversation(prompt, &mut |_| {}).unwrap();
            prop_assert!(read.n_reused < k);
            *held = tokens.to_vec();
            prop_assert!(bits(&read.logits) == subject.want[k - 1], "prompt of {k}");
        }
        Act::Clear => {
            session.clear();
            held.clear();
        }
    }
    prop_assert_eq!(session.position(), held.len());
    prop_assert_eq!(session.tokens(), &held[session.n_unknown()..]);
    Ok(())
}

#[test]
fn whatever_happens_a_session_gives_a_fresh_ones_bits() {
    for subject in subjects() {
        let config = Config { cases: 16, failure_persistence: None, ..Config::default() };
        let acts = proptest::collection::vec(any_act(), 1..14);
        let run = |acts: Vec<Act>| {
            let (mut session, mut held) = (subject.engine.session(), Vec::new());
            for next in &acts {
                act(&subject, &mut session, &mut held, next)?;
            }
            held.push(subject.tokens[0]);
            let logits = session.eval_token(subject.tokens[0]).unwrap();
            prop_assert!(bits(&logits) == fresh(&subject, &held), "the end");
            Ok(())
        };
        if let Err(err) = TestRunner::new(config).run(&acts, run) {
            panic!("{}: {err}", subject.dir.display());
        }
    }
}
