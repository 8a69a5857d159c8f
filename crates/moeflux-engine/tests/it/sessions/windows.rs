//! Sessions of models with layers that forget what their windows have passed.

use std::path::Path;

use moeflux_engine::{Engine, EngineOptions, Session, TokenId};

const CASES: [&str; 3] = ["gpt_oss-hf", "gemma4-hf", "deepseek_v4-hf"];

/// Tokens of a session, far more than a window and what is kept around it.
const N: usize = 1700;

/// Tokens after them.
const N_MORE: usize = 40;

fn open(case: &str, chunk: usize) -> Engine {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let options = EngineOptions::default().threads(Some(1)).ctx(2048).chunk(chunk);
    Engine::open(&golden.join(case), &options).unwrap()
}

fn tokens(engine: &Engine) -> Vec<TokenId> {
    let vocab = engine.shape().vocab as u32;
    (0..(N + N_MORE) as u32).map(|i| TokenId((i * i * 7 + i * 3 + 5) % vocab)).collect()
}

/// The bits of all logits of some tokens.
fn evaluate(session: &mut Session, tokens: &[TokenId]) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let mut push = |_: usize, logits: &[f32]| {
        all.push(logits.iter().map(|logit| logit.to_bits()).collect());
        Ok(())
    };
    session.eval_all(tokens, &mut push).unwrap();
    all
}

/// What a session that has all positions in its caches computes.
fn reference(case: &str) -> Vec<Vec<u32>> {
    let engine = open(case, 2048);
    let tokens = tokens(&engine);
    evaluate(&mut engine.session(), &tokens)
}

/// A session of the first `N` tokens, with a checkpoint at 400.
fn session_of(engine: &Engine, tokens: &[TokenId]) -> Session {
    let mut session = engine.session();
    session.eval_prompt(&tokens[..400]).unwrap();
    session.checkpoint(400).unwrap();
    session.eval_prompt(&tokens[400..N]).unwrap();
    session
}

#[test]
fn what_is_forgotten_changes_no_logit() {
    for case in CASES {
        let engine = open(case, 64);
        assert!(engine.shape().window().is_some(), "{case}");
        let (tokens, want) = (tokens(&engine), reference(case));
        let mut session = engine.session();
        assert!(evaluate(&mut session, &tokens) == want, "{case}");
        assert_eq!(session.checkpoints(), Some(vec![]), "{case}");
    }
}

#[test]
fn sessions_return_to_their_last_positions_and_to_checkpoints() {
    for case in CASES {
        let engine = open(case, 64);
        let (tokens, want) = (tokens(&engine), reference(case));
        let mut session = session_of(&engine, &tokens);
        assert_eq!(session.checkpoints(), Some(vec![400]), "{case}");
        for (position, n_again) in [(N - 300, 0), (400, 0), (200, 200)] {
            assert_eq!(session.truncate(position).unwrap(), n_again, "{case}, {position}");
            let first = position - n_again;
            assert_eq!(session.position(), first);
            assert!(evaluate(&mut session, &tokens[first..N]) == want[first..N], "{case}");
        }
        assert!(session.restore_to(300).is_err(), "{case}");
    }
}

#[test]
fn sessions_are_saved_with_what_their_windows_show() {
    let dir = tempfile::tempdir().unwrap();
    for case in CASES {
        let engine = open(case, 64);
        let (tokens, want) = (tokens(&engine), reference(case));
        let mut session = session_of(&engine, &tokens);
        let path = dir.path().join(case);
        session.save(&path).unwrap();
        let caches = &engine.shape().caches;
        let all: usize = caches.iter().map(|cache| cache.saved_bytes(&(0..N))).sum();
        assert!(std::fs::metadata(&path).unwrap().len() < all as u64, "{case}");
        let mut loaded = engine.session();
        loaded.load(&path).unwrap();
        assert!(evaluate(&mut loaded, &tokens[N..]) == want[N..], "{case}");
        loaded.restore_to(400).unwrap();
        assert!(evaluate(&mut loaded, &tokens[400..]) == want[400..], "{case}");
        loaded.load(&path).unwrap();
        assert_eq!(loaded.truncate(1000).unwrap(), 600, "{case}");
        assert!(evaluate(&mut loaded, &tokens[400..N]) == want[400..N], "{case}");
    }
}
