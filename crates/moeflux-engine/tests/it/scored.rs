//! Probabilities of prompts: those of a session's own logits, whatever else the steps hold.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};

use moeflux_engine::sampler::logprob;
use moeflux_engine::{
    Answer, DecodingOptions, Engine, EngineOptions, Event, Finish, Job, Scheduler,
    SchedulerOptions, TokenId, TokenLogprob,
};
use moeflux_text::{Markup, Turn};

use crate::common::{Golden, cases};

/// Queues a prompt, with the most tokens of its answer and the likeliest tokens to report.
fn ask(
    scheduler: &Scheduler,
    prompt: &[TokenId],
    max_tokens: usize,
    n_top: Option<usize>,
) -> Receiver<Event> {
    let (sender, events) = mpsc::channel();
    let decoding = DecodingOptions {
        max_tokens: Some(max_tokens),
        top_logprobs: n_top,
        reports_end: true,
        ..DecodingOptions::default()
    };
    let job = Job {
        prompt: Turn::raw(prompt.to_vec()),
        pictures: Vec::new(),
        decoding,
        keeps_answer: true,
        prompt_logprobs: n_top,
        owner: None,
        cancelled: Arc::new(AtomicBool::new(false)),
        listener: Box::new(move |event| drop(sender.send(event))),
    };
    scheduler.submit(job).unwrap();
    events
}

/// The tokens of a prompt behind its first, and those of its answer.
fn received(events: &Receiver<Event>) -> (Vec<TokenLogprob>, Vec<TokenLogprob>, Answer) {
    let (mut scored, mut said) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Prompt { .. } => {}
            Event::Scored(tokens) => scored.extend(tokens),
            Event::Text(text) => said.extend(text.logprobs),
            Event::Done(answer) => return (scored, said, answer),
            Event::Failed(err) => panic!("{err}"),
        }
    }
    panic!("the scheduler forgot a job");
}

/// The probabilities of a prompt's tokens by all logits of a session.
fn by_hand(engine: &Engine, prompt: &[TokenId]) -> Vec<f32> {
    let mut all = Vec::new();
    let mut sink = |position: usize, logits: &[f32]| {
        if let Some(next) = prompt.get(position + 1) {
            all.push(logprob(logits, *next).unwrap());
        }
        Ok(())
    };
    engine.session().eval_all(prompt, &mut sink).unwrap();
    all
}

#[test]
fn tokens_of_prompts_have_the_probabilities_of_a_sessions_logits() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    let engine = Engine::open(&demo, &EngineOptions::default()).unwrap();
    let tokenizer = Arc::new(engine.tokenizer().unwrap());
    let limits = SchedulerOptions { n_sessions: 3, max_waiting: 100 };
    let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits).unwrap();
    let text = "`Vec::push` appends an element to the back of a collection. ".repeat(40);
    let tokens = tokenizer.encode(&text, Markup::Literal).unwrap();
    let mut asked = Vec::new();
    // Beginnings of one text, which other answers would reuse, and answers to the same in between.
    for n in [1, 2, 63, 64, 65, 300] {
        for max_tokens in [0, 1, 3] {
            let prompt = &tokens[..n];
            let plain = ask(&scheduler, prompt, 3, None);
            asked.push((prompt, max_tokens, ask(&scheduler, prompt, max_tokens, Some(2)), plain));
        }
    }
    for (prompt, max_tokens, events, plain) in asked {
        let (scored, said, answer) = received(&events);
        let want = by_hand(&engine, prompt);
        let got: Vec<f32> = scored.iter().map(|one| one.logprob).collect();
        assert_eq!(got, want, "{}", prompt.len());
        assert!(scored.iter().map(|one| one.token).eq(prompt[1..].iter().copied()));
        assert!(scored.iter().all(|one| one.top.len() == 2 && one.top[0].1 >= one.logprob));
        assert_eq!((answer.n_reused, answer.n_prompt), (0, prompt.len()));
        // A token that ends the text counts, too.
        assert_eq!(said.len(), answer.n_generated);
        let has_ended = answer.finish == Finish::EndOfText;
        assert!(said.len() == max_tokens || (has_ended && said.len() < max_tokens), "{answer:?}");
        let (scored, _, answer) = received(&plain);
        assert!(scored.is_empty() && answer.n_generated > 0);
    }
}

#[test]
fn every_family_scores_its_prompts() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    let engine = Engine::open(&demo, &EngineOptions::default()).unwrap();
    let tokenizer = Arc::new(engine.tokenizer().unwrap());
    for case in cases() {
        let prompt = Golden::read(&case).sequences.swap_remove(0).tokens;
        // Parts of odd sizes: states of recurrent layers go on between them.
        let engine = Engine::open(&case, &EngineOptions::default().chunk(Some(7))).unwrap();
        let limits = SchedulerOptions { n_sessions: 1, max_waiting: 1 };
        let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits).unwrap();
        let (scored, said, _) = received(&ask(&scheduler, &prompt, 1, Some(0)));
        let got: Vec<f32> = scored.iter().map(|one| one.logprob).collect();
        assert_eq!(got, by_hand(&engine, &prompt), "{}", case.display());
        assert!(said.len() <= 1);
    }
}
