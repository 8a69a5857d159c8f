//! Many answers at a time: the same as one by one, in turn, and no more than asked for.

mod displaced;
mod loans;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use moeflux_engine::sampler::SamplerOptions;
use moeflux_engine::{
    Answer, DecodingOptions, Engine, EngineError, EngineOptions, Event, Finish, Job,
    PromptCacheOptions, Scheduler, SchedulerOptions, Speculation, SpeculationStats, SubmitError,
};
use moeflux_store::IoChoice;
use moeflux_text::{
    AnswerShape, ChatTemplate, Grammar, Grammars, Markup, Message, OutputFormat, RenderRequest,
    Tokenizer, Turn,
};
use serde_json::{Value, json};

use crate::common::{Plain, plain_answer, text_of};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo")
}

fn turn(tokenizer: &Tokenizer, system: Option<&str>, question: &str) -> Turn {
    let template = ChatTemplate::of(tokenizer, false).unwrap().unwrap();
    let mut messages: Vec<Message> =
        system.map(|text| Message::new("system", text)).into_iter().collect();
    messages.push(Message::new("user", question));
    let request = RenderRequest { messages: &messages, ..RenderRequest::default() };
    Turn::of(tokenizer, &template, &request, usize::MAX).unwrap()
}

struct Asked {
    events: Receiver<Event>,
    cancelled: Arc<AtomicBool>,
}

impl Asked {
    /// The whole text and how it ended.
    #[track_caller]
    fn answer(self) -> (String, Answer) {
        let mut text = String::new();
        for event in self.events {
            match event {
                Event::Prompt { n_done, n_total, n_reused } => {
                    assert!(n_reused <= n_done && n_done <= n_total);
                }
                Event::Text(piece) => text.push_str(&piece.text),
                Event::Scored(_) => panic!("no probabilities were asked for"),
                Event::Done(answer) => return (text, answer),
                Event::Failed(err) => panic!("{err}"),
            }
        }
        panic!("the scheduler forgot a job");
    }
}

fn job(prompt: Turn, max_tokens: usize, sampler: SamplerOptions) -> (Job, Asked) {
    let (sender, events) = mpsc::channel();
    let cancelled = Arc::new(AtomicBool::new(false));
    let job = Job {
        prompt,
        pictures: Vec::new(),
        decoding: DecodingOptions {
            max_tokens: Some(max_tokens),
            sampler,
            ..DecodingOptions::default()
        },
        keeps_answer: true,
        prompt_logprobs: None,
        owner: None,
        cancelled: Arc::clone(&cancelled),
        listener: Box::new(move |event| drop(sender.send(event))),
    };
    (job, Asked { events, cancelled })
}

fn warm(seed: u64) -> SamplerOptions {
    SamplerOptions { temperature: 0.9, top_p: 0.95, seed, ..SamplerOptions::default() }
}

/// What one session alone answers.
fn alone(engine: &Engine, tokenizer: &Tokenizer, prompt: &Turn, sampler: SamplerOptions) -> String {
    try_alone(engine, tokenizer, prompt, sampler).unwrap()
}

/// The same, where experts may not come.
fn try_alone(
    engine: &Engine,
    tokenizer: &Tokenizer,
    prompt: &Turn,
    sampler: SamplerOptions,
) -> Result<String, EngineError> {
    let how = Plain { sampler, max_tokens: 40, ..Plain::default() };
    Ok(text_of(tokenizer, &plain_answer(engine, tokenizer, &prompt.tokens, &how)?))
}

fn open(options: &EngineOptions) -> (Engine, Arc<Tokenizer>) {
    open_at(&demo(), options)
}

fn open_at(dir: &Path, options: &EngineOptions) -> (Engine, Arc<Tokenizer>) {
    let engine = Engine::open(dir, options).unwrap();
    let tokenizer = Arc::new(engine.tokenizer().unwrap());
    (engine, tokenizer)
}

fn start(n_sessions: usize, max_waiting: usize) -> (Engine, Arc<Tokenizer>, Scheduler) {
    let (engine, tokenizer) = open(&EngineOptions::default());
    let options = SchedulerOptions { n_sessions, max_waiting };
    let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), options).unwrap();
    (engine, tokenizer, scheduler)
}

const QUESTIONS: [&str; 6] = [
    "What does `Vec::push` do?",
    "What is 23 + 45?",
    "What is `Option::unwrap_or` for?",
    "What is 7 + 12?",
    "What type is `Vec`?",
    "Tell me about ownership.",
];

#[test]
fn many_answers_are_those_of_each_alone() {
    for options in [EngineOptions::default(), EngineOptions::default().chunk(Some(7))] {
        let (engine, tokenizer) = open(&options);
        let options = SchedulerOptions { n_sessions: 4, max_waiting: 100 };
        let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), options).unwrap();
        let mut asked = Vec::new();
        for (seed, question) in (0..).zip(QUESTIONS.iter().cycle().take(14)) {
            let system = (seed % 3 == 0).then_some("You answer questions about Rust.");
            let prompt = turn(&tokenizer, system, question);
            let (job, one) = job(prompt.clone(), 40, warm(seed));
            scheduler.submit(job).unwrap();
            asked.push((prompt, warm(seed), one));
        }
        for (prompt, sampler, one) in asked {
            let (text, answer) = one.answer();
            assert_eq!(text, alone(&engine, &tokenizer, &prompt, sampler));
            assert_eq!(answer.n_prompt, prompt.tokens.len());
        }
        let load = scheduler.stats();
        assert_eq!((load.n_ended, load.n_waiting), (14, 0));
        assert!(load.n_rows > load.n_steps, "{load:?}");
    }
}

#[test]
fn drafts_change_no_answer_and_some_are_accepted() {
    let off = EngineOptions::default().speculation(Speculation::Off);
    let (plain, tokenizer) = open(&off);
    let greedy = SamplerOptions::default();
    let samplers = [
        greedy.clone(),
        warm(3),
        SamplerOptions { repeat_penalty: 1.3, ..greedy },
        SamplerOptions { top_k: 20, ..warm(4) },
    ];
    let mut wanted = Vec::new();
    for (i, question) in QUESTIONS.iter().enumerate() {
        let prompt = turn(&tokenizer, None, question);
        let said = alone(&plain, &tokenizer, &prompt, SamplerOptions::default());
        // What it is about to say stands in the prompt.
        let prompt = turn(&tokenizer, Some(&said), question);
        let sampler = samplers[i % samplers.len()].clone();
        let text = alone(&plain, &tokenizer, &prompt, sampler.clone());
        wanted.push((prompt, sampler, text));
    }
    for (drafts, chunk, n_sessions) in [
        (Speculation::Fixed(7), None, 1),
        (Speculation::Fixed(7), None, 3),
        (Speculation::Auto, None, 1),
        (Speculation::Auto, None, 3),
        (Speculation::Fixed(15), Some(6), 1),
        (Speculation::Fixed(15), Some(6), 3),
    ] {
        let (engine, _) = open(&EngineOptions::default().speculation(drafts).chunk(chunk));
        let options = SchedulerOptions { n_sessions, max_waiting: 100 };
        let scheduler = Scheduler::start(engine, Arc::clone(&tokenizer), options).unwrap();
        let ask = |(prompt, sampler, _): &(Turn, SamplerOptions, String)| {
            let (job, one) = job(prompt.clone(), 40, sampler.clone());
            scheduler.submit(job).unwrap();
            one
        };
        let asked: Vec<Asked> = wanted.iter().map(ask).collect();
        let mut counts = SpeculationStats::default();
        for (one, (_, _, want)) in asked.into_iter().zip(&wanted) {
            let (text, answer) = one.answer();
            assert_eq!(&text, want, "{drafts:?}");
            counts += answer.speculation;
        }
        if drafts != Speculation::Auto {
            assert!(
                counts.accepted > 0 && counts.accepted < counts.drafted,
                "{drafts:?}: {counts:?}"
            );
        }
        assert_eq!(scheduler.stats().speculation, counts);
    }
}

#[test]
fn mtp_drafts_change_no_answer_at_any_batch_size() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let dir = golden.join("qwen3_5_moe-mtp");
    let texts = ["What is a list?", "2 + 2 =", "fn main() {", "abcabcabc", "Why?"];
    let options = |drafts| EngineOptions::default().speculation(drafts).ctx(Some(128));
    let answers = [Speculation::Off, Speculation::Fixed(1), Speculation::Fixed(3)].map(|drafts| {
        let engine = Engine::open(&dir, &options(drafts)).unwrap();
        let tokenizer = Arc::new(engine.tokenizer().unwrap());
        let options = SchedulerOptions { n_sessions: 3, max_waiting: 100 };
        let scheduler = Scheduler::start(engine, Arc::clone(&tokenizer), options).unwrap();
        let asked: Vec<Asked> = (0..)
            .zip(texts)
            .map(|(i, text)| {
                let tokens = tokenizer.encode(text, Markup::Literal).unwrap();
                let sampler = if i % 2 == 0 { SamplerOptions::default() } else { warm(i) };
                let (job, one) = job(Turn { tokens, ..Turn::default() }, 40, sampler);
                scheduler.submit(job).unwrap();
                one
            })
            .collect();
        let answers: Vec<(String, Answer)> = asked.into_iter().map(Asked::answer).collect();
        let counts = answers.iter().map(|answer| answer.1.speculation).fold(
            SpeculationStats::default(),
            |mut all, piece| {
                all += piece;
                all
            },
        );
        (answers.into_iter().map(|answer| answer.0).collect::<Vec<_>>(), counts)
    });
    let [(want, none), (one, of_one), (three, of_three)] = answers;
    assert_eq!((&one, &three), (&want, &want));
    assert_eq!(none, SpeculationStats::default());
    // Most of these places have no like before.
    assert!(of_one.drafted >= 60 && of_three.drafted > of_one.drafted, "{of_one:?} {of_three:?}");
}

#[test]
fn forced_tokens_are_drafted_and_change_no_answer() {
    let schema = json!({
        "type": "object",
        "properties": {"temperature_outside": {"type": "integer"}, "is_raining": {"type": "boolean"}},
        "required": ["temperature_outside", "is_raining"],
        "additionalProperties": false,
    });
    let said = [Speculation::Off, Speculation::Fixed(7)].map(|drafts| {
        let (engine, tokenizer) = open(&EngineOptions::default().speculation(drafts));
        let grammar = Grammar {
            format: OutputFormat::of(&tokenizer),
            is_thinking: false,
            shape: AnswerShape::Json(schema.clone()),
            tools: Vec::new(),
            must_call: false,
            may_call_many: false,
        };
        let constraint = Grammars::new(&tokenizer).unwrap().compile(&grammar).unwrap();
        let options = SchedulerOptions { n_sessions: 1, max_waiting: 1 };
        let scheduler = Scheduler::start(engine, Arc::clone(&tokenizer), options).unwrap();
        let prompt = turn(&tokenizer, None, "What is the weather like?");
        let (mut job, one) = job(prompt, 200, SamplerOptions::default());
        job.decoding.constraint = Some(constraint);
        scheduler.submit(job).unwrap();
        one.answer()
    });
    let [(plain, without), (text, with)] = said;
    assert_eq!(text, plain);
    let object: Value = serde_json::from_str(&text).unwrap();
    assert!(object["temperature_outside"].is_i64() && object["is_raining"].is_boolean());
    assert_eq!(
        (without.speculation, with.n_generated),
        (SpeculationStats::default(), without.n_generated)
    );
    assert!(with.speculation.accepted >= 5, "{:?}", with.speculation);
}

#[test]
fn a_system_prompt_is_read_once_by_all_sessions() {
    let (_, tokenizer, scheduler) = start(3, 10);
    let system = "You answer briefly. ".repeat(30);
    let mut reused = Vec::new();
    for question in QUESTIONS {
        let prompt = turn(&tokenizer, Some(&system), question);
        let (job, one) = job(prompt, 4, SamplerOptions::default());
        scheduler.submit(job).unwrap();
        reused.push(one.answer().1.n_reused);
    }
    assert_eq!(reused[0], 0);
    assert!(reused[1..].iter().all(|n| *n > 100), "{reused:?}");
    // Also where the sessions that hold it are busy.
    let asked = QUESTIONS.map(|question| {
        let prompt = turn(&tokenizer, Some(&system), &format!("{question} Well?"));
        let (job, one) = job(prompt, 30, SamplerOptions::default());
        scheduler.submit(job).unwrap();
        one
    });
    for one in asked {
        assert!(one.answer().1.n_reused > 100);
    }
}

#[test]
fn a_prompt_that_many_ask_at_once_is_read_once() {
    for chunk in [None, Some(16)] {
        let (engine, tokenizer) = open(&EngineOptions::default().chunk(chunk));
        let options = SchedulerOptions { n_sessions: 4, max_waiting: 10 };
        let scheduler = Scheduler::start(engine, Arc::clone(&tokenizer), options).unwrap();
        let system = "You answer briefly. ".repeat(30);
        let (mut jobs, mut asked) = (Vec::new(), Vec::new());
        for i in 0..4 {
            let prompt = turn(&tokenizer, Some(&system), QUESTIONS[i / 2]);
            let (job, one) = job(prompt, 4, SamplerOptions::default());
            jobs.push(job);
            asked.push(one);
        }
        scheduler.submit_all(jobs).unwrap();
        let mut reused: Vec<usize> = asked.into_iter().map(|one| one.answer().1.n_reused).collect();
        reused.sort_unstable();
        assert!(reused[0] == 0 && reused[1] > 100, "{reused:?}");
    }
}

#[test]
fn a_queue_that_is_full_says_so_and_recovers() {
    let (_, tokenizer, scheduler) = start(1, 2);
    let prompt = turn(&tokenizer, None, "Tell me about ownership.");
    let mut taken = Vec::new();
    let refused = loop {
        let (job, one) = job(prompt.clone(), 200, warm(taken.len() as u64));
        match scheduler.submit(job) {
            Ok(()) => taken.push(one),
            Err(err) => break err,
        }
        assert!(taken.len() < 50, "a queue of two takes no fifty");
    };
    assert!(matches!(refused, SubmitError::QueueFull { n_waiting: 2, .. }), "{refused:?}");
    for one in taken {
        assert!(one.answer().1.n_generated > 0);
    }
    let (job, one) = job(prompt, 3, warm(0));
    scheduler.submit(job).unwrap();
    assert_eq!(one.answer().1.n_generated, 3);
}

#[test]
fn cancelled_jobs_end_early() {
    let (_, tokenizer, scheduler) = start(1, 10);
    let prompt = turn(&tokenizer, None, "Tell me about ownership.");
    let sampler = || SamplerOptions { temperature: 3.0, ..SamplerOptions::default() };
    let (first, one) = job(prompt.clone(), 100_000, sampler());
    let (second, two) = job(prompt, 100_000, sampler());
    scheduler.submit_all(vec![first, second]).unwrap();
    let begun = one.events.iter().find(|event| matches!(event, Event::Text(_)));
    assert!(begun.is_some());
    two.cancelled.store(true, Ordering::Relaxed);
    let waiting = two.answer().1;
    assert_eq!((waiting.finish, waiting.n_generated), (Finish::Cancelled, 0));
    one.cancelled.store(true, Ordering::Relaxed);
    assert_eq!(one.answer().1.finish, Finish::Cancelled);
}

#[test]
fn logprobs_cover_the_text_and_nothing_of_a_stop_text() {
    let (_, tokenizer, scheduler) = start(1, 10);
    let prompt = turn(&tokenizer, None, "What does `Vec::push` do?");
    for (stop, finish) in [(vec![], Finish::EndOfText), (vec!["back of".to_owned()], Finish::Stop)]
    {
        let (mut job, one) = job(prompt.clone(), 40, SamplerOptions::default());
        (job.decoding.stop, job.decoding.top_logprobs) = (stop.clone(), Some(2));
        scheduler.submit(job).unwrap();
        let (mut text, mut spelled) = (String::new(), Vec::new());
        let answer = loop {
            match one.events.recv().unwrap() {
                Event::Text(piece) => {
                    text.push_str(&piece.text);
                    for logprob in piece.logprobs {
                        assert!(logprob.logprob <= 0.0 && logprob.top.len() == 2);
                        // Greedy: the token is the likeliest.
                        assert_eq!((logprob.token, logprob.logprob), logprob.top[0]);
                        spelled.extend_from_slice(tokenizer.token_bytes(logprob.token));
                    }
                }
                Event::Done(answer) => break answer,
                Event::Prompt { .. } | Event::Scored(_) => {}
                Event::Failed(err) => panic!("{err}"),
            }
        };
        assert_eq!(answer.finish, finish);
        assert_eq!(answer.stop, stop.first().cloned());
        let spelled = String::from_utf8(spelled).unwrap();
        match finish {
            Finish::Stop => assert!(text.starts_with(&spelled), "{text:?} {spelled:?}"),
            _ => assert_eq!(text, spelled),
        }
    }
}

#[test]
fn what_is_learned_outlasts_a_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let prompt_cache =
        PromptCacheOptions { dir: dir.path().to_owned(), max_bytes: 1 << 30, min_tokens: 1 };
    let options = EngineOptions::default().prompt_cache(Some(prompt_cache));
    let system = "You answer briefly. ".repeat(30);
    let mut reused = Vec::new();
    for question in &QUESTIONS[..2] {
        let (engine, tokenizer) = open(&options);
        let limits = SchedulerOptions { n_sessions: 2, max_waiting: 10 };
        let scheduler = Scheduler::start(engine, Arc::clone(&tokenizer), limits).unwrap();
        let (job, one) =
            job(turn(&tokenizer, Some(&system), question), 1000, SamplerOptions::default());
        scheduler.submit(job).unwrap();
        scheduler.shutdown(Duration::from_secs(60));
        let answer = one.answer().1;
        assert_eq!(answer.finish, Finish::EndOfText);
        reused.push(answer.n_reused);
        assert!(!scheduler.is_running());
        let (job, _) = self::job(Turn::raw(Vec::new()), 1, SamplerOptions::default());
        assert_eq!(scheduler.submit(job), Err(SubmitError::Stopped));
    }
    assert!(reused[0] == 0 && reused[1] > 100, "{reused:?}");
}

#[test]
fn a_prompt_that_cannot_be_read_is_refused() {
    let (_, _, scheduler) = start(1, 10);
    let (job, one) = job(Turn::raw(Vec::new()), 1, SamplerOptions::default());
    scheduler.submit(job).unwrap();
    let failed = one.events.iter().find_map(|event| match event {
        Event::Failed(err) => Some(err.to_string()),
        _ => None,
    });
    assert!(failed.unwrap().contains("the prompt has no tokens"));
}

/// A copy of the demo model.
fn copied(into: &Path) {
    let experts = "packed_experts";
    fs::create_dir(into.join(experts)).unwrap();
    for from in [demo(), demo().join(experts)] {
        for entry in fs::read_dir(&from).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_file() {
                fs::copy(&path, into.join(path.strip_prefix(demo()).unwrap())).unwrap();
            }
        }
    }
}

#[test]
fn an_expert_that_cannot_be_read_ends_the_answers_that_need_it_alone() {
    const N_EXPERTS: u64 = 32;
    let dir = tempfile::tempdir().unwrap();
    copied(dir.path());
    let options = EngineOptions::default().expert_io(IoChoice::Pread);
    let greedy = SamplerOptions::default;
    for layer in 0..8 {
        let path = dir.path().join(format!("packed_experts/layer_{layer:02}.bin"));
        let whole = fs::metadata(&path).unwrap().len();
        // The time of writing stays, so that only what is gone fails.
        let cut = |len| {
            let file = fs::File::options().write(true).open(&path).unwrap();
            let then = file.metadata().unwrap().modified().unwrap();
            file.set_len(len).unwrap();
            file.set_modified(then).unwrap();
        };
        let (engine, tokenizer) = open_at(dir.path(), &options);
        // The last expert is gone.
        cut(whole - whole / N_EXPERTS);
        let prompts = QUESTIONS.map(|question| turn(&tokenizer, None, question));
        let want =
            prompts.each_ref().map(|prompt| try_alone(&engine, &tokenizer, prompt, greedy()).ok());
        if want.iter().all(Option::is_some) || want.iter().all(Option::is_none) {
            fs::copy(demo().join(path.strip_prefix(dir.path()).unwrap()), &path).unwrap();
            continue;
        }
        let limits = SchedulerOptions { n_sessions: 6, max_waiting: 10 };
        let scheduler = Scheduler::start(engine, tokenizer, limits).unwrap();
        let (jobs, asked): (Vec<_>, Vec<_>) =
            prompts.into_iter().map(|prompt| job(prompt, 40, greedy())).unzip();
        scheduler.submit_all(jobs).unwrap();
        for (want, one) in want.into_iter().zip(asked) {
            let (mut text, mut err) = (String::new(), None);
            for event in one.events {
                match event {
                    Event::Scored(_) => {}
                    Event::Text(piece) => text.push_str(&piece.text),
                    Event::Failed(failure) => err = Some(failure.to_string()),
                    Event::Prompt { .. } | Event::Done(_) => {}
                }
            }
            match (want, err) {
                (Some(want), None) => assert_eq!(text, want),
                (None, Some(err)) => assert!(err.contains("layer_"), "{err}"),
                (want, err) => panic!("{want:?}, {err:?}"),
            }
        }
        return;
    }
    panic!("no layer's last expert is one that some questions need and others do not");
}
