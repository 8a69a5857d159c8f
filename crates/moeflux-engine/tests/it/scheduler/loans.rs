//! Sessions on loan between jobs, and what the prompt cache keeps of a job.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use moeflux_engine::sampler::SamplerOptions;
use moeflux_engine::{
    Engine, EngineOptions, Event, Finish, PromptCacheOptions, Scheduler, SchedulerOptions, Session,
    SubmitError,
};
use moeflux_text::{ChatTemplate, Message, RenderRequest, Tokenizer, Turn};

use super::{Asked, QUESTIONS, alone, job, open, start, turn, warm};

const FIRST: &str = "What does `Vec::push` do?";

/// The turn after an answer.
fn next_turn(tokenizer: &Tokenizer, system: &str, answer: &str) -> Turn {
    let template = ChatTemplate::of(tokenizer, false).unwrap().unwrap();
    let messages = [
        Message::new("system", system),
        Message::new("user", FIRST),
        Message::new("assistant", answer),
        Message::new("user", QUESTIONS[2]),
    ];
    let request = RenderRequest { messages: &messages, ..RenderRequest::default() };
    Turn::of(tokenizer, &template, &request, usize::MAX).unwrap()
}

fn ask(scheduler: &Scheduler, prompt: &Turn, max_tokens: usize, sampler: SamplerOptions) -> Asked {
    let (job, one) = job(prompt.clone(), max_tokens, sampler);
    scheduler.submit(job).unwrap();
    one
}

fn cached(dir: &Path) -> EngineOptions {
    let prompt_cache =
        PromptCacheOptions { dir: dir.to_owned(), max_bytes: 1 << 30, min_tokens: 1 };
    EngineOptions::default().prompt_cache(Some(prompt_cache))
}

fn scheduled(options: &EngineOptions) -> (Engine, Arc<Tokenizer>, Scheduler) {
    let (engine, tokenizer) = open(options);
    let limits = SchedulerOptions { n_sessions: 1, max_waiting: 10 };
    let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits).unwrap();
    (engine, tokenizer, scheduler)
}

/// Samples forever, as far as a test can tell.
fn endless() -> SamplerOptions {
    SamplerOptions { temperature: 3.0, ..SamplerOptions::default() }
}

fn begun(one: &Asked) {
    assert!(one.events.iter().any(|event| matches!(event, Event::Text(_))));
}

#[test]
fn a_session_that_was_saved_between_jobs_goes_on_after_others() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("session");
    let (engine, tokenizer, scheduler) = start(1, 10);
    let system = "You answer briefly.";
    let prompt = turn(&tokenizer, Some(system), FIRST);
    let (said, first) = ask(&scheduler, &prompt, 40, SamplerOptions::default()).answer();
    let path = file.clone();
    let saved = scheduler.with_session(move |session| {
        session.save(&path).unwrap();
        session.tokens().to_vec()
    });
    let saved = saved.unwrap();
    assert_eq!(saved[..prompt.tokens.len()], prompt.tokens);
    assert!(saved.len() + 1 >= prompt.tokens.len() + first.n_generated);

    let other = turn(&tokenizer, None, QUESTIONS[5]);
    ask(&scheduler, &other, 10, warm(1)).answer();
    let held = scheduler.with_session(|session| session.tokens().to_vec()).unwrap();
    assert_eq!(held[..other.tokens.len()], other.tokens);

    let next = next_turn(&tokenizer, system, &said);
    let want = alone(&engine, &tokenizer, &next, warm(2));
    let loaded = scheduler.with_session(move |session| session.load(&file)).unwrap();
    loaded.unwrap();
    let (text, answer) = ask(&scheduler, &next, 40, warm(2)).answer();
    assert_eq!(text, want);
    assert!(answer.n_reused > prompt.tokens.len(), "{answer:?}");

    scheduler.with_session(Session::clear).unwrap();
    let (text, answer) = ask(&scheduler, &next, 40, warm(2)).answer();
    assert_eq!((text, answer.n_reused), (want, 0));
}

#[test]
fn a_file_that_is_no_session_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, tokenizer, scheduler) = start(1, 10);
    let prompt = turn(&tokenizer, None, FIRST);
    ask(&scheduler, &prompt, 5, SamplerOptions::default()).answer();
    let held = || scheduler.with_session(|session| session.tokens().to_vec()).unwrap();
    let before = held();
    assert!(before.starts_with(&prompt.tokens));
    let missing = dir.path().join("missing");
    assert!(scheduler.with_session(move |session| session.load(&missing)).unwrap().is_err());
    assert_eq!(held(), before);
    assert!(ask(&scheduler, &prompt, 5, SamplerOptions::default()).answer().1.n_reused > 0);
}

#[test]
fn a_loan_waits_for_the_job_that_has_the_only_session() {
    let (_, tokenizer, scheduler) = start(1, 10);
    let prompt = turn(&tokenizer, None, QUESTIONS[5]);
    let one = ask(&scheduler, &prompt, 30, endless());
    begun(&one);
    let position = scheduler.with_session(|session| session.position()).unwrap();
    // All events were sent before.
    let done = one.events.try_iter().find_map(|event| match event {
        Event::Done(answer) => Some(answer),
        _ => None,
    });
    let answer = done.expect("the session was lent while a job had it");
    // The last token of an answer is not evaluated.
    assert_eq!(position + 1, prompt.tokens.len() + answer.n_generated);
}

#[test]
fn a_loan_does_not_wait_for_jobs_of_other_sessions() {
    let (_, tokenizer, scheduler) = start(2, 10);
    let one = ask(&scheduler, &turn(&tokenizer, None, QUESTIONS[5]), 100_000, endless());
    begun(&one);
    let other = turn(&tokenizer, None, FIRST);
    ask(&scheduler, &other, 3, SamplerOptions::default()).answer();
    let held = scheduler.with_session(|session| session.tokens().to_vec()).unwrap();
    assert_eq!(held[..other.tokens.len()], other.tokens);
    one.cancelled.store(true, Ordering::Relaxed);
    assert_eq!(one.answer().1.finish, Finish::Cancelled);
}

#[test]
fn after_a_stop_no_session_is_lent_and_nobody_waits_for_one() {
    let (_, tokenizer, scheduler) = start(1, 10);
    let scheduler = Arc::new(scheduler);
    let one = ask(&scheduler, &turn(&tokenizer, None, QUESTIONS[5]), 100_000, endless());
    begun(&one);
    let (sender, returned) = mpsc::channel();
    let waiting = Arc::clone(&scheduler);
    let visitor = thread::spawn(move || {
        // Whether it comes before the end is a matter of time.
        sender.send(waiting.with_session(|session| session.position()).is_ok()).unwrap();
    });
    scheduler.shutdown(Duration::ZERO);
    returned.recv_timeout(Duration::from_secs(60)).expect("a loan outlasts the scheduler");
    visitor.join().unwrap();
    assert_eq!(one.answer().1.finish, Finish::Cancelled);
    assert_eq!(scheduler.with_session(|_| ()), Err(SubmitError::Stopped));
}

#[test]
fn the_prompt_cache_has_a_session_before_it_is_lent() {
    let dir = tempfile::tempdir().unwrap();
    let options = cached(dir.path());
    let (_, tokenizer, scheduler) = scheduled(&options);
    let prompt = turn(&tokenizer, Some(&"You answer briefly. ".repeat(30)), FIRST);
    ask(&scheduler, &prompt, 5, SamplerOptions::default()).answer();
    scheduler.with_session(Session::clear).unwrap();
    let (_, _, other) = scheduled(&options);
    let answer = ask(&other, &prompt, 5, SamplerOptions::default()).answer().1;
    assert!(answer.n_reused > 100, "{answer:?}");
}

#[test]
fn the_prompt_cache_keeps_an_answer_only_where_a_job_says_so() {
    let system = "You answer briefly. ".repeat(30);
    for keeps_answer in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let options = cached(dir.path());
        let (engine, tokenizer, scheduler) = scheduled(&options);
        let prompt = turn(&tokenizer, Some(&system), FIRST);
        let (mut first, one) = job(prompt.clone(), 40, SamplerOptions::default());
        first.keeps_answer = keeps_answer;
        scheduler.submit(first).unwrap();
        let said = one.answer().0;
        scheduler.shutdown(Duration::from_secs(60));
        assert!(engine.take_warnings().is_empty());
        let (_, _, scheduler) = scheduled(&options);
        let next = next_turn(&tokenizer, &system, &said);
        let answer = ask(&scheduler, &next, 5, SamplerOptions::default()).answer().1;
        let n_prompt = prompt.tokens.len();
        assert!(answer.n_reused > 100, "{answer:?}");
        assert_eq!(answer.n_reused > n_prompt, keeps_answer, "{n_prompt} tokens, {answer:?}");
    }
}
