//! Rows of a session that are embeddings, at positions of three parts.

use std::path::{Path, PathBuf};

use crate::common::{self, Golden};
use crate::embedded::{GoldenRows, cases};
use moeflux_engine::{
    Activations, ChunkInput, EMBEDDED, Engine, EngineOptions, InputRow, Prompt, PromptCacheOptions,
    RowInput, RowPosition, SequenceChunk, TokenId, eval_batch,
};
use moeflux_store::{IoChoice, Prefetch};
use safetensors::{Dtype, SafeTensors};

fn case() -> PathBuf {
    cases()[0].clone()
}

fn exact() -> EngineOptions {
    EngineOptions::default().activations(Activations::Full)
}

#[test]
fn rows_agree_with_the_reference_however_they_are_cut_and_experts_come() {
    // As few experts as one row needs.
    let streamed = exact().expert_io(IoChoice::Pread).expert_cache(Some(64 << 10));
    let streamed = streamed.prefetch(Prefetch::Lookahead);
    let options = [
        exact().expert_io(IoChoice::Mmap),
        exact().threads(Some(1)).isa(Some(String::from("scalar"))).chunk(Some(5)),
        streamed.chunk(Some(3)),
    ];
    for case in cases() {
        let rows = GoldenRows::read(&case);
        for expected in rows.expected() {
            let mut all = Vec::new();
            for options in &options {
                let engine = Engine::open(&case, options).unwrap();
                all.extend([usize::MAX, 7, 1].map(|n| rows.check(&engine, expected, n)));
            }
            assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}

#[test]
fn tokens_at_their_own_positions_are_text() {
    let engine = Engine::open(&case(), &exact()).unwrap();
    let tokens = [3, 1, 4, 1, 5].map(TokenId);
    let want = engine.session().eval_prompt(&tokens).unwrap();
    let at = |(i, token): (u32, &TokenId)| InputRow::token(*token).at(RowPosition::text(i));
    let rows: Vec<InputRow<'_>> = (0..).zip(&tokens).map(at).collect();
    let mut session = engine.session();
    assert!(session.eval_rows(&rows).unwrap() == want);
    let prompt = Prompt::from(&tokens[..]);
    assert_eq!(session.eval_conversation(prompt, &mut |_| {}).unwrap().n_reused, 4);
    // Any family takes them.
    let mlx = Engine::open(&common::golden_dir().join("mlx-q4"), &exact()).unwrap();
    assert!(mlx.session().eval_rows(&rows).unwrap() == mlx.session().eval_prompt(&tokens).unwrap());
}

/// The embeddings of a model's own tokens, with their factor; `None` where they are quantised.
fn own_embeddings(case: &Path) -> Option<Vec<f32>> {
    let bytes = std::fs::read(case.join("model.safetensors")).ok()?;
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (_, table) = tensors
        .iter()
        .find(|(name, _)| name.ends_with("language_model.embed_tokens.weight"))
        .or_else(|| tensors.iter().find(|(name, _)| name.ends_with("model.embed_tokens.weight")))?;
    let halves = || table.data().as_chunks::<2>().0.iter();
    let float = |half: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
    let factor = embedding_factor(case, table.shape()[1]);
    (table.dtype() == Dtype::BF16).then(|| halves().map(|half| float(half) * factor).collect())
}

/// By what a model multiplies embeddings of tokens.
fn embedding_factor(case: &Path, hidden: usize) -> f32 {
    let config = std::fs::read(case.join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    match config["embedding_multiplier"].as_f64() {
        Some(factor) => factor as f32,
        None if config.to_string().contains("gemma4") => (hidden as f32).sqrt(),
        None => 1.0,
    }
}

#[test]
fn embeddings_of_tokens_give_their_logits_in_every_family_wherever_all_of_them_stand() {
    let mut families = Vec::new();
    for case in common::cases() {
        let engine = Engine::open(&case, &exact()).unwrap();
        let shape = engine.shape();
        let Some(table) = own_embeddings(&case) else { continue };
        if families.contains(&engine.family()) {
            continue;
        }
        families.push(engine.family());
        let tokens = Golden::read(&case).sequences[1].tokens[..20].to_vec();
        let row = |first: u32| {
            let at = |(i, token): (u32, &TokenId)| {
                let values = &table[token.0 as usize * shape.hidden..][..shape.hidden];
                let input = RowInput::Embedding { values, deepstack: &[], token: *token };
                InputRow { input, position: Some(RowPosition::text(first + i)) }
            };
            (0..).zip(&tokens).map(at).collect::<Vec<_>>()
        };
        let want = engine.session().eval_prompt(&tokens).unwrap();
        // Rows of a picture see those after them, which tokens do not.
        let n = if shape.sees_pictures_whole { 1 } else { tokens.len() };
        let eval = |rows: &[InputRow<'_>]| {
            let mut session = engine.session();
            rows.chunks(n).map(|rows| session.eval_rows(rows).unwrap()).last().unwrap()
        };
        assert!(eval(&row(0)) == want, "{}", case.display());
        // Only distances count.
        let got = eval(&row(1000));
        let worst = got.iter().zip(&*want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // State spaces have their order from the recurrence, and no positions.
        let has_positions = !["glm5_next", "kimi_linear", "nemotron_h"].contains(&engine.family());
        assert!((got != want) == has_positions && worst < 2e-3, "{}: {worst}", case.display());
    }
    assert!(families.len() > 15, "{families:?}");
}

#[test]
fn sessions_of_a_step_may_have_other_rows_than_each_other() {
    let golden = GoldenRows::read(&case());
    let (engine, rows) = (Engine::open(&case(), &exact()).unwrap(), golden.rows(None));
    let tokens = [3, 1, 4].map(TokenId);
    let want = [
        engine.session().eval_prompt(&tokens).unwrap(),
        engine.session().eval_rows(&rows).unwrap(),
    ];
    let (mut one, mut other) = (engine.session(), engine.session());
    let inputs = [ChunkInput::Tokens(&tokens), ChunkInput::Rows(&rows)];
    let chunks = [&mut one, &mut other].into_iter().zip(inputs).map(|(session, input)| {
        SequenceChunk { session, input, wants_logits: true, checkpoint_after: false }
    });
    let got = eval_batch(&mut chunks.collect::<Vec<_>>()).unwrap();
    assert!(got.into_iter().flatten().eq(want));
}

#[test]
fn only_tokens_before_the_first_other_row_are_prefixes() {
    let dir = tempfile::tempdir().unwrap();
    let cache =
        PromptCacheOptions { dir: dir.path().to_path_buf(), max_bytes: 1 << 30, min_tokens: 1 };
    let engine = Engine::open(&case(), &exact().prompt_cache(Some(cache))).unwrap();
    let (golden, mut session) = (GoldenRows::read(&case()), engine.session());
    let rows = golden.rows(None);
    session.eval_rows(&rows).unwrap();
    assert_eq!(session.tokens()[5..17], [EMBEDDED; 12]);
    let n_files = || std::fs::read_dir(dir.path()).unwrap().count();
    session.store().unwrap();
    let refused = session.save(&dir.path().join("session")).unwrap_err().to_string();
    assert!(refused.contains("cannot be saved"), "{refused}");
    assert!(session.state_save(&mut [0; 1 << 20]).is_err());
    assert_eq!(n_files(), 0);
    session.store_prefix(5).unwrap();
    assert_eq!(n_files(), 1);
    // Equal tokens behind embeddings stand elsewhere.
    let tokens = session.tokens().to_vec();
    assert_eq!(session.match_prefix(&tokens).unwrap(), 5);
    assert_eq!(engine.session().match_prefix(&tokens).unwrap(), 5);
    let first: Vec<TokenId> = session.tokens().to_vec();
    let want = engine.session().eval_prompt(&[&first[..], &[TokenId(7)]].concat()).unwrap();
    assert!(session.eval_token(TokenId(7)).unwrap() == want);
}

#[track_caller]
fn check_refused(case: &str, row: InputRow<'_>, message: &str) {
    let engine = Engine::open(&common::golden_dir().join(case), &exact()).unwrap();
    let mut session = engine.session();
    let refused = session.eval_rows(&[InputRow::token(TokenId(1)), row]).unwrap_err().to_string();
    assert!(refused.starts_with(message), "{refused}");
    assert_eq!(session.position(), 0);
}

#[test]
fn rows_that_a_model_does_not_take_are_refused() {
    let vl = "qwen3_vl_moe-hf";
    let at = RowPosition::text;
    let message = "row 1: an embedding of 39 floats; this model's have 40";
    check_refused(vl, InputRow::embedding(&[0.5; 39], at(1)), message);
    let mut values = [0.5; 40];
    values[7] = f32::NAN;
    let message = "row 1: element 7 of the embedding is NaN; it must be a finite number";
    check_refused(vl, InputRow::embedding(&values, at(1)), message);
    let (short, added) = (&[0.5; 3][..], &[0.5; 40][..]);
    let with = |deepstack| InputRow {
        input: RowInput::Embedding { values: added, deepstack, token: EMBEDDED },
        position: None,
    };
    let (two, four) = ([added, short], [added; 4]);
    check_refused(vl, with(&two), "row 1: an embedding of 3 floats");
    let message = "row 1: additions for 4 layers; this model has 3";
    check_refused(vl, with(&four), message);
    let message = "row 1: position 16777217 is above 16777216";
    check_refused(vl, InputRow::token(TokenId(1)).at(at((1 << 24) + 1)), message);
    let message = "token 97 is outside the vocabulary of 97";
    check_refused(vl, InputRow::token(TokenId(97)), message);
    let parts = RowPosition { temporal: 1, height: 2, width: 3 };
    let message = "row 1: a position of 1, 2, 3; positions of this model have one part";
    check_refused("qwen3_moe-hf", InputRow::token(TokenId(1)).at(parts), message);
    let input = RowInput::Embedding { values: added, deepstack: &[], token: TokenId(97) };
    let message = "token 97 is outside the vocabulary of 97";
    check_refused(vl, InputRow { input, position: None }, message);
}

#[test]
fn pictures_that_a_step_cannot_have_whole_are_refused() {
    let folder = crate::towers::dir().join("gemma4");
    let engine = Engine::open(&folder, &exact().chunk(Some(8))).unwrap();
    let values = &[0.5; 64][..];
    let (token, seen) =
        (InputRow::token(TokenId(1)), InputRow::embedding(values, RowPosition::text(1)));
    let mut session = engine.session();
    let rows = [&[token; 9][..], &[seen; 9]].concat();
    let refused = session.eval_rows(&rows).unwrap_err().to_string();
    let message = "row 9: a picture of 9 rows; a step of this model must have all rows of a picture, and has \
         8: choose a larger chunk, or a smaller image_tokens";
    assert_eq!(refused, message);
    assert_eq!(session.position(), 0);
    let chunk = SequenceChunk {
        session: &mut session,
        input: ChunkInput::Rows(&[token, seen]),
        wants_logits: true,
        checkpoint_after: false,
    };
    let refused = eval_batch(&mut [chunk]).unwrap_err().to_string();
    assert!(refused.starts_with("row 1: a chunk of this model has either tokens"), "{refused}");
    session.eval_rows(&rows[..17]).unwrap();
}
