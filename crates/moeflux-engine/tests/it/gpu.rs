//! Every family on a GPU, software ones included: against the references, and
//! the same bits however experts come and rows are shared out.
#![cfg(feature = "gpu")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use moeflux_convert::pack::PackOptions;
use moeflux_engine::sampler::{Sampler, SamplerOptions};
use moeflux_engine::{
    Activations, Bias, Device, Engine, EngineOptions, Event, GenerateOptions, Job, Prompt,
    Scheduler, SchedulerOptions, Sink, Speculation, SpeculationStats, TokenId, devices, generate,
};
use moeflux_store::{CachePolicy, IoChoice, IoMode, Prefetch};
use moeflux_text::{Message, RenderRequest, Special, Turn};

use crate::common::{Golden, cases, golden_dir, greedy, kl, logits_by_chunk};
use crate::cut::{Cut, check_names_layer_file, packed};
use crate::embedded::{self, GoldenRows};

/// Largest difference of a logit, the logits' standard deviation being about 2:
/// as on the CPU, whose sums have another order.
const MAX_DIFFERENCE: f32 = 2e-3;

/// An engine that lasts from test to test: with it the device stays open, and
/// its kernels stay compiled. Tests take turns, as the device's threads do.
fn turn() -> MutexGuard<'static, Option<Engine>> {
    static KEPT: Mutex<Option<Engine>> = Mutex::new(None);
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Options for the best GPU, or `None` where there is none and none is
/// expected.
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn options(activations: Activations) -> Option<EngineOptions> {
    if devices(None).iter().all(|device| device.lacks.is_some()) {
        let is_expected = std::env::var_os("MOEFLUX_EXPECTED_GPU").is_some();
        assert!(!is_expected, "this machine has no GPU that runs models: {:?}", devices(None));
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

#[test]
fn exact_logits_and_greedy_continuations_agree_with_the_reference() {
    let Some(exact) = options(Activations::Full) else { return };
    let mut kept = turn();
    for case in cases() {
        let golden = Golden::read(&case);
        let engine = open(&case, &exact, &mut kept);
        for (i, sequence) in golden.sequences.iter().enumerate() {
            let got = logits_by_chunk(&engine, &sequence.tokens, usize::MAX);
            assert_eq!(got.len(), sequence.logits.len());
            let differences = got.iter().zip(&sequence.logits).map(|(a, b)| (a - b).abs());
            let worst = differences.fold(0.0f32, f32::max);
            assert!(worst <= MAX_DIFFERENCE, "{}, sequence {i}: {worst}", case.display());
        }
        let got = greedy(&engine, &golden.greedy_prompt, golden.greedy_tokens.len());
        assert_eq!(got, golden.greedy_tokens, "{}", case.display());
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

#[test]
fn rounded_activations_cost_less_than_the_reference_loses_in_bf16() {
    let Some(rounding) = options(Activations::Int16) else { return };
    let mut kept = turn();
    for case in cases() {
        let golden = Golden::read(&case);
        let engine = open(&case, &rounding, &mut kept);
        for sequence in &golden.sequences {
            let got = logits_by_chunk(&engine, &sequence.tokens, usize::MAX);
            let divergence = kl(&sequence.logits, &got, engine.shape().vocab);
            let (name, limit) = (case.display(), sequence.bf16_kl);
            assert!(divergence <= limit, "{name}: KL {divergence:e}, in BF16 {limit:e}");
        }
    }
}

/// Ignores the text of an answer.
struct Deaf;

impl Sink for Deaf {
    fn text(&mut self, _piece: &str) -> ControlFlow<()> {
        ControlFlow::Continue(())
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
    for (sampler, want) in samplers.iter().zip(&want) {
        let (sampler, special) = (sampler.clone(), Special::Show);
        let options = twelve_tokens(sampler, special);
        let mut session = engine.session();
        let prompt = Prompt { tokens: &prompt, checkpoints: &[] };
        generate(&mut session, &tokenizer, prompt, &options, &mut Deaf).unwrap();
        let made = &session.tokens()[prompt.tokens.len()..];
        assert!(made.len() > 1 && want.starts_with(made), "{made:?} of {want:?}");
    }
    // Together: those that need only top logits, then with some that need all logits.
    for n in [3, samplers.len()] {
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
                let template = tokenizer.chat_template(false).unwrap().unwrap();
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
        for ((prompt, sampler), want) in prompts.iter().zip(&samplers).zip(&want) {
            let (sampler, special) = (sampler.clone(), Special::Show);
            let options = twelve_tokens(sampler, special);
            let mut session = engine.session();
            let whole = Prompt { tokens: prompt, checkpoints: &[] };
            counts +=
                generate(&mut session, &tokenizer, whole, &options, &mut Deaf).unwrap().speculation;
            let made = &session.tokens()[prompt.len()..];
            assert!(made.len() > 1 && want.starts_with(made), "{n}: {made:?} of {want:?}");
        }
        assert!(counts.accepted > 0 && counts.accepted < counts.drafted, "{n}: {counts:?}");
        let scheduler = SchedulerOptions { n_sessions: 2, max_waiting: 2 };
        let scheduler =
            Scheduler::start(engine.clone(), Arc::clone(&tokenizer), scheduler).unwrap();
        let jobs = prompts.iter().zip(&samplers);
        let asked: Vec<_> = jobs.map(|(prompt, how)| ask(&scheduler, prompt, how)).collect();
        for (asked, want) in asked.into_iter().zip(&want) {
            let end = want.iter().position(|id| tokenizer.eos_ids().contains(id));
            let mut stream = tokenizer.stream(Special::Hide);
            let made = want[..end.unwrap_or(want.len())].iter();
            let text = made.map(|token| stream.push(*token)).collect::<String>() + &stream.finish();
            assert_eq!(text_of(&asked), text, "{n}");
        }
    }
}

fn twelve_tokens(sampler: SamplerOptions, special: Special) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(12), sampler, special, ..GenerateOptions::default() }
}

/// Has 12 tokens made.
fn ask(scheduler: &Scheduler, prompt: &[TokenId], sampler: &SamplerOptions) -> Receiver<Event> {
    let (sender, events) = mpsc::channel();
    let job = Job {
        prompt: Turn { tokens: prompt.to_vec(), checkpoints: Vec::new() },
        expected: Arc::default(),
        max_tokens: Some(12),
        stop: Vec::new(),
        sampler: sampler.clone(),
        bias: Bias::default(),
        constraint: None,
        no_calls: None,
        shown: Arc::from([]),
        top_logprobs: None,
        cancelled: Arc::default(),
        listener: Box::new(move |event| drop(sender.send(event))),
    };
    scheduler.submit(job).unwrap();
    events
}

fn text_of(events: &Receiver<Event>) -> String {
    let mut text = String::new();
    for event in events {
        match event {
            Event::Text(piece) => text.push_str(&piece.text),
            Event::Failed(err) => panic!("{err}"),
            Event::Prompt { .. } | Event::Done(_) => {}
        }
    }
    text
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
fn longest(case: &Path) -> Vec<TokenId> {
    let sequences = Golden::read(case).sequences;
    sequences.into_iter().map(|sequence| sequence.tokens).max_by_key(Vec::len).unwrap()
}

#[test]
fn experts_that_are_streamed_give_the_bits_of_resident_ones() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    let (mut all, mut n_read_there) = (Tiers::default(), 0);
    for case in cases() {
        let tokens = &longest(&case);
        let resident = options.clone().expert_io(IoChoice::Mmap).device_cache(Some(u64::MAX));
        let engine = open(&case, &resident, &mut kept);
        let few = &tokens[..tokens.len().min(10)];
        let (whole, mut alone) = (bits(&engine, tokens, usize::MAX), Tiers::default());
        let want = [whole, alone.bits(&engine, few)];
        alone.check(&engine, few.len());
        assert_eq!((alone.host, alone.drive), (0, 0), "{}", case.display());
        let plan = engine.plan();
        let (record, top_k) = (plan.record_bytes, engine.shape().top_k as u64);
        let slot = slot_bytes(&case);
        // The device holds no expert (or one, if it cannot read the cache), some, and three quarters.
        // The cache holds little more than a layer wants, or half. Prefetch and the policy of eviction
        // change no bit.
        let (least, half) = ((2 * top_k + 1) * slot, plan.expert_bytes / record / 2 * slot);
        let streams = [
            (0, least, Prefetch::Off, CachePolicy::default()),
            (5 * record, least, Prefetch::LastToken, CachePolicy::Lru),
            (2 * top_k * record, half, Prefetch::Off, CachePolicy::Lru),
            (plan.expert_bytes * 3 / 4, least, Prefetch::Lookahead, CachePolicy::Frequency),
        ];
        for (device_cache, expert_cache, prefetch, cache_policy) in streams {
            let streamed = options
                .clone()
                .expert_io(IoChoice::Pread)
                .expert_cache(Some(expert_cache.max(least)))
                .device_cache(Some(device_cache))
                .prefetch(prefetch)
                .cache_policy(cache_policy)
                .chunk(Some(plan.chunk));
            let engine = open(&case, &streamed, &mut kept);
            let mut tiers = Tiers::default();
            let got = [bits(&engine, tokens, usize::MAX), tiers.bits(&engine, few)];
            assert!(got == want, "{}, {streamed:?}", case.display());
            tiers.check(&engine, few.len());
            assert!(device_cache == 0 || !tiers.is_read_there, "{}", case.display());
            n_read_there += usize::from(tiers.is_read_there);
            all.add(&tiers);
        }
    }
    // Who shares the host's memory reads it.
    let index =
        if let Device::Gpu(index) = options.compute.device { index.unwrap_or(0) } else { 0 };
    let kind = moeflux_engine::devices(None)[index].kind;
    assert_eq!(n_read_there > 0, kind == "software" || kind == "integrated", "{kind}");
    // All three have been of use.
    assert!(all.device > 0 && all.host > 0 && all.drive > 0, "{all:?}");
}

#[test]
fn a_device_fetches_what_it_chose_from_a_cache_that_has_all_until_this_shrinks() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    let (mut n_chosen, mut n_fetched) = (0, 0);
    for case in cases() {
        let tokens = &longest(&case);
        let tokens = &tokens[..tokens.len().min(12)];
        let resident = options.clone().expert_io(IoChoice::Mmap).device_cache(Some(u64::MAX));
        let resident = open(&case, &resident, &mut kept);
        let want = [1, 5, usize::MAX].map(|chunk| bits(&resident, tokens, chunk));
        let plan = resident.plan();
        let slot = slot_bytes(&case);
        let n_experts = plan.expert_bytes.div_ceil(plan.record_bytes);
        let streamed = options
            .clone()
            .expert_io(IoChoice::Pread)
            .expert_cache(Some(n_experts * slot))
            .device_cache(Some(plan.expert_bytes * 3 / 4));
        let engine = open(&case, &streamed, &mut kept);
        engine.reset_stats();
        let one_by_one = || bits(&engine, tokens, 1) == want[0];
        assert!(one_by_one(), "{}", case.display());
        let (store, device) = (engine.stats(), engine.device_stats().unwrap());
        if store.hits + store.misses == 0 {
            let n_wanted = tokens.len() * engine.shape().n_moe_layers * engine.shape().top_k;
            assert_eq!(device.hits + device.uploads, n_wanted as u64, "{device:?}");
            n_chosen += 1;
            n_fetched += device.uploads;
        }
        // What the device has changed is known where the host chooses, and stays as it is.
        let by_chunks = || [5, usize::MAX].map(|chunk| bits(&engine, tokens, chunk)) == want[1..];
        assert!(by_chunks() && one_by_one() && by_chunks(), "{}", case.display());
        engine.resize_expert_cache(n_experts / 2 * slot).unwrap();
        engine.reset_stats();
        assert!(one_by_one() && by_chunks(), "{}", case.display());
        assert!(engine.stats().hits + engine.stats().misses > 0, "{}", case.display());
        let stats = engine.stats();
        assert!(stats.resident as u64 <= n_experts / 2, "{stats:?}");
    }
    // One interface does not let kernels read the host's memory.
    let index =
        if let Device::Gpu(index) = options.compute.device { index.unwrap_or(0) } else { 0 };
    let is_expected = !moeflux_engine::devices(None)[index].driver.ends_with("dx12");
    assert_eq!(n_chosen > 0 && n_fetched > 0, is_expected, "{n_chosen}, {n_fetched} experts");
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

/// Where experts came from.
#[derive(Debug, Default)]
struct Tiers {
    device: u64,
    /// Read by the device itself from a cache of the host that has all experts.
    fetched: u64,
    host: u64,
    drive: u64,
    /// Whether the device read them in the host's memory.
    is_read_there: bool,
}

impl Tiers {
    /// The bits of tokens one by one, and where their experts came from.
    fn bits(&mut self, engine: &Engine, tokens: &[TokenId]) -> Vec<u32> {
        engine.reset_stats();
        let bits = bits(engine, tokens, 1);
        let (device, store) = (engine.device_stats().unwrap(), engine.stats());
        let (host, drive) = (store.hits, store.misses);
        let is_read_there = device.uploads == 0 && host + drive > 0;
        let fetched = device.fetched;
        *self = Tiers { device: device.hits, fetched, host, drive, is_read_there };
        let (uploads, hits) = (device.uploads, device.hits);
        let all_came = if is_read_there { hits == 0 } else { uploads >= host + drive };
        assert!(all_came, "{device:?}, {store:?}");
        assert_eq!(device.uploaded_bytes > 0, device.uploads > 0, "{device:?}");
        bits
    }

    /// Every expert came from somewhere, and none was asked for twice.
    #[track_caller]
    fn check(&self, engine: &Engine, n_tokens: usize) {
        let shape = engine.shape();
        let n_wanted = (n_tokens * shape.n_moe_layers * shape.top_k) as u64;
        let n_came = self.device + self.fetched + self.host + self.drive;
        assert_eq!(n_came, n_wanted, "{self:?}");
    }

    fn add(&mut self, other: &Tiers) {
        self.device += other.device;
        self.fetched += other.fetched;
        self.host += other.host;
        self.drive += other.drive;
    }
}

#[test]
fn a_row_has_the_same_bits_whatever_shares_its_step() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    for case in cases() {
        let tokens = &longest(&case);
        let tokens = &tokens[..tokens.len().min(16)];
        let engine = open(&case, &options, &mut kept);
        let alone = bits(&engine, tokens, 1);
        for chunk in [3, 8, 13] {
            let got = bits(&engine, tokens, chunk);
            assert!(got == alone, "{}, chunks of {chunk}", case.display());
        }
    }
}

#[test]
fn a_session_goes_on_and_the_device_works_after_reads_that_failed() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    for case in ["hf-bf16", "mlx-q4"] {
        let dir = packed(case, &PackOptions::unquantised());
        let tokens = &longest(&golden_dir().join(case))[..14];
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
