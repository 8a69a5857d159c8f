//! Every family on a GPU, software ones included: against the references, and
//! the same bits however experts come and rows are shared out.
#![cfg(feature = "gpu")]

mod experts;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use moeflux_convert::pack::PackOptions;
use moeflux_engine::sampler::{Sampler, SamplerOptions};
use moeflux_engine::{
    Activations, DecodingOptions, Device, DeviceFacts, Engine, EngineOptions, Event, Job,
    Scheduler, SchedulerOptions, Speculation, SpeculationStats, TokenId, devices,
};
use moeflux_store::{IoChoice, IoMode};
use moeflux_text::{ChatTemplate, Message, RenderRequest, Special, Turn};

use self::experts::{PROMPT, Resident, TOKENS};
use crate::common::{Golden, golden_dir, greedy, kl, logits_by_chunk};
use crate::cut::{Cut, check_names_layer_file, packed};
use crate::embedded::{self, GoldenRows};
use crate::{seen, towers};

/// Largest difference of a logit, the logits' standard deviation being about 2:
/// as on the CPU, whose sums have another order.
const MAX_DIFFERENCE: f32 = 2e-3;

/// An engine that lasts from test to test: with it the device stays open, and
/// its kernels stay compiled. Tests take turns, as the device's threads do.
fn turn() -> MutexGuard<'static, Option<Engine>> {
    static KEPT: Mutex<Option<Engine>> = Mutex::new(None);
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn all_devices() -> &'static [DeviceFacts] {
    static ALL: OnceLock<Vec<DeviceFacts>> = OnceLock::new();
    ALL.get_or_init(|| devices(None))
}

/// Options for the best GPU, or `None` where there is none and none is
/// expected.
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn options(activations: Activations) -> Option<EngineOptions> {
    let all = all_devices();
    if all.iter().all(|device| device.lacks.is_some()) {
        let is_expected = std::env::var_os("MOEFLUX_EXPECTED_GPU").is_some();
        assert!(!is_expected, "this machine has no GPU that runs models: {all:?}");
        println!("SKIP: this machine has no GPU that runs models");
        return None;
    }
    let device = Device::Gpu(None);
    Some(EngineOptions::default().device(device).activations(activations))
}

fn open(case: &Path, options: &EngineOptions, kept: &mut Option<Engine>) -> Engine {
    let engine = Engine::open(case, options).unwrap();
    kept.get_or_insert_with(|| engine.clone());
    engine
}

/// A case agrees with the reference, however its experts come and rows are shared out.
pub(crate) fn check(case: &Path) {
    let Some(exact) = options(Activations::Full) else { return };
    let options = exact.clone().activations(Activations::Int16);
    let mut kept = turn();
    let golden = Golden::read(case);
    check_exact(&golden, &open(case, &exact, &mut kept));
    let tokens = &longest(&golden);
    check_rounded(&golden, tokens, &open(case, &options, &mut kept));
    let resident = Resident::open(case, options, &mut kept);
    resident.check_streamed(&mut kept);
    resident.check_fetched(&mut kept);
    resident.check_loading([&[[PROMPT, TOKENS]], &[[TOKENS, PROMPT]]], &mut kept);
}

/// Logits and greedy continuations agree with the reference.
fn check_exact(golden: &Golden, engine: &Engine) {
    for (i, sequence) in golden.sequences.iter().enumerate() {
        let got = logits_by_chunk(engine, &sequence.tokens, usize::MAX);
        assert_eq!(got.len(), sequence.logits.len());
        let differences = got.iter().zip(&sequence.logits).map(|(a, b)| (a - b).abs());
        let worst = differences.fold(0.0f32, f32::max);
        assert!(worst <= MAX_DIFFERENCE, "sequence {i}: {worst}");
    }
    let got = greedy(engine, &golden.greedy_prompt, golden.greedy_tokens.len());
    assert_eq!(got, golden.greedy_tokens, "greedy continuation");
}

/// Rounded activations cost less than the reference loses in BF16, and a row has the same bits whatever shares its step.
fn check_rounded(golden: &Golden, tokens: &[TokenId], engine: &Engine) {
    for sequence in &golden.sequences {
        let got = logits_by_chunk(engine, &sequence.tokens, usize::MAX);
        let divergence = kl(&sequence.logits, &got, engine.shape().vocab);
        let limit = sequence.bf16_kl;
        assert!(divergence <= limit, "KL {divergence:e}, in BF16 {limit:e}");
    }
    let tokens = &tokens[..tokens.len().min(16)];
    let alone = bits(engine, tokens, 1);
    for chunk in [3, 8, 13] {
        assert!(bits(engine, tokens, chunk) == alone, "chunks of {chunk}");
    }
}

#[test]
fn prompts_with_pictures_agree_with_the_reference() {
    for activations in [Activations::Full, Activations::Int16] {
        let Some(options) = options(activations) else { return };
        let mut kept = turn();
        for family in &towers::families() {
            let engine = open(&towers::dir().join(family), &options, &mut kept);
            seen::check(&engine, family);
        }
    }
}

#[test]
fn rows_that_are_embeddings_agree_with_the_reference() {
    let Some(exact) = options(Activations::Full) else { return };
    let mut kept = turn();
    let streamed = exact.clone().expert_io(IoChoice::Pread).device_cache(Some(0));
    for case in embedded::cases() {
        let (rows, engine) = (GoldenRows::read(&case), open(&case, &exact, &mut kept));
        let streamed = streamed.clone().chunk(Some(engine.plan().chunk));
        let other = open(&case, &streamed, &mut kept);
        for expected in rows.expected() {
            let want = rows.check(&engine, expected, usize::MAX);
            assert!(rows.check(&other, expected, usize::MAX) == want);
            rows.check(&other, expected, 5);
        }
    }
}

/// Tokens that are drawn from all logits, which are read back.
fn drawn(engine: &Engine, prompt: &[TokenId], sampler: &SamplerOptions, n: usize) -> Vec<TokenId> {
    let mut sampler = Sampler::new(sampler.clone()).unwrap();
    let mut session = engine.session();
    let mut logits = session.eval_prompt(prompt).unwrap();
    for _ in 0..n {
        let token = sampler.sample(&logits, session.tokens()).unwrap();
        logits = session.eval_token(token).unwrap();
    }
    session.tokens()[prompt.len()..].to_vec()
}

#[test]
fn answers_take_the_tokens_that_logits_name_although_these_stay_on_the_device() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    let engine = open(&demo(), &options, &mut kept);
    let tokenizer = Arc::new(engine.tokenizer().unwrap());
    // Together fewer rows than take other kernels than the prompt alone does.
    let prompt: Vec<TokenId> = (1..13).map(TokenId).collect();
    let warm = SamplerOptions { temperature: 1.2, seed: 5, ..SamplerOptions::default() };
    // The last two need more than the device finds.
    let samplers = [
        SamplerOptions::default(),
        SamplerOptions { top_k: 20, top_p: 0.95, ..warm.clone() },
        SamplerOptions { top_k: 64, min_p: 0.01, ..warm.clone() },
        SamplerOptions { top_k: 81, ..warm.clone() },
        warm,
    ];
    let want: Vec<Vec<TokenId>> =
        samplers.iter().map(|options| drawn(&engine, &prompt, options, 12)).collect();
    // Alone, together with others that need only top logits, and with some that need all logits.
    for n in [1, 3, samplers.len()] {
        let wanted = want[..n].iter().map(|tokens| {
            let end = tokens.iter().position(|id| tokenizer.eos_ids().contains(id));
            let mut stream = tokenizer.stream(Special::Hide);
            let made = tokens[..end.unwrap_or(tokens.len())].iter();
            made.map(|token| stream.push(*token)).collect::<String>() + &stream.finish()
        });
        let scheduler = SchedulerOptions { n_sessions: n, max_waiting: n };
        let scheduler =
            Scheduler::start(engine.clone(), Arc::clone(&tokenizer), scheduler).unwrap();
        let asked: Vec<_> =
            samplers[..n].iter().map(|options| ask(&scheduler, &prompt, options)).collect();
        for (asked, want) in asked.into_iter().zip(wanted) {
            assert_eq!(text_of(&asked), want);
        }
    }
}

#[test]
fn drafts_change_no_token() {
    let Some(off) = options(Activations::Int16) else { return };
    let off = off.speculation(Speculation::Off);
    let mut kept = turn();
    let warm = SamplerOptions { temperature: 0.6, top_k: 4, seed: 5, ..SamplerOptions::default() };
    let plain = open(&demo(), &off, &mut kept);
    let tokenizer = Arc::new(plain.tokenizer().unwrap());
    let samplers = [SamplerOptions::default(), warm];
    // What is said stands in the prompt, so that some drafts are accepted.
    let prompts =
        ["What does `Vec::push` do?", "What is `Option::unwrap_or` for?"].map(|question| {
            let asked = |system: &str| {
                let messages = [Message::new("system", system), Message::new("user", question)];
                let template = ChatTemplate::of(&tokenizer, false).unwrap().unwrap();
                let request = RenderRequest { messages: &messages, ..RenderRequest::default() };
                Turn::of(&tokenizer, &template, &request, usize::MAX).unwrap().tokens
            };
            let said = drawn(&plain, &asked("Be brief."), &samplers[0], 24);
            let mut stream = tokenizer.stream(Special::Hide);
            asked(&said.iter().map(|id| stream.push(*id)).collect::<String>())
        });
    let want: Vec<Vec<TokenId>> =
        prompts.iter().zip(&samplers).map(|(prompt, how)| drawn(&plain, prompt, how, 12)).collect();
    drop(plain);
    for n in [3, 9] {
        let options = off.clone().speculation(Speculation::Fixed(n));
        let engine = open(&demo(), &options, &mut kept);
        let mut counts = SpeculationStats::default();
        for n_sessions in [1, 2] {
            let limits = SchedulerOptions { n_sessions, max_waiting: 2 };
            let scheduler =
                Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits).unwrap();
            let jobs = prompts.iter().zip(&samplers);
            let asked: Vec<_> = jobs.map(|(prompt, how)| ask(&scheduler, prompt, how)).collect();
            for (asked, want) in asked.into_iter().zip(&want) {
                let end = want.iter().position(|id| tokenizer.eos_ids().contains(id));
                let mut stream = tokenizer.stream(Special::Hide);
                let made = want[..end.unwrap_or(want.len())].iter();
                let text =
                    made.map(|token| stream.push(*token)).collect::<String>() + &stream.finish();
                let (said, speculation) = answer_of(&asked);
                assert_eq!(said, text, "{n}");
                counts += speculation;
            }
        }
        assert!(counts.accepted > 0 && counts.accepted < counts.drafted, "{n}: {counts:?}");
    }
}

/// Has 12 tokens made.
fn ask(scheduler: &Scheduler, prompt: &[TokenId], sampler: &SamplerOptions) -> Receiver<Event> {
    let (sender, events) = mpsc::channel();
    let job = Job {
        prompt: Turn { tokens: prompt.to_vec(), ..Turn::default() },
        pictures: Vec::new(),
        decoding: DecodingOptions {
            max_tokens: Some(12),
            sampler: sampler.clone(),
            ..DecodingOptions::default()
        },
        keeps_answer: true,
        prompt_logprobs: None,
        owner: None,
        cancelled: Arc::default(),
        listener: Box::new(move |event| drop(sender.send(event))),
    };
    scheduler.submit(job).unwrap();
    events
}

fn text_of(events: &Receiver<Event>) -> String {
    answer_of(events).0
}

/// The text of an answer, and how many of its tokens were drafted.
fn answer_of(events: &Receiver<Event>) -> (String, SpeculationStats) {
    let (mut text, mut speculation) = (String::new(), SpeculationStats::default());
    for event in events {
        match event {
            Event::Text(piece) => text.push_str(&piece.text),
            Event::Failed(err) => panic!("{err}"),
            Event::Done(answer) => speculation = answer.speculation,
            Event::Prompt { .. } | Event::Scored(_) => {}
        }
    }
    (text, speculation)
}

/// The demo model.
fn demo() -> PathBuf {
    let golden = std::env::var_os("MOEFLUX_GOLDEN").map_or_else(golden_dir, PathBuf::from);
    golden.join("../../../moeflux-cli/demo")
}

#[test]
fn steps_recorded_ahead_give_the_bits_of_others_wherever_caches_grow() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    let engine = open(&demo(), &options, &mut kept);
    let tokens: Vec<TokenId> = (0..262).map(|i| TokenId(20 + i * 7 % 300)).collect();
    let (prompt, rest) = tokens.split_at(250);
    let n_ahead = || engine.device_stats().unwrap().steps_ahead;
    let mut all = Vec::new();
    for disturbs in [true, false] {
        let mut session = engine.session();
        session.eval_prompt(prompt).unwrap();
        let before = n_ahead();
        let mut bits = Vec::new();
        for (i, token) in rest.iter().enumerate() {
            if disturbs {
                // Nothing recorded ahead is left by who begins another session.
                engine.session();
            } else if i == 5 {
                // Nor is it what the session goes on with.
                session.checkpoint(session.position()).unwrap();
                session.eval_token(TokenId(3)).unwrap();
                session.truncate(prompt.len() + i).unwrap();
            }
            let logits = session.eval_token(*token).unwrap();
            bits.push(logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>());
        }
        // Where caches grow, what a session was taken back from, and what stands first.
        let n = n_ahead() - before;
        assert_eq!(n > 0, !disturbs, "{n} steps ahead");
        assert!(disturbs || n >= rest.len() as u64 - 3, "{n} steps ahead");
        all.push(bits);
    }
    assert!(all[0] == all[1]);
}

#[test]
fn a_prompt_may_want_more_experts_than_the_cache_holds() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    let resident = options.clone().device_cache(Some(u64::MAX));
    let resident = open(&demo(), &resident, &mut kept);
    let tokens: Vec<TokenId> = (100..148).map(TokenId).collect();
    let want = bits(&resident, &tokens, usize::MAX);
    let (record, top_k) = (resident.plan().record_bytes, resident.shape().top_k as u64);
    for device_cache in [0, 3 * record] {
        let streamed = options
            .clone()
            .expert_io(IoChoice::Pread)
            .expert_cache(Some((top_k + 1) * (record + 4096)))
            .device_cache(Some(device_cache))
            .chunk(Some(tokens.len()));
        let engine = open(&demo(), &streamed, &mut kept);
        assert!(bits(&engine, &tokens, usize::MAX) == want, "{device_cache} bytes there");
        let stats = engine.stats();
        let wanted = (stats.hits + stats.misses) / engine.shape().n_moe_layers as u64;
        assert!(wanted > 2 * stats.n_slots as u64, "{stats:?}");
    }
}

#[test]
fn an_expert_that_cannot_be_loaded_fails_the_steps_that_want_it() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    let dir = packed("hf-bf16", &PackOptions::unquantised());
    let tokens = &longest(&Golden::read(&golden_dir().join("hf-bf16")))[..4];
    let options = options.expert_io(IoChoice::Pread).device_cache(Some(u64::MAX));
    let want = bits(&open(dir.path(), &options, &mut kept), tokens, usize::MAX);
    let files = Cut::of(dir.path());
    files.damage();
    let engine = open(dir.path(), &options.clone().quick_start(true), &mut kept);
    engine.finish_loading();
    let warnings = engine.take_warnings();
    assert!(matches!(&warnings[..], [only] if only.contains("experts stream")), "{warnings:?}");
    check_names_layer_file(&engine.session().eval_prompt(tokens).unwrap_err());
    files.restore();
    assert!(bits(&engine, tokens, usize::MAX) == want);
    // An engine that is dropped while experts are read waits for no more than a part.
    drop(open(dir.path(), &options.quick_start(true), &mut kept));
}

/// Bytes of a slot of a model's cache.
fn slot_bytes(case: &Path) -> u64 {
    let expert_io = IoChoice::Pread;
    let options = EngineOptions::default().expert_io(expert_io).expert_cache(Some(1 << 30));
    let engine = Engine::open(case, &options).unwrap();
    engine.session().eval_prompt(&[TokenId(1)]).unwrap();
    engine.stats().cache_bytes / engine.stats().resident as u64
}

fn bits(engine: &Engine, tokens: &[TokenId], chunk: usize) -> Vec<u32> {
    logits_by_chunk(engine, tokens, chunk).into_iter().map(f32::to_bits).collect()
}

/// The longest sequence of a case.
fn longest(golden: &Golden) -> Vec<TokenId> {
    let sequences = golden.sequences.iter().map(|sequence| &sequence.tokens);
    sequences.max_by_key(|tokens| tokens.len()).unwrap().clone()
}

#[test]
fn a_device_that_has_all_experts_leaves_the_cache_no_more_than_it_needs() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    let tokens: Vec<TokenId> = (1..20).map(TokenId).collect();
    let asked = options.clone().expert_io(IoChoice::Pread).device_cache(Some(u64::MAX));
    let mut all_bits = Vec::new();
    for options in [asked, options] {
        let engine = open(&demo(), &options, &mut kept);
        let plan = engine.plan();
        if plan.device_expert_bytes.is_some() {
            assert_eq!(plan.device_expert_bytes, Some(plan.expert_bytes));
            assert_ne!(plan.io_mode, IoMode::Mmap);
        }
        if plan.io_mode != IoMode::Mmap {
            // How many there may be follows free memory again.
            assert!(engine.stats().resident <= engine.shape().top_k, "{:?}", engine.stats());
        }
        all_bits.push([1, usize::MAX].map(|chunk| bits(&engine, &tokens, chunk)));
        let (store, device) = (engine.stats(), engine.device_stats().unwrap());
        assert_eq!((store.hits, store.misses, device.uploads), (0, 0, 0), "{store:?}, {device:?}");
        assert!(device.hits > 0, "{device:?}");
    }
    assert_eq!(all_bits[0], all_bits[1]);
}

#[test]
fn a_session_goes_on_and_the_device_works_after_reads_that_failed() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    for case in ["hf-bf16", "mlx-q4"] {
        let dir = packed(case, &PackOptions::unquantised());
        let tokens = &longest(&Golden::read(&golden_dir().join(case)))[..14];
        let resident = options.clone().expert_io(IoChoice::Pread).device_cache(Some(u64::MAX));
        let resident = open(dir.path(), &resident, &mut kept);
        let want = bits(&resident, tokens, 1);
        let plan = resident.plan();
        let (record, top_k) = (plan.record_bytes, resident.shape().top_k as u64);
        let vocab = resident.shape().vocab;
        let files = Cut::of(dir.path());
        // Both hold less than a token wants.
        for device_cache in [0, 2 * record] {
            let streamed = options
                .clone()
                .expert_io(IoChoice::Pread)
                .expert_cache(Some((top_k + 1) * slot_bytes(dir.path())))
                .device_cache(Some(device_cache));
            let engine = open(dir.path(), &streamed, &mut kept);
            let mut session = engine.session();
            session.eval_prompt(&tokens[..4]).unwrap();
            files.cut(0);
            // What a token needs may still be on the device or in the cache.
            let failed = loop {
                let n_done = session.tokens().len();
                assert!(n_done < tokens.len(), "{case}: nothing failed");
                match session.eval_token(tokens[n_done]) {
                    Ok(logits) => check_row(&logits, &want, n_done, vocab),
                    Err(err) => break err,
                }
            };
            check_names_layer_file(&failed);
            let n_done = session.tokens().len();
            assert_eq!(session.tokens(), &tokens[..n_done], "{case}");
            // Others on the same device go on meanwhile.
            assert!(bits(&resident, tokens, 1) == want, "{case}");
            files.restore();
            for (nth, token) in tokens.iter().enumerate().skip(n_done) {
                check_row(&session.eval_token(*token).unwrap(), &want, nth, vocab);
            }
        }
    }
}

#[track_caller]
fn check_row(logits: &[f32], want: &[u32], nth: usize, vocab: usize) {
    let got: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
    assert!(got == want[nth * vocab..][..vocab], "token {nth}");
}
