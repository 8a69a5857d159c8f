//! The second promise: on the CPU nothing that only concerns speed changes a bit of the output.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use moeflux_convert::pack::PackOptions;
use moeflux_engine::{Activations, Engine, EngineError, EngineOptions, TokenId, isa_names};
use moeflux_store::{CachePolicy, IoChoice, Prefetch, StoreError};
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::cases::case_names;
use crate::common::{Golden, golden_dir, logits_by_chunk};
use crate::cut::{Cut, check_names_layer_file, packed};

use proptest::prelude::*;

/// Hands cases that differ in storage, record layout, layer types and shapes to a macro, as `with_golden_cases` does;
/// the demo model is the last.
macro_rules! with_subjects {
    ([$($macro:tt)*] { $($args:tt)* }) => {
        $($macro)*! {
            { $($args)* }
            hf_bf16 "hf-bf16",
            hf_text_per_expert "hf-text-per-expert",
            mlx_q3 "mlx-q3",
            mlx_q4 "mlx-q4",
            mlx_q4_g128 "mlx-q4-g128",
            gguf_qwen35moe "gguf-qwen35moe",
            gguf_qwen3moe "gguf-qwen3moe",
            gguf_gpt_oss "gguf-gpt-oss",
            ct_integers "ct-integers",
            gptq_desc_act "gptq-desc-act",
            gemma4_hf "gemma4-hf",
        }
    };
}

/// A module with a test for each of these cases and the demo model, which calls a function with it.
macro_rules! each_subject {
    ($module:ident: $check:ident) => {
        with_subjects! { [subject_tests] { $module: $check } }
    };
}

macro_rules! subject_tests {
    ({ $module:ident: $check:ident } $($test:ident $case:literal,)*) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    super::$check(&super::Subject::of(super::golden_dir().join($case)));
                }
            )*

            #[test]
            fn demo() {
                super::$check(&super::Subject::demo());
            }
        }
    };
}

/// A model, and tokens to run it on.
struct Subject {
    dir: PathBuf,
    tokens: Vec<TokenId>,
}

impl Subject {
    /// A golden case, with its longest sequence.
    fn of(dir: PathBuf) -> Subject {
        let sequences = Golden::read(&dir).sequences.into_iter();
        let tokens = sequences.map(|sequence| sequence.tokens).max_by_key(Vec::len).unwrap();
        Subject { dir, tokens }
    }

    fn demo() -> Subject {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
        Subject { dir, tokens: (0..19u32).map(|i| TokenId(i * 411 % 8000)).collect() }
    }
}

/// One thread, no vector instructions, everything mapped, nothing read ahead.
fn plain() -> EngineOptions {
    EngineOptions::default()
        .threads(Some(1))
        .isa(Some(String::from("scalar")))
        .expert_io(IoChoice::Mmap)
}

/// As [`plain`], but with the fastest kernels.
fn fast() -> EngineOptions {
    plain().isa(None)
}

/// Reads into the smallest cache that is accepted.
fn tightest(dir: &Path) -> EngineOptions {
    fast().expert_cache(Some(floor(dir))).expert_io(IoChoice::Pread)
}

/// The number that the refusal of a smaller cache names.
fn floor(dir: &Path) -> u64 {
    let open = |bytes| {
        let (expert_cache, expert_io) = (Some(bytes), IoChoice::Pread);
        Engine::open(dir, &fast().expert_cache(expert_cache).expert_io(expert_io))
    };
    let needed = |bytes| match open(bytes).err().unwrap() {
        EngineError::Store(StoreError::BudgetTooSmall { needed, .. }) => needed,
        err => panic!("{}: {err}", dir.display()),
    };
    let floor = needed(0);
    assert_eq!(needed(floor - 1), floor);
    assert!(open(floor).is_ok());
    floor
}

/// The bits of every token's logits.
fn bits(engine: &Engine, tokens: &[TokenId], call: usize) -> Vec<u32> {
    logits_by_chunk(engine, tokens, call).into_iter().map(f32::to_bits).collect()
}

fn open_bits(dir: &Path, options: &EngineOptions, tokens: &[TokenId]) -> Vec<u32> {
    bits(&Engine::open(dir, options).unwrap(), tokens, usize::MAX)
}

#[track_caller]
fn check_bits(subject: &Subject, want: &[u32], options: &EngineOptions) {
    let got = open_bits(&subject.dir, options, &subject.tokens);
    assert!(got == want, "{}: {options:?}", subject.dir.display());
}

each_subject!(one_option_at_a_time_changes_no_bit: check_options);

fn check_options(subject: &Subject) {
    let floor = floor(&subject.dir);
    for activations in [Activations::Full, Activations::Int16, Activations::Int8] {
        let plain = plain().activations(activations);
        let want = open_bits(&subject.dir, &plain, &subject.tokens);
        for isa in isa_names().into_iter().map(str::to_owned) {
            for threads in 1..=4 {
                let (isa, threads) = (Some(isa.clone()), Some(threads));
                check_bits(subject, &want, &plain.clone().isa(isa).threads(threads));
            }
        }
        for budget in [floor, floor * 2, floor * 3 + 1, u64::MAX >> 16] {
            for cache_policy in [CachePolicy::Lru, CachePolicy::Frequency] {
                for prefetch in
                    [Prefetch::Off, Prefetch::LastToken, Prefetch::Lookahead, Prefetch::Auto]
                {
                    for expert_io in [IoChoice::Pread, IoChoice::Direct] {
                        let expert_cache = Some(budget);
                        let some = fast().expert_cache(expert_cache).expert_io(expert_io);
                        let some = some.activations(activations).cache_policy(cache_policy);
                        check_bits(subject, &want, &some.prefetch(prefetch));
                    }
                }
            }
        }
    }
}

/// Streamed experts give the bits of resident ones.
pub(crate) fn check(case: &Path) {
    let subject = Subject::of(case.to_path_buf());
    let want = open_bits(&subject.dir, &plain(), &subject.tokens);
    for budget in [floor(&subject.dir), u64::MAX >> 16] {
        for expert_io in [IoChoice::Pread, IoChoice::Direct] {
            let options = fast().expert_cache(Some(budget)).expert_io(expert_io);
            check_bits(&subject, &want, &options);
        }
    }
}

each_subject!(every_size_of_chunks_and_calls_gives_the_same_bits: check_sizes);

fn check_sizes(subject: &Subject) {
    let want = open_bits(&subject.dir, &plain(), &subject.tokens);
    for chunk in 1..=subject.tokens.len() {
        check_bits(subject, &want, &fast().chunk(Some(chunk)));
    }
    for options in [fast(), tightest(&subject.dir)] {
        let engine = Engine::open(&subject.dir, &options).unwrap();
        for call in 1..=subject.tokens.len() {
            let got = bits(&engine, &subject.tokens, call);
            assert!(got == want, "{}: calls of {call}", subject.dir.display());
        }
    }
}

/// Any combination of what must not matter.
fn any_options(floor: u64) -> impl Strategy<Value = (EngineOptions, usize)> {
    let isa = select(isa_names());
    let budget = prop_oneof![Just(floor), floor..floor * 6, Just(floor * 1000)];
    let io = select(vec![IoChoice::Auto, IoChoice::Mmap, IoChoice::Pread, IoChoice::Direct]);
    let policy = select(vec![CachePolicy::Lru, CachePolicy::Frequency]);
    let prefetch =
        select(vec![Prefetch::Off, Prefetch::LastToken, Prefetch::Lookahead, Prefetch::Auto]);
    let budget = proptest::option::of(budget);
    let parts =
        (isa, budget, io, policy, prefetch, 1..5usize, 1..50usize, 1..50usize, 48..900usize);
    parts.prop_map(
        |(isa, expert_cache, expert_io, cache_policy, prefetch, threads, chunk, call, ctx)| {
            let options = EngineOptions::default()
                .isa(Some(isa.to_owned()))
                .threads(Some(threads))
                .expert_cache(expert_cache)
                .expert_io(expert_io)
                .cache_policy(cache_policy)
                .prefetch(prefetch)
                .chunk(Some(chunk))
                .ctx(Some(ctx));
            (options, call)
        },
    )
}

each_subject!(any_combination_of_options_gives_the_same_bits: check_combinations);

fn check_combinations(subject: &Subject) {
    let want = open_bits(&subject.dir, &plain(), &subject.tokens);
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    let test = |(options, call): (EngineOptions, usize)| {
        let engine = Engine::open(&subject.dir, &options).unwrap();
        if bits(&engine, &subject.tokens, call) == want {
            Ok(())
        } else {
            Err(TestCaseError::fail(format!("{}", subject.dir.display())))
        }
    };
    TestRunner::new(config).run(&any_options(floor(&subject.dir)), test).unwrap();
}

each_subject!(a_cache_that_shrinks_and_grows_gives_the_same_bits: check_resized);

fn check_resized(subject: &Subject) {
    let floor = floor(&subject.dir);
    let want = open_bits(&subject.dir, &plain(), &subject.tokens);
    for expert_io in [IoChoice::Pread, IoChoice::Direct] {
        let expert_cache = Some(floor * 6);
        let options = fast().expert_cache(expert_cache).expert_io(expert_io);
        let engine = Engine::open(&subject.dir, &options).unwrap();
        assert!(engine.resize_expert_cache(floor - 1).is_err());
        let mut session = engine.session();
        let mut got = Vec::new();
        for (token, factor) in subject.tokens.iter().zip([1, 6, 2, 1, 3].into_iter().cycle()) {
            engine.resize_expert_cache(floor * factor).unwrap();
            let logits = session.eval_token(*token).unwrap();
            got.extend(logits.iter().map(|logit| logit.to_bits()));
        }
        assert!(got == want, "{}: between tokens", subject.dir.display());
        // While tokens are computed.
        let is_done = AtomicBool::new(false);
        let got = thread::scope(|scope| {
            scope.spawn(|| {
                for factor in [1, 5, 2, 6].into_iter().cycle() {
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                    engine.resize_expert_cache(floor * factor).unwrap();
                    thread::sleep(Duration::from_micros(300));
                }
            });
            let got = bits(&engine, &subject.tokens, 3);
            is_done.store(true, Ordering::Relaxed);
            got
        });
        assert!(got == want, "{}: during tokens", subject.dir.display());
    }
}

#[test]
fn a_packed_container_gives_the_bits_of_its_source_in_place() {
    for case in with_subjects!([case_names] {}) {
        let source = golden_dir().join(case);
        let dir = packed(case, &PackOptions::unquantised());
        let tokens = &Golden::read(&source).sequences.pop().unwrap().tokens;
        for activations in [Activations::Full, Activations::Int16, Activations::Int8] {
            let plain = plain().activations(activations);
            let want = open_bits(&source, &plain, tokens);
            assert!(open_bits(dir.path(), &plain, tokens) == want, "{case}");
            let tight = tightest(dir.path()).activations(activations);
            assert!(open_bits(dir.path(), &tight, tokens) == want, "{case}");
        }
    }
}

each_subject!(sessions_that_take_turns_give_the_bits_of_each_alone: check_turns);

fn check_turns(subject: &Subject) {
    let other: Vec<TokenId> = subject.tokens.iter().rev().copied().collect();
    for prefetch in [Prefetch::Off, Prefetch::LastToken, Prefetch::Lookahead, Prefetch::Auto] {
        let options = tightest(&subject.dir).prefetch(prefetch);
        let want =
            [&subject.tokens, &other].map(|tokens| open_bits(&subject.dir, &plain(), tokens));
        let engine = Engine::open(&subject.dir, &options).unwrap();
        let mut sessions = [engine.session(), engine.session()];
        let mut got = [Vec::new(), Vec::new()];
        let parts = subject.tokens.chunks(3).zip(other.chunks(3));
        for parts in parts {
            for (i, part) in [parts.0, parts.1].into_iter().enumerate() {
                let sink = &mut |_, logits: &[f32]| {
                    got[i].extend(logits.iter().map(|logit| logit.to_bits()));
                    Ok(())
                };
                sessions[i].eval_all(part, sink).unwrap();
            }
        }
        assert!(got == want, "{}: {prefetch:?}", subject.dir.display());
        // A session that is dropped or emptied leaves nothing behind.
        let [mut first, second] = sessions;
        drop(second);
        first.clear();
        let last = first.eval_prompt(&subject.tokens).unwrap();
        let last: Vec<u32> = last.iter().map(|logit| logit.to_bits()).collect();
        assert!(want[0].ends_with(&last), "{}", subject.dir.display());
    }
}

#[test]
fn a_session_goes_on_after_a_step_that_failed() {
    for case in ["hf-bf16", "mlx-q4"] {
        let dir = packed(case, &PackOptions::unquantised());
        let tokens = Golden::read(&golden_dir().join(case)).sequences.pop().unwrap().tokens;
        let want = open_bits(dir.path(), &plain(), &tokens);
        let vocab = want.len() / tokens.len();
        let files = Cut::of(dir.path());
        for prefetch in [Prefetch::Off, Prefetch::LastToken, Prefetch::Lookahead, Prefetch::Auto] {
            for layer in 0..files.files.len() {
                let options = tightest(dir.path()).prefetch(prefetch);
                let engine = Engine::open(dir.path(), &options).unwrap();
                let (mut session, half) = (engine.session(), tokens.len() / 2);
                session.eval_prompt(&tokens[..half]).unwrap();
                files.cut(layer);
                // The token's experts of an early layer may still be in the cache.
                let failed = session.eval_prompt(&tokens[half..]).unwrap_err();
                check_names_layer_file(&failed);
                assert_eq!(session.tokens(), &tokens[..half]);
                check_names_layer_file(&session.eval_token(tokens[half]).unwrap_err());
                assert_eq!(session.tokens(), &tokens[..half]);
                files.restore();
                let mut got = Vec::new();
                for token in &tokens[half..] {
                    let logits = session.eval_token(*token).unwrap();
                    got.extend(logits.iter().map(|logit| logit.to_bits()));
                }
                assert!(got == want[half * vocab..], "{case}, {prefetch:?}, layer {layer}");
            }
        }
    }
}

#[test]
fn a_prompt_that_fails_half_way_keeps_the_chunks_before() {
    let case = "mlx-q4";
    let dir = packed(case, &PackOptions::unquantised());
    let tokens = Golden::read(&golden_dir().join(case)).sequences.pop().unwrap().tokens;
    let want = open_bits(dir.path(), &plain(), &tokens);
    let files = Cut::of(dir.path());
    let options = tightest(dir.path()).chunk(Some(4));
    let engine = Engine::open(dir.path(), &options).unwrap();
    let mut session = engine.session();
    let mut cut_later = |n_done| {
        if n_done == 12 {
            files.cut(0);
        }
    };
    let failed = session.eval_prompt_with_progress(&tokens, &mut cut_later).unwrap_err();
    check_names_layer_file(&failed);
    assert_eq!(session.tokens(), &tokens[..12]);
    files.restore();
    let last = session.eval_prompt(&tokens[12..]).unwrap();
    let last: Vec<u32> = last.iter().map(|logit| logit.to_bits()).collect();
    assert!(want.ends_with(&last));
}
