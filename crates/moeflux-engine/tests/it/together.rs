//! Several sessions in one step give the bits that each gives alone.

use std::path::Path;

use crate::common::{Golden, golden_dir};
use moeflux_engine::measure::{Phase, Workload, run, run_together};
use moeflux_engine::{
    ChunkInput, Engine, EngineOptions, Logits, SequenceChunk, Session, TokenId, eval_batch,
};
use moeflux_store::IoChoice;

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// What each position's logits are where a session is alone.
fn alone(engine: &Engine, tokens: &[TokenId]) -> Vec<Vec<u32>> {
    let mut session = engine.session();
    tokens.iter().map(|token| bits(&session.eval_token(*token).unwrap())).collect()
}

/// Runs sessions side by side, as many tokens of each a step as its pattern
/// says, and compares the logits of each step's last tokens.
#[track_caller]
fn check_timelines(engine: &Engine, timelines: &[Vec<TokenId>], patterns: &[&[usize]]) {
    let want: Vec<_> = timelines.iter().map(|tokens| alone(engine, tokens)).collect();
    let mut sessions: Vec<Session> = timelines.iter().map(|_| engine.session()).collect();
    for step in 0.. {
        let mut parts = Vec::new();
        let mut ends = Vec::new();
        for (i, session) in sessions.iter_mut().enumerate() {
            let rest = &timelines[i][session.position()..];
            let n = patterns[i][step % patterns[i].len()].min(rest.len());
            if n > 0 {
                ends.push((i, session.position() + n - 1));
                let wants_logits = (step + i) % 3 != 2;
                parts.push(SequenceChunk {
                    session,
                    input: ChunkInput::Tokens(&rest[..n]),
                    wants_logits,
                    checkpoint_after: i == 0,
                });
            }
        }
        if parts.is_empty() {
            break;
        }
        let wanted: Vec<bool> = parts.iter().map(|part| part.wants_logits).collect();
        let got: Vec<Option<Logits>> = eval_batch(&mut parts).unwrap();
        for (((i, end), got), is_wanted) in ends.into_iter().zip(got).zip(wanted) {
            assert_eq!(got.is_some(), is_wanted);
            if let Some(got) = got {
                assert!(bits(&got) == want[i][end], "step {step}, session {i}, position {end}");
            }
        }
    }
}

/// Sessions have the same bits alone and together.
pub(crate) fn check(case: &Path) {
    let tokens = Golden::read(case).sequences.pop().unwrap().tokens;
    let reversed: Vec<TokenId> = tokens.iter().rev().copied().collect();
    let timelines = [tokens.clone(), reversed, tokens[tokens.len() / 3..].to_vec()];
    let engine = Engine::open(case, &EngineOptions::default()).unwrap();
    check_timelines(&engine, &timelines, &[&[5, 1, 1], &[1], &[0, 0, 7, 1]]);
}

#[test]
fn a_session_that_may_not_go_on_leaves_the_others_as_they_are() {
    let dir = golden_dir().join("mlx-q4");
    let options = EngineOptions::default().ctx(Some(8));
    let engine = Engine::open(&dir, &options).unwrap();
    let tokens = &Golden::read(&dir).sequences.pop().unwrap().tokens;
    let (mut full, mut other) = (engine.session(), engine.session());
    full.eval_prompt(&tokens[..8]).unwrap();
    other.eval_prompt(&tokens[..2]).unwrap();
    let part = |session, tokens| SequenceChunk {
        session,
        input: ChunkInput::Tokens(tokens),
        wants_logits: true,
        checkpoint_after: false,
    };
    let mut parts = [part(&mut other, &tokens[2..3]), part(&mut full, &tokens[8..9])];
    let refused = eval_batch(&mut parts).unwrap_err().to_string();
    assert!(refused.contains("9 tokens do not fit into 8"), "{refused}");
    assert_eq!((other.position(), full.position()), (2, 8));
    let want = alone(&engine, &tokens[..3]);
    assert!(bits(&other.eval_token(tokens[2]).unwrap()) == want[2]);
}

#[test]
fn measured_conversations_evaluate_the_tokens_that_each_was_given() {
    let options = EngineOptions::default().sessions(Some(2)).expert_io(IoChoice::Pread);
    let engine = Engine::open(&golden_dir().join("hf-bf16"), &options).unwrap();
    let prompt: Vec<TokenId> = (0..5).map(TokenId).collect();
    let [one, other] = [20, 40].map(|first| (first..first + 8).map(TokenId).collect::<Vec<_>>());
    let work = |given| Workload { prompt: &prompt, n_gen: 8, given, is_cold: false };
    let together = |works: &[Workload<'_>]| run_together(&engine, works).unwrap();
    let alone = |given| run(&engine, &work(given)).unwrap().decode;
    let wanted = |phase: &Phase| phase.store.hits + phase.store.misses;
    for given in [&one[..], &other, &one[..3], &[]] {
        let same = together(&[work(given), work(given)]);
        assert_eq!((same.n_tokens, wanted(&same)), (16, wanted(&alone(given))), "{given:?}");
    }
    // Different tokens want more experts than one of them, and fewer than both one by one.
    let both = wanted(&together(&[work(&one), work(&other)]));
    let parts = [&one, &other].map(|given| wanted(&alone(given)));
    assert!(parts[0].max(parts[1]) < both && both <= parts[0] + parts[1], "{both}, {parts:?}");
}
