//! Models with tables whose rows are read from the drive as tokens need them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

use crate::common::{Golden, golden_dir, greedy, logits_by_chunk};
use moeflux_engine::sampler::SamplerOptions;
use moeflux_engine::{
    Activations, ChunkInput, DecodingOptions, Engine, EngineOptions, Event, Job, RowKind,
    Scheduler, SchedulerOptions, SequenceChunk, Speculation, SpeculationStats, eval_batch,
};
use moeflux_store::IoChoice;
use moeflux_text::Turn;

fn case() -> PathBuf {
    golden_dir().join("qwen4_exp-hf")
}

fn exact() -> EngineOptions {
    EngineOptions::default().activations(Activations::Full)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn logits_have_the_same_bits_with_any_row_cache_and_chunk() {
    let golden = Golden::read(&case());
    let tokens = &golden.sequences[0].tokens;
    let expected = logits_by_chunk(&Engine::open(&case(), &exact()).unwrap(), tokens, usize::MAX);
    for io in [IoChoice::Pread, IoChoice::Direct, IoChoice::Mmap] {
        for cache in [0, 300, 2000, 1 << 20] {
            let options = exact().expert_io(io).row_cache(Some(cache));
            let Ok(engine) = Engine::open(&case(), &options) else {
                // The file system of a temporary folder may refuse direct reads.
                assert_eq!(io, IoChoice::Direct);
                continue;
            };
            for chunk in [1, 2, 5, usize::MAX] {
                let got = logits_by_chunk(&engine, tokens, chunk);
                assert_eq!(bits(&got), bits(&expected), "{io:?}, {cache} bytes, chunks of {chunk}");
            }
        }
    }
}

#[test]
fn sessions_of_one_step_get_the_rows_of_their_own_tokens() {
    let golden = Golden::read(&case());
    let engine = Engine::open(&case(), &exact().sessions(Some(3)).row_cache(Some(1000))).unwrap();
    let texts: Vec<_> = golden.sequences.iter().map(|sequence| &sequence.tokens[..]).collect();
    let alone: Vec<Vec<f32>> =
        texts.iter().map(|tokens| engine.session().eval_prompt(tokens).unwrap().to_vec()).collect();
    let mut sessions: Vec<_> = texts.iter().map(|_| engine.session()).collect();
    // All but the last token, in steps of different lengths, then the last ones together.
    for (session, tokens) in sessions.iter_mut().zip(&texts) {
        session.eval_prompt(&tokens[..tokens.len() - 1]).unwrap();
    }
    let chunks = sessions.iter_mut().zip(&texts).map(|(session, tokens)| SequenceChunk {
        session,
        input: ChunkInput::Tokens(&tokens[tokens.len() - 1..]),
        wants_logits: true,
        checkpoint_after: false,
    });
    let together = eval_batch(&mut chunks.collect::<Vec<_>>()).unwrap();
    for (alone, together) in alone.iter().zip(together) {
        assert_eq!(bits(alone), bits(&together.unwrap()));
    }
}

#[test]
fn sessions_that_were_cut_look_up_what_precedes_the_cut() {
    let golden = Golden::read(&case());
    let tokens = &golden.sequences[0].tokens;
    let engine = Engine::open(&case(), &exact()).unwrap();
    let expected = engine.session().eval_prompt(tokens).unwrap();
    let mut session = engine.session();
    let half = tokens.len() / 2;
    session.eval_prompt(&tokens[..half]).unwrap();
    session.checkpoint(half).unwrap();
    session.eval_prompt(&golden.greedy_prompt).unwrap();
    session.restore_to(half).unwrap();
    let got = session.eval_prompt(&tokens[half..]).unwrap();
    assert_eq!(bits(&got), bits(&expected));
}

#[test]
fn rows_are_counted_and_planned() {
    let golden = Golden::read(&case());
    let tokens = &golden.sequences[0].tokens;
    let options = exact().expert_io(IoChoice::Pread);
    let engine = Engine::open(&case(), &options).unwrap();
    let plan = engine.plan();
    assert!(plan.table_bytes > 0 && plan.row_cache_bytes > 0);
    let rows = plan.rows().into_iter().find(|row| row.kind == RowKind::Rows).unwrap();
    assert_eq!(rows.bytes, plan.row_cache_bytes);
    assert_eq!(plan.rows().iter().map(|row| row.bytes).sum::<u64>(), plan.total_bytes());

    engine.session().eval_prompt(tokens).unwrap();
    let first = engine.row_stats().unwrap();
    assert_eq!(first.rows % tokens.len() as u64, 0);
    assert!(first.rows_read > 0 && first.rows_read <= first.rows, "{first:?}");
    engine.session().eval_prompt(tokens).unwrap();
    let again = engine.row_stats().unwrap();
    assert_eq!(again.rows, 2 * first.rows);
    assert_eq!(again.rows_read, first.rows_read, "a cache of all rows reads each once");
    engine.reset_stats();
    assert_eq!(engine.row_stats().unwrap().rows, 0);
}

/// A folder of the case with multi-token prediction, and a tokenizer of another case.
fn with_tokenizer(case: &str, dir: &Path) -> PathBuf {
    let copy = dir.join(case);
    fs::create_dir(&copy).unwrap();
    let files = [
        (case, "config.json"),
        (case, "model.safetensors"),
        ("hf-bf16", "tokenizer.json"),
        ("hf-bf16", "tokenizer_config.json"),
    ];
    for (case, file) in files {
        fs::copy(golden_dir().join(case).join(file), copy.join(file)).unwrap();
    }
    copy
}

#[test]
fn drafts_whose_rows_are_read_change_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let golden = Golden::read(&case());
    let dir = with_tokenizer("qwen4_exp-mtp", dir.path());
    let samplers = [0.0, 0.8].map(|temperature| SamplerOptions {
        temperature,
        seed: 3,
        ..SamplerOptions::default()
    });
    let written = |speculation: Speculation, cache: u64, sampler: &SamplerOptions| {
        let options = EngineOptions::default().speculation(speculation).row_cache(Some(cache));
        let engine = Engine::open(&dir, &options.ctx(Some(256))).unwrap();
        let tokenizer = Arc::new(engine.tokenizer().unwrap());
        let limits = SchedulerOptions { n_sessions: 1, max_waiting: 1 };
        let scheduler = Scheduler::start(engine, tokenizer, limits).unwrap();
        let (sender, events) = mpsc::channel();
        let decoding = DecodingOptions {
            max_tokens: Some(48),
            sampler: sampler.clone(),
            top_logprobs: Some(0),
            ..DecodingOptions::default()
        };
        let listener = Box::new(move |event| drop(sender.send(event)));
        let (prompt, cancelled) = (Turn::raw(golden.greedy_prompt.clone()), Arc::default());
        scheduler
            .submit(Job {
                prompt,
                pictures: Vec::new(),
                decoding,
                keeps_answer: true,
                prompt_logprobs: None,
                owner: None,
                cancelled,
                listener,
            })
            .unwrap();
        let mut tokens = Vec::new();
        for event in events {
            match event {
                Event::Prompt { .. } | Event::Scored(_) => {}
                Event::Text(text) => tokens.extend(text.logprobs.iter().map(|one| one.token)),
                Event::Done(answer) => return (tokens, answer.speculation),
                Event::Failed(err) => panic!("{err}"),
            }
        }
        panic!("the answer does not end");
    };
    for sampler in &samplers {
        let (tokens, none) = written(Speculation::Off, 1 << 20, sampler);
        assert!(tokens.len() > 8 && none == SpeculationStats::default(), "{tokens:?}, {none:?}");
        for (n, cache) in [(1, 1 << 20), (3, 300), (4, 0)] {
            let (drafted, stats) = written(Speculation::Fixed(n), cache, sampler);
            assert_eq!(drafted, tokens, "drafts of {n}, a cache of {cache} bytes");
            assert!(stats.drafted > 0 && stats.accepted < stats.drafted, "{stats:?}");
        }
    }
}

/// A copy of the case whose tables hold no numbers.
fn damaged(dir: &Path) -> PathBuf {
    let copy = dir.join("damaged");
    fs::create_dir(&copy).unwrap();
    fs::copy(case().join("config.json"), copy.join("config.json")).unwrap();
    let mut bytes = fs::read(case().join("model.safetensors")).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    for (name, tensor) in header.as_object().unwrap() {
        if name.contains("ngram_embedding") && name.ends_with("weight") {
            let at = |i: usize| 8 + len + tensor["data_offsets"][i].as_u64().unwrap() as usize;
            bytes[at(0)..at(1)].fill(0xFF);
        }
    }
    fs::write(copy.join("model.safetensors"), bytes).unwrap();
    copy
}

#[test]
fn rows_that_are_no_numbers_end_a_step_with_their_name() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(&damaged(dir.path()), &exact()).unwrap();
    let golden = Golden::read(&case());
    let mut session = engine.session();
    for _ in 0..2 {
        let err = session.eval_prompt(&golden.greedy_prompt).unwrap_err().to_string();
        assert!(err.contains("model.safetensors") && err.contains("ngram_embedding"), "{err}");
        assert_eq!(session.position(), 0);
    }
}

#[test]
fn a_file_that_is_cut_while_the_model_runs_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    fs::copy(case().join("config.json"), dir.path().join("config.json")).unwrap();
    fs::copy(case().join("model.safetensors"), &path).unwrap();
    let golden = Golden::read(&case());
    let options = exact().expert_io(IoChoice::Pread).row_cache(Some(0));
    let engine = Engine::open(dir.path(), &options).unwrap();
    let before = greedy(&engine, &golden.greedy_prompt, golden.greedy_tokens.len());
    assert_eq!(before, golden.greedy_tokens);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let err = engine.session().eval_prompt(&golden.greedy_prompt).unwrap_err().to_string();
    assert!(err.contains("model.safetensors has 4096 bytes"), "{err}");
}
