//! Guesses that are taken back leave a session as if there had been none.

use std::fs;
use std::path::{Path, PathBuf};

use moeflux_core::TokenId;

use super::{Guessed, Next, Part, Session, eval_next_together};
use crate::engine::Engine;
use crate::options::EngineOptions;

const N: usize = 24;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// One model of every family.
fn models() -> Vec<PathBuf> {
    let all = fs::read_dir(golden()).unwrap().map(|it| it.unwrap().path());
    let is_one = |it: &PathBuf| {
        let name = it.file_name().unwrap().to_str().unwrap();
        name.ends_with("-hf") || name.ends_with("-mtp") || name == "mlx-q4" || name == "hf-bf16"
    };
    let models: Vec<PathBuf> = all.filter(is_one).collect();
    assert!(models.len() >= 10, "{models:?}");
    models
}

fn open(dir: &Path, options: EngineOptions) -> Engine {
    Engine::open(dir, &options.ctx(Some(N))).unwrap()
}

fn text(engine: &Engine) -> Vec<TokenId> {
    let vocab = u32::try_from(engine.shape().vocab).unwrap();
    (0..N as u32).map(|i| TokenId((7 * i * i + 3 * i + 1) % vocab)).collect()
}

fn bits(next: &Next) -> Vec<u32> {
    let Next::Logits(logits) = next else { panic!("all logits are wanted") };
    logits.iter().map(|it| it.to_bits()).collect()
}

/// The logits behind each token, evaluated one by one.
fn alone(engine: &Engine, text: &[TokenId]) -> Vec<Vec<u32>> {
    let mut session = engine.session();
    text.iter().map(|it| bits(&session.eval_next(*it, None).unwrap())).collect()
}

/// Guesses that are right so far, and wrong from there on.
const GUESSES: [(usize, usize); 7] = [(3, 3), (3, 1), (0, 0), (4, 0), (2, 2), (5, 4), (1, 0)];

/// A token and a guess: what may follow each, and the rest of the guess taken back.
fn guess(session: &mut Session, text: &[TokenId], (n, n_right): (usize, usize)) -> Vec<Vec<u32>> {
    let at = session.position();
    let n = n.min(text.len() - at - 1);
    let n_right = n_right.min(n);
    let mut guess = text[at + 1..at + 1 + n].to_vec();
    guess[n_right..].iter_mut().for_each(|it| it.0 ^= 1);
    assert!(session.mark());
    let next = session.eval_guess(text[at], &guess, None).unwrap();
    assert_eq!((next.len(), session.position()), (n + 1, at + 1 + n));
    session.take_back(n - n_right).unwrap();
    assert_eq!(session.tokens(), &text[..at + 1 + n_right]);
    next[..=n_right].iter().map(bits).collect()
}

#[test]
fn every_family_has_the_same_bits_with_guesses_right_and_wrong() {
    for dir in models() {
        let engine = open(&dir, EngineOptions::default());
        let text = text(&engine);
        let want = alone(&engine, &text);
        let mut session = engine.session();
        let mut guesses = GUESSES.into_iter().cycle();
        while session.position() < N {
            let at = session.position();
            let got = guess(&mut session, &text, guesses.next().unwrap());
            assert!(got[..] == want[at..at + got.len()], "{}: from {at}", dir.display());
        }
    }
}

#[test]
fn whatever_comes_behind_a_wrong_guess_finds_the_session_where_that_began() {
    for name in ["mlx-q4", "qwen3_next-hf", "gpt_oss-hf"] {
        let engine = open(&golden().join(name), EngineOptions::default());
        let text = text(&engine);
        let want = alone(&engine, &text);
        let begun = || {
            let mut session = engine.session();
            guess(&mut session, &text, (3, 3));
            guess(&mut session, &text, (4, 1));
            assert_eq!(session.position(), 6);
            session
        };
        // A token by itself, and a prompt.
        assert!(bits(&begun().eval_next(text[6], None).unwrap()) == want[6]);
        let logits = begun().eval_prompt(&text[6..9]).unwrap();
        assert!(bits(&Next::Logits(logits)) == want[8]);
        // A checkpoint, to which it returns from later guesses.
        let mut session = begun();
        session.checkpoint(6).unwrap();
        guess(&mut session, &text, (5, 2));
        session.restore_to(6).unwrap();
        assert!(guess(&mut session, &text, (2, 1))[..] == want[6..8]);
        // A file.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saved");
        let mut session = begun();
        session.save(&path).unwrap();
        let mut other = engine.session();
        other.load(&path).unwrap();
        assert!(guess(&mut other, &text, (4, 0))[..] == want[6..7]);
        assert!(guess(&mut session, &text, (1, 1))[..] == want[6..8]);
        // The same prompt again, another one, and nothing.
        let mut session = begun();
        assert_eq!(session.reuse(&text[..7]).unwrap(), 6);
        assert!(bits(&session.eval_next(text[6], None).unwrap()) == want[6]);
        session.clear();
        assert!(guess(&mut session, &text, (2, 0))[..] == want[..1]);
    }
}

#[test]
fn sessions_guess_beside_each_other_and_beside_prompts() {
    let engine = open(&golden().join("mlx-q4"), EngineOptions::default());
    let text = text(&engine);
    let want = alone(&engine, &text);
    let (mut one, mut other, mut reader) = (engine.session(), engine.session(), engine.session());
    guess(&mut one, &text, (4, 1));
    guess(&mut other, &text, (2, 2));
    assert_eq!((one.n_pending(), other.n_pending()), (1, 0));
    assert!(one.mark() && other.mark());
    let part =
        |session, tokens, wants_logits| Part { session, tokens, wants_logits, is_mark: false };
    let (first, second) = (&text[2..5], &text[3..4]);
    let mut parts = [
        Guessed { part: part(&mut one, first, true), n_guessed: 2 },
        Guessed { part: part(&mut reader, &text[..7], false), n_guessed: 0 },
        Guessed { part: part(&mut other, second, true), n_guessed: 0 },
    ];
    let next = eval_next_together(&mut parts, None).unwrap();
    let got: Vec<Vec<Vec<u32>>> = next.iter().map(|it| it.iter().map(bits).collect()).collect();
    assert!(got[0][..] == want[2..5] && got[1].is_empty() && got[2][..] == want[3..4]);
    one.take_back(1).unwrap();
    assert!(bits(&one.eval_next(text[4], None).unwrap()) == want[4]);
    assert!(bits(&reader.eval_next(text[7], None).unwrap()) == want[7]);
}

#[test]
fn a_step_that_fails_takes_its_guess_along() {
    for name in ["mlx-q4", "gpt_oss-hf"] {
        let engine = open(&golden().join(name), EngineOptions::default());
        let text = text(&engine);
        let want = alone(&engine, &text);
        let mut session = engine.session();
        guess(&mut session, &text, (4, 1));
        for _ in 0..2 {
            assert!(session.mark());
            engine.core().n_refused = 1;
            session.eval_guess(text[2], &text[3..6], None).unwrap_err();
            assert_eq!(session.tokens(), &text[..2]);
        }
        assert!(guess(&mut session, &text, (3, 2))[..] == want[2..5]);
    }
}

#[test]
fn who_may_keep_no_states_guesses_nothing() {
    let options = EngineOptions::default().checkpoint_bytes(Some(0));
    let engine = open(&golden().join("mlx-q4"), options);
    let mut session = engine.session();
    assert!(!session.mark());
    // Without recurrent layers there are none.
    let options = EngineOptions::default().checkpoint_bytes(Some(0));
    assert!(open(&golden().join("gpt_oss-hf"), options).session().mark());
}
