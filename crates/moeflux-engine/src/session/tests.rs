//! Rejected drafts leave a session as if there had been none.

use std::fs;
use std::path::{Path, PathBuf};

use moeflux_core::TokenId;

use super::{DraftChunk, SequenceChunk, Session, eval_draft_batch};
use crate::engine::Engine;
use crate::options::EngineOptions;
use crate::positions::input::ChunkInput;
use crate::step::RowLogits;

const N: usize = 24;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// One model of every family.
fn models() -> Vec<PathBuf> {
    let all = fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path());
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
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

fn bits(next: &RowLogits) -> Vec<u32> {
    let RowLogits::All(logits) = next else { panic!("all logits are wanted") };
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The logits after each token, evaluated one by one.
fn alone(engine: &Engine, text: &[TokenId]) -> Vec<Vec<u32>> {
    let mut session = engine.session();
    text.iter().map(|token| bits(&session.eval_next(*token, None).unwrap())).collect()
}

/// The length of drafts, and how many of their tokens are accepted.
const DRAFTS: [(usize, usize); 7] = [(3, 3), (3, 1), (0, 0), (4, 0), (2, 2), (5, 4), (1, 0)];

/// Evaluates a token and a draft and rolls the rejected rest back; gives the logits' bits.
fn draft(session: &mut Session, text: &[TokenId], n: usize, n_accepted: usize) -> Vec<Vec<u32>> {
    let at = session.position();
    let n = n.min(text.len() - at - 1);
    let n_accepted = n_accepted.min(n);
    let mut draft = text[at + 1..at + 1 + n].to_vec();
    draft[n_accepted..].iter_mut().for_each(|token| token.0 ^= 1);
    assert!(session.prepare_rollback());
    let next = session.eval_draft(text[at], &draft, None).unwrap();
    assert_eq!((next.len(), session.position()), (n + 1, at + 1 + n));
    session.roll_back(n - n_accepted).unwrap();
    assert_eq!(session.tokens(), &text[..at + 1 + n_accepted]);
    next[..=n_accepted].iter().map(bits).collect()
}

#[test]
fn every_family_has_the_same_bits_with_accepted_and_rejected_drafts() {
    for dir in models() {
        let engine = open(&dir, EngineOptions::default());
        let text = text(&engine);
        let want = alone(&engine, &text);
        let mut session = engine.session();
        let mut drafts = DRAFTS.into_iter().cycle();
        while session.position() < N {
            let at = session.position();
            let (n, n_accepted) = drafts.next().unwrap();
            let got = draft(&mut session, &text, n, n_accepted);
            assert!(got[..] == want[at..at + got.len()], "{}: from {at}", dir.display());
        }
    }
}

#[test]
fn a_session_goes_on_from_any_rejected_draft() {
    for name in ["mlx-q4", "qwen3_next-hf", "gpt_oss-hf"] {
        let engine = open(&golden().join(name), EngineOptions::default());
        let text = text(&engine);
        let want = alone(&engine, &text);
        let begun = || {
            let mut session = engine.session();
            draft(&mut session, &text, 3, 3);
            draft(&mut session, &text, 4, 1);
            assert_eq!(session.position(), 6);
            session
        };
        // A token by itself, and a prompt.
        assert!(bits(&begun().eval_next(text[6], None).unwrap()) == want[6]);
        let logits = begun().eval_prompt(&text[6..9]).unwrap();
        assert!(bits(&RowLogits::All(logits)) == want[8]);
        // A checkpoint, to which it returns from later drafts.
        let mut session = begun();
        session.checkpoint(6).unwrap();
        draft(&mut session, &text, 5, 2);
        session.restore_to(6).unwrap();
        assert!(draft(&mut session, &text, 2, 1)[..] == want[6..8]);
        // A file.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saved");
        let mut session = begun();
        session.save(&path).unwrap();
        let mut other = engine.session();
        other.load(&path).unwrap();
        assert!(draft(&mut other, &text, 4, 0)[..] == want[6..7]);
        assert!(draft(&mut session, &text, 1, 1)[..] == want[6..8]);
        // The same prompt again, another one, and nothing.
        let mut session = begun();
        assert_eq!(session.match_prefix(&text[..7]).unwrap(), 6);
        assert!(bits(&session.eval_next(text[6], None).unwrap()) == want[6]);
        session.clear();
        assert!(draft(&mut session, &text, 2, 0)[..] == want[..1]);
    }
}

#[test]
fn drafts_prompts_and_single_tokens_share_a_step() {
    let engine = open(&golden().join("mlx-q4"), EngineOptions::default());
    let text = text(&engine);
    let want = alone(&engine, &text);
    let (mut one, mut other, mut reader) = (engine.session(), engine.session(), engine.session());
    draft(&mut one, &text, 4, 1);
    draft(&mut other, &text, 2, 2);
    assert_eq!((one.state.n_pending(), other.state.n_pending()), (1, 0));
    assert!(one.prepare_rollback() && other.prepare_rollback());
    let chunk = |session, tokens, wants_logits| SequenceChunk {
        session,
        input: ChunkInput::Tokens(tokens),
        wants_logits,
        checkpoint_after: false,
    };
    let (first, second) = (&text[2..5], &text[3..4]);
    let mut chunks = [
        DraftChunk { chunk: chunk(&mut one, first, true), n_drafted: 2, n_scored: 0 },
        DraftChunk { chunk: chunk(&mut reader, &text[..7], false), n_drafted: 0, n_scored: 0 },
        DraftChunk { chunk: chunk(&mut other, second, true), n_drafted: 0, n_scored: 0 },
    ];
    let next = eval_draft_batch(&mut chunks, None).unwrap();
    let got: Vec<Vec<Vec<u32>>> =
        next.iter().map(|logits| logits.iter().map(bits).collect()).collect();
    assert!(got[0][..] == want[2..5] && got[1].is_empty() && got[2][..] == want[3..4]);
    one.roll_back(1).unwrap();
    assert!(bits(&one.eval_next(text[4], None).unwrap()) == want[4]);
    assert!(bits(&reader.eval_next(text[7], None).unwrap()) == want[7]);
}

#[test]
fn a_failed_step_removes_its_drafts() {
    for name in ["mlx-q4", "gpt_oss-hf"] {
        let engine = open(&golden().join(name), EngineOptions::default());
        let text = text(&engine);
        let want = alone(&engine, &text);
        let mut session = engine.session();
        draft(&mut session, &text, 4, 1);
        for _ in 0..2 {
            assert!(session.prepare_rollback());
            engine.core().n_refused = 1;
            session.eval_draft(text[2], &text[3..6], None).unwrap_err();
            assert_eq!(session.tokens(), &text[..2]);
        }
        assert!(draft(&mut session, &text, 3, 2)[..] == want[2..5]);
    }
}

#[test]
fn without_memory_for_states_nothing_is_drafted() {
    let options = EngineOptions::default().checkpoint_bytes(Some(0));
    let engine = open(&golden().join("mlx-q4"), options);
    let mut session = engine.session();
    assert!(!session.prepare_rollback());
    // Without recurrent layers there are none.
    let options = EngineOptions::default().checkpoint_bytes(Some(0));
    assert!(open(&golden().join("gpt_oss-hf"), options).session().prepare_rollback());
}
