//! Memory that runs out, and a device that is lost, while several answers are made.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};

use moeflux_core::TokenId;
use moeflux_text::Turn;

use super::{Event, Job, Scheduler};
use crate::engine::Engine;
use crate::options::EngineOptions;
use crate::scheduler::shared::SchedulerOptions;
use crate::{Answer, DecodingOptions};

struct Bench {
    engine: Engine,
    scheduler: Scheduler,
}

impl Bench {
    fn new() -> Bench {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
        let engine = Engine::open(&demo, &EngineOptions::default()).unwrap();
        let tokenizer = Arc::new(engine.tokenizer().unwrap());
        let options = SchedulerOptions { n_sessions: 3, max_waiting: 10 };
        let scheduler = Scheduler::start(engine.clone(), tokenizer, options).unwrap();
        Bench { engine, scheduler }
    }

    /// Lets the next `n_steps` steps find no memory.
    fn refuse(&self, n_steps: usize) {
        self.engine.core().n_refused = n_steps;
    }

    /// Answers prompts that begin with these tokens, all from one step on.
    fn ask(&self, firsts: &[u32]) -> Vec<Result<Answer, String>> {
        let (jobs, events): (Vec<Job>, Vec<_>) = firsts.iter().map(|first| job(*first)).unzip();
        self.scheduler.submit_all(jobs).unwrap();
        events.into_iter().map(|event| outcome(&event)).collect()
    }
}

fn job(first: u32) -> (Job, Receiver<Event>) {
    of((first..first + 9).map(TokenId).collect(), vec![8])
}

fn of(tokens: Vec<TokenId>, checkpoints: Vec<usize>) -> (Job, Receiver<Event>) {
    let (sender, events) = mpsc::channel();
    let job = Job {
        prompt: Turn { checkpoints, ..Turn::raw(tokens) },
        pictures: Vec::new(),
        decoding: DecodingOptions { max_tokens: Some(5), ..DecodingOptions::default() },
        keeps_answer: true,
        prompt_logprobs: None,
        owner: None,
        cancelled: Arc::new(AtomicBool::new(false)),
        listener: Box::new(move |event| drop(sender.send(event))),
    };
    (job, events)
}

fn outcome(events: &Receiver<Event>) -> Result<Answer, String> {
    let ended = events.iter().find_map(|event| match event {
        Event::Done(answer) => Some(Ok(answer)),
        Event::Failed(err) => Some(Err(err.to_string())),
        Event::Prompt { .. } | Event::Scored(_) | Event::Text(_) => None,
    });
    ended.expect("a job ends")
}

fn reused(answers: &[Result<Answer, String>]) -> Vec<usize> {
    answers.iter().map(|answer| answer.as_ref().unwrap().n_reused).collect()
}

#[test]
fn a_session_without_memory_takes_that_of_idle_sessions() {
    let bench = Bench::new();
    assert_eq!(reused(&bench.ask(&[10])), [0]);
    assert_eq!(reused(&bench.ask(&[20])), [0]);
    assert_eq!(reused(&bench.ask(&[10])), [8]);
    // One step fails, and the session that was unused for longest is emptied.
    bench.refuse(1);
    assert_eq!(reused(&bench.ask(&[30])), [0]);
    assert_eq!(reused(&bench.ask(&[10])), [8]);
    assert_eq!(reused(&bench.ask(&[20])), [0]);
    // All are emptied, and the job fails alone.
    bench.refuse(3);
    let failed = bench.ask(&[40]).remove(0).unwrap_err();
    assert!(failed.contains("out of memory") && failed.contains("fewer sessions"), "{failed}");
    assert_eq!(reused(&bench.ask(&[10, 20, 40])), [0, 0, 0]);
}

#[test]
fn a_copy_without_memory_takes_that_of_idle_sessions() {
    let bench = Bench::new();
    let longer = |first| (first..first + 12).chain([99]).map(TokenId).collect();
    assert_eq!(reused(&bench.ask(&[20])), [0]);
    let (job, events) = of(longer(10), vec![8, 12]);
    bench.scheduler.submit(job).unwrap();
    assert_eq!(outcome(&events).unwrap().n_reused, 0);
    // Another session would copy the common prefix. Without memory the least recently used one
    // is emptied, and the copy succeeds.
    bench.refuse(1);
    assert_eq!(reused(&bench.ask(&[10])), [8]);
    assert_eq!(reused(&bench.ask(&[20])), [0]);
}

#[test]
fn jobs_say_that_the_device_is_lost_and_so_does_the_scheduler() {
    let bench = Bench::new();
    assert_eq!(reused(&bench.ask(&[10])), [0]);
    assert!(!bench.scheduler.is_device_lost());
    bench.engine.core().is_lost = true;
    for _ in 0..2 {
        for answer in bench.ask(&[20, 30]) {
            let failed = answer.unwrap_err();
            assert!(failed.contains("lost") && failed.contains("open the model again"), "{failed}");
        }
    }
    assert!(bench.scheduler.is_device_lost() && bench.scheduler.is_running());
}

#[test]
fn what_one_answer_lacks_ends_no_other() {
    let bench = Bench::new();
    // The step of all three, and then that of the first by itself.
    bench.refuse(2);
    let answers = bench.ask(&[10, 20, 30]);
    assert!(answers[0].is_err(), "{answers:?}");
    assert!(
        answers[1..].iter().all(|answer| answer.as_ref().unwrap().n_generated == 5),
        "{answers:?}"
    );
    assert_eq!(bench.scheduler.stats().n_ended, 3);
}
