//! What a decoded token allocates once everything is in memory: its logits, which its user gets.

#[expect(dead_code, reason = "the references are golden.rs's business")]
#[path = "it/common/mod.rs"]
mod common;

use std::alloc::System;
use std::path::{Path, PathBuf};

use common::{Golden, golden_dir};
use moeflux_engine::{Engine, EngineOptions, TokenId};
use moeflux_store::{CachePolicy, IoChoice, Prefetch};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Tokens decoded before those that are counted: lists get their lengths.
const WARM: usize = 40;
const COUNTED: usize = 16;

/// Windows of tokens, the best of which counts: an expert may be wanted for the first time, caches
/// of keys and values get a page now and then, and the list of a session's tokens doubles.
const WINDOWS: usize = 4;

/// Lists that may still be lengthened in every window: a thread takes another task than before, or a
/// rare expert is read.
const SLACK: usize = 4;

/// Models, and what each of their tokens may allocate.
const CASES: [(&str, usize); 9] = [
    ("mlx-q4", 1),
    ("hf-bf16", 1),
    ("gpt_oss-mlx-mxfp4", 1),
    ("mixtral-mlx-q4", 1),
    ("minimax_m2-mlx-q4", 1),
    ("glm4_moe-mlx-q4", 1),
    ("qwen3_next-mlx-q4", 1),
    ("deepseek_v3-mlx-q4", 1),
    // An indexer's choice of positions lists heads, products and keys for each page.
    ("deepseek_v32-mlx-q4", 10),
];

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo")
}

/// Allocations and reallocations of all threads while tokens are decoded.
fn count(dir: &Path, options: &EngineOptions, tokens: &[TokenId]) -> usize {
    let engine = Engine::open(dir, options).unwrap();
    let mut session = engine.session();
    session.eval_prompt(tokens).unwrap();
    let mut tokens = tokens.iter().cycle();
    let mut eval = |n: usize| {
        for _ in 0..n {
            session.eval_token(*tokens.next().unwrap()).unwrap();
        }
    };
    eval(WARM);
    let window = |_| {
        let region = Region::new(ALLOCATOR);
        eval(COUNTED);
        let counts = region.change();
        counts.allocations + counts.reallocations
    };
    (0..WINDOWS).map(window).min().unwrap()
}

// One test, so that no other test allocates at the same time.
#[test]
fn a_decoded_token_allocates_its_logits_and_nothing_else() {
    let tokens: Vec<TokenId> = (0..300u32).map(|i| TokenId(i * 411 % 8000)).collect();
    let mut subjects = vec![(demo(), 1, tokens)];
    for (case, n_each) in CASES {
        let dir = golden_dir().join(case);
        let longest = Golden::read(&dir).sequences.into_iter().map(|sequence| sequence.tokens);
        subjects.push((dir, n_each, longest.max_by_key(Vec::len).unwrap()));
    }
    for (dir, n_each, tokens) in subjects {
        for threads in [1, 2] {
            let plain = EngineOptions::default().threads(Some(threads));
            let mapped = plain.clone().expert_io(IoChoice::Mmap);
            let read = |cache_policy| {
                plain
                    .clone()
                    .expert_io(IoChoice::Pread)
                    .expert_cache(Some(1 << 30))
                    .cache_policy(cache_policy)
                    .prefetch(Prefetch::Off)
            };
            for options in [mapped, read(CachePolicy::Lru), read(CachePolicy::Frequency)] {
                let n = count(&dir, &options, &tokens);
                let most = n_each * COUNTED + SLACK;
                assert!(n <= most, "{}: {n}, not {most}: {options:?}", dir.display());
                assert!(n >= COUNTED, "{}: {n} are too few to be all", dir.display());
            }
        }
    }
}
