//! Conversations that take turns on one session: each goes on from what it had, whatever the cache of
//! prompts is made of, and answers what it would without one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use moeflux_engine::sampler::SamplerOptions;
use moeflux_engine::{
    Engine, EngineOptions, PromptCacheOptions, PromptMemory, Scheduler, SchedulerOptions, TokenId,
};
use moeflux_text::{Tokenizer, Turn};

use super::{Asked, demo, job, open_at};

/// Conversations, and turns of each.
const N: usize = 3;
const TURNS: usize = 4;

/// Tokens of the beginning of a conversation, of a question, and of an answer as the next prompt has it.
const SYSTEM: usize = 90;
const QUESTION: usize = 12;
const ANSWER: usize = 40;

/// What a cache is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parts {
    Nothing,
    Memory,
    Drive,
    /// Memory for about one conversation.
    LittleMemoryAndDrive,
    Both,
}

impl Parts {
    const ALL: [Parts; 4] = [Parts::Memory, Parts::Drive, Parts::LittleMemoryAndDrive, Parts::Both];

    fn options(self, dir: &Path, little: u64) -> EngineOptions {
        let folder = PromptCacheOptions { dir: dir.to_owned(), max_bytes: 1 << 30, min_tokens: 4 };
        let memory = match self {
            Parts::Nothing | Parts::Drive => PromptMemory::Off,
            Parts::Memory | Parts::Both => PromptMemory::Bytes(64 << 20),
            Parts::LittleMemoryAndDrive => PromptMemory::Bytes(little),
        };
        // A drive that takes nothing, so that the least number of tokens is that of the others.
        let folder = match self {
            Parts::Nothing => None,
            Parts::Memory => Some(PromptCacheOptions { max_bytes: 1, ..folder }),
            Parts::Drive | Parts::LittleMemoryAndDrive | Parts::Both => Some(folder),
        };
        EngineOptions::default().ctx(Some(1024)).prompt_cache(folder).prompt_memory(memory)
    }
}

/// Tokens that follow from a seed.
fn tokens(engine: &Engine, seed: usize, n: usize) -> Vec<TokenId> {
    // The last ones of a vocabulary may end an answer.
    let vocab = engine.shape().vocab - 16;
    let token = |i: usize| (seed * 7919 + i * i * 31 + i * 17 + 5) % vocab;
    (0..n).map(|i| TokenId(u32::try_from(token(i)).unwrap())).collect()
}

/// The prompts of a conversation, turn by turn: each goes on from the one before, without what opened
/// its answer.
fn conversation(engine: &Engine, nth: usize) -> Vec<Turn> {
    let mut tokens_so_far = tokens(engine, nth, SYSTEM);
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        let begins = tokens_so_far.len();
        tokens_so_far.extend(tokens(engine, 100 + nth * 10 + turn, QUESTION));
        let mut all = tokens_so_far.clone();
        all.extend(tokens(engine, 77, 2));
        let mut checkpoints = vec![SYSTEM, begins, tokens_so_far.len()];
        checkpoints.dedup();
        turns.push(Turn { tokens: all, checkpoints, ..Turn::default() });
        tokens_so_far.extend(tokens(engine, 200 + nth * 10 + turn, ANSWER));
    }
    turns
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Models of each kind of caches: two with a delta rule, a state space, latents, windows, and keys and
/// values alone.
fn models() -> [PathBuf; 6] {
    let small =
        ["qwen3_5_moe-mtp", "nemotron_h-hf", "deepseek_v3-mtp", "gpt_oss-hf", "qwen3_moe-hf"];
    let [delta, space, latents, windows, plain] = small.map(golden);
    [demo(), plain, delta, space, latents, windows]
}

fn scheduled(dir: &Path, options: &EngineOptions) -> (Engine, Arc<Tokenizer>, Scheduler) {
    let engine = Engine::open(dir, options).unwrap();
    // Where a model has none, that of another writes its tokens.
    let other = || open_at(&golden("qwen3_5_moe-mtp"), &EngineOptions::default()).1;
    let tokenizer = engine.tokenizer().map_or_else(|_| other(), Arc::new);
    let limits = SchedulerOptions { n_sessions: 1, max_waiting: 10 };
    let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits).unwrap();
    (engine, tokenizer, scheduler)
}

fn ask(scheduler: &Scheduler, prompt: &Turn) -> Asked {
    let (job, one) = job(prompt.clone(), 6, SamplerOptions::default());
    scheduler.submit(job).unwrap();
    one
}

/// What came of prompts.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    texts: Vec<String>,
    n_prompt: usize,
    /// Tokens that the prompt before of the conversation had, evaluated again.
    n_again: usize,
}

/// Lets conversations take turns.
fn take_turns(scheduler: &Scheduler, conversations: &[Vec<Turn>]) -> Told {
    let mut told = Told::default();
    for turn in 0..TURNS {
        for prompts in conversations {
            let (text, answer) = ask(scheduler, &prompts[turn]).answer();
            told.texts.push(text);
            told.n_prompt += answer.n_prompt;
            let n_common = turn.checked_sub(1).map_or(0, |before| {
                let pairs = prompts[before].tokens.iter().zip(&prompts[turn].tokens);
                pairs.take_while(|(a, b)| a == b).count()
            });
            told.n_again += n_common.saturating_sub(answer.n_reused);
        }
    }
    told
}

#[test]
fn three_conversations_on_one_session_evaluate_nothing_twice() {
    for model in models() {
        let plain = take(&model, Parts::Nothing, 0);
        let little = n_bytes_of_one(&model) * 3 / 2;
        let share = |told: &Told| 100 * told.n_again / told.n_prompt;
        // All that conversations had before.
        assert!(share(&plain) > 60, "{model:?}: {plain:?}");
        for parts in Parts::ALL {
            let told = take(&model, parts, little);
            assert_eq!(told.texts, plain.texts, "{model:?}, {parts:?}");
            assert_eq!(told.n_prompt, plain.n_prompt);
            assert!(share(&told) == 0, "{model:?}, {parts:?}: {} again", told.n_again);
        }
    }
}

/// Bytes of a whole conversation.
fn n_bytes_of_one(model: &Path) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let (engine, _, scheduler) = scheduled(model, &Parts::Drive.options(dir.path(), 0));
    ask(&scheduler, conversation(&engine, 0).last().unwrap()).answer();
    scheduler.shutdown(Duration::from_secs(60));
    let files = fs::read_dir(dir.path()).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).max().unwrap()
}

fn take(model: &Path, parts: Parts, little: u64) -> Told {
    let dir = tempfile::tempdir().unwrap();
    let (engine, _, scheduler) = scheduled(model, &parts.options(dir.path(), little));
    let conversations: Vec<Vec<Turn>> = (0..N).map(|nth| conversation(&engine, nth)).collect();
    let told = take_turns(&scheduler, &conversations);
    scheduler.shutdown(Duration::from_secs(60));
    let warnings = engine.take_warnings();
    assert!(warnings.len() <= usize::from(parts == Parts::Memory), "{warnings:?}");
    told
}

#[test]
fn what_left_a_session_outlasts_the_server() {
    for model in models() {
        for parts in [Parts::Drive, Parts::Both] {
            let dir = tempfile::tempdir().unwrap();
            let options = parts.options(dir.path(), 0);
            let mut n_again = Vec::new();
            for turn in 0..2 {
                let (engine, _, scheduler) = scheduled(&model, &options);
                for nth in 0..N {
                    let prompts = conversation(&engine, nth);
                    let answer = ask(&scheduler, &prompts[turn]).answer().1;
                    let begun = if turn == 0 { 0 } else { SYSTEM + QUESTION };
                    n_again.push(begun - answer.n_reused.min(begun));
                }
                scheduler.shutdown(Duration::from_secs(60));
                assert_eq!(engine.take_warnings(), Vec::<String>::new());
            }
            assert_eq!(n_again, [0; 2 * N], "{model:?}, {parts:?}");
        }
    }
}

/// A reminder in the question before the last, which is gone in the next prompt.
#[test]
fn a_reminder_that_comes_and_goes_costs_what_follows_it() {
    for model in models() {
        let dir = tempfile::tempdir().unwrap();
        let (engine, _, scheduler) = scheduled(&model, &Parts::Both.options(dir.path(), 0));
        let (plain, _, alone) = scheduled(&model, &Parts::Nothing.options(dir.path(), 0));
        let plain_turns = conversation(&plain, 0);
        let reminded: Vec<Turn> =
            plain_turns.iter().map(|turn| with_reminder(&engine, turn)).collect();
        let prompts = [&plain_turns[0], &reminded[1], &plain_turns[2], &reminded[3]];
        for (i, prompt) in prompts.iter().enumerate() {
            let (text, answer) = ask(&scheduler, prompt).answer();
            assert_eq!(text, ask(&alone, prompt).answer().0, "{model:?}, turn {i}");
            let Some(before) = i.checked_sub(1).map(|before| prompts[before]) else { continue };
            let pairs = before.tokens.iter().zip(&prompt.tokens);
            let n_common = pairs.take_while(|(a, b)| a == b).count();
            // States are kept where the turn that changed began.
            let want = if engine.shape().is_recurrent() {
                let begins = before.checkpoints.iter().copied();
                begins.filter(|at| *at <= n_common).max().unwrap()
            } else {
                n_common
            };
            assert_eq!(answer.n_reused, want, "{model:?}, turn {i}");
            assert!(n_common - want <= 4, "{model:?}: {n_common} in common, {want} reused");
        }
    }
}

/// The same prompt with other tokens in its last question.
fn with_reminder(engine: &Engine, turn: &Turn) -> Turn {
    let [.., begins, end] = turn.checkpoints[..] else { panic!("two checkpoints") };
    let reminder = tokens(engine, 999, 7);
    let at = begins + 4;
    let tokens = [&turn.tokens[..at], &reminder, &turn.tokens[at..]].concat();
    let mut checkpoints = turn.checkpoints.clone();
    *checkpoints.last_mut().unwrap() = end + reminder.len();
    Turn { tokens, checkpoints, ..Turn::default() }
}

/// What happens to a folder while a server uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Removed,
    /// A file is in its place.
    Replaced,
    Damaged,
    Truncated,
}

/// Harms a folder; gives the number of its files.
fn harm(dir: &Path, fault: Fault) -> usize {
    let files = || fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    let n_files = files().count();
    match fault {
        Fault::Removed => fs::remove_dir_all(dir).unwrap(),
        Fault::Replaced if dir.is_dir() => {
            fs::remove_dir_all(dir).unwrap();
            fs::write(dir, "in the way").unwrap();
        }
        Fault::Replaced => {}
        Fault::Damaged => files().for_each(|file| {
            let mut bytes = fs::read(&file).unwrap();
            let middle = bytes.len() - 40;
            bytes[middle] ^= 1;
            fs::write(&file, bytes).unwrap();
        }),
        Fault::Truncated => files().for_each(|file| {
            let file = fs::File::options().write(true).open(file).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }),
    }
    n_files
}

#[test]
fn whatever_becomes_of_the_folder_answers_are_right_and_it_is_said_once() {
    for model in &models()[..2] {
        let plain = take(model, Parts::Nothing, 0);
        let little = n_bytes_of_one(model) * 3 / 2;
        for parts in [Parts::Drive, Parts::LittleMemoryAndDrive] {
            for fault in [Fault::Removed, Fault::Replaced, Fault::Damaged, Fault::Truncated] {
                let root = tempfile::tempdir().unwrap();
                let dir = root.path().join("prompts");
                let (engine, _, scheduler) = scheduled(model, &parts.options(&dir, little));
                let all: Vec<Vec<Turn>> = (0..N).map(|nth| conversation(&engine, nth)).collect();
                let (mut texts, mut n_harmed) = (Vec::new(), 0);
                for turn in 0..TURNS {
                    for prompts in &all {
                        texts.push(ask(&scheduler, &prompts[turn]).answer().0);
                    }
                    // Nothing is written meanwhile.
                    scheduler.with_session(|_| ()).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                    n_harmed += harm(&dir, fault);
                }
                scheduler.shutdown(Duration::from_secs(60));
                assert_eq!(texts, plain.texts, "{model:?}, {parts:?}, {fault:?}");
                let warnings = engine.take_warnings();
                match fault {
                    Fault::Removed => assert!(warnings.is_empty(), "{warnings:?}"),
                    Fault::Replaced => {
                        assert_eq!(warnings.len(), 1, "{parts:?}: {warnings:?}");
                        assert!(warnings[0].contains("not kept"), "{warnings:?}");
                    }
                    Fault::Damaged | Fault::Truncated => {
                        let is_said =
                            |text: &String| text.contains("removed from the prompt cache");
                        assert!(warnings.iter().all(is_said), "{warnings:?}");
                        assert!((1..=n_harmed).contains(&warnings.len()), "{warnings:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn two_servers_share_a_folder_that_is_too_small_for_both() {
    let model = demo();
    let plain = take(&model, Parts::Nothing, 0);
    let (root, little) = (tempfile::tempdir().unwrap(), n_bytes_of_one(&model) * 3 / 2);
    let folder = PromptCacheOptions {
        dir: root.path().join("prompts"),
        max_bytes: 3 * little,
        min_tokens: 4,
    };
    let options = Parts::LittleMemoryAndDrive.options(root.path(), little);
    let options = options.prompt_cache(Some(folder.clone()));
    let told: Vec<Told> = std::thread::scope(|scope| {
        let start = |_| {
            scope.spawn(|| {
                let (engine, _, scheduler) = scheduled(&model, &options);
                let all: Vec<Vec<Turn>> = (0..N).map(|nth| conversation(&engine, nth)).collect();
                let told = take_turns(&scheduler, &all);
                scheduler.shutdown(Duration::from_secs(60));
                assert_eq!(engine.take_warnings(), Vec::<String>::new());
                told
            })
        };
        let servers: Vec<_> = (0..2).map(start).collect();
        servers.into_iter().map(|server| server.join().unwrap()).collect()
    });
    assert!(told.iter().all(|told| told.texts == plain.texts));
    let files = fs::read_dir(&folder.dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    let n_bytes: u64 = files.map(|file| file.len()).sum();
    // Each may have written one at the same time.
    assert!(n_bytes <= 2 * folder.max_bytes, "{n_bytes}");
}
