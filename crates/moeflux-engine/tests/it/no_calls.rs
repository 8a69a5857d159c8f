//! Calls of tools that were not offered: never sampled, drafted or not, and what is sampled in their
//! place has the probabilities that it has without them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use moeflux_engine::sampler::SamplerOptions;
use moeflux_engine::{
    Bias, DecodingOptions, Engine, EngineOptions, Event, Job, Scheduler, SchedulerOptions,
    Speculation, TokenId, TokenLogprob,
};
use moeflux_text::{ChatTemplate, Message, NoCalls, OutputFormat, RenderRequest, Turn};

use crate::common::{Golden, Plain, cases, plain_answer};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo")
}

/// Questions to which the demo model calls a tool.
const QUESTIONS: [&str; 5] = [
    "hi",
    "Why is the sky blue?",
    "What is the weather in Paris?",
    "Summarise this:",
    "Write a poem about the sea.",
];

/// How an answer of 24 tokens is made.
fn how(sampler: &SamplerOptions, no_calls: Option<NoCalls>) -> Plain {
    Plain { sampler: sampler.clone(), no_calls, max_tokens: 24 }
}

/// The tokens of an answer of the scheduler.
fn scheduled(
    scheduler: &Scheduler,
    prompt: &[TokenId],
    sampler: &SamplerOptions,
    bias: Bias,
    no_calls: Option<NoCalls>,
) -> Vec<TokenId> {
    let tokens = reported(scheduler, prompt, sampler, bias, no_calls);
    tokens.iter().map(|one| one.token).collect()
}

/// The same with the probabilities of the tokens.
fn reported(
    scheduler: &Scheduler,
    prompt: &[TokenId],
    sampler: &SamplerOptions,
    bias: Bias,
    no_calls: Option<NoCalls>,
) -> Vec<TokenLogprob> {
    let (sender, events) = mpsc::channel();
    let job = Job {
        prompt: Turn::raw(prompt.to_vec()),
        pictures: Vec::new(),
        decoding: DecodingOptions {
            max_tokens: Some(24),
            sampler: sampler.clone(),
            bias,
            no_calls,
            top_logprobs: Some(0),
            ..DecodingOptions::default()
        },
        keeps_answer: true,
        prompt_logprobs: None,
        owner: None,
        cancelled: Arc::new(AtomicBool::new(false)),
        listener: Box::new(move |event| drop(sender.send(event))),
    };
    scheduler.submit(job).unwrap();
    let mut tokens = Vec::new();
    for event in events {
        match event {
            Event::Text(text) => tokens.extend(text.logprobs),
            Event::Failed(err) => panic!("{err}"),
            Event::Done(_) | Event::Prompt { .. } | Event::Scored(_) => {}
        }
    }
    tokens
}

fn samplers() -> [SamplerOptions; 3] {
    let warm = SamplerOptions { temperature: 1.0, seed: 5, ..SamplerOptions::default() };
    [
        SamplerOptions::default(),
        SamplerOptions { top_k: 20, top_p: 0.9, ..warm.clone() },
        SamplerOptions { temperature: 3.0, repeat_penalty: 1.1, ..warm },
    ]
}

#[test]
fn calls_are_never_sampled_and_all_else_is_as_without_them() {
    for speculation in [Speculation::Off, Speculation::Fixed(4), Speculation::Auto] {
        let options = EngineOptions::default().speculation(speculation);
        let engine = Engine::open(&demo(), &options).unwrap();
        let tokenizer = Arc::new(engine.tokenizer().unwrap());
        let format = OutputFormat::of(&tokenizer);
        let template = ChatTemplate::of(&tokenizer, false).unwrap().unwrap();
        let opens = tokenizer.id_of("<tool_call>").unwrap();
        let limits = SchedulerOptions { n_sessions: 2, max_waiting: 100 };
        let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits).unwrap();
        let mut n_called = 0;
        for question in QUESTIONS {
            let messages = [Message::new("user", question)];
            let request = RenderRequest { messages: &messages, ..RenderRequest::default() };
            let prompt = Turn::of(&tokenizer, &template, &request, usize::MAX).unwrap().tokens;
            let no_calls = format.no_calls(&messages, &prompt);
            assert!(no_calls.as_ref().is_some_and(|no_calls| no_calls.rules_out(opens)));
            for sampler in samplers() {
                let free =
                    plain_answer(&engine, &tokenizer, &prompt, &how(&sampler, None)).unwrap();
                n_called += usize::from(free.contains(&opens));
                let plain = how(&sampler, no_calls.clone());
                let got = plain_answer(&engine, &tokenizer, &prompt, &plain).unwrap();
                assert!(!got.contains(&opens), "{question}");
                // The distribution is that of a model that cannot say it.
                let never = Bias { tokens: vec![(opens, f32::NEG_INFINITY)], ..Bias::default() };
                let want = scheduled(&scheduler, &prompt, &sampler, never, None);
                let of_scheduler =
                    scheduled(&scheduler, &prompt, &sampler, Bias::default(), no_calls.clone());
                assert_eq!(of_scheduler, want, "{question} {sampler:?}");
                assert_eq!(got, want, "{question} {sampler:?}");
            }
        }
        assert!(n_called > 4, "the questions are answered with calls: {n_called}");
    }
}

#[test]
fn every_family_goes_on_with_its_next_best_token() {
    let tokenizer = Engine::open(&demo(), &EngineOptions::default()).unwrap().tokenizer().unwrap();
    let tokenizer = Arc::new(tokenizer);
    for case in cases() {
        let golden = Golden::read(&case);
        let prompt = &golden.greedy_prompt;
        for speculation in [Speculation::Off, Speculation::Fixed(3)] {
            let engine =
                Engine::open(&case, &EngineOptions::default().speculation(speculation)).unwrap();
            let ruled_out = [golden.greedy_tokens[0], golden.greedy_tokens[2]];
            let no_calls = Some(NoCalls::of_tokens(ruled_out));
            let limits = SchedulerOptions { n_sessions: 1, max_waiting: 1 };
            let scheduler =
                Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits).unwrap();
            let greedy = SamplerOptions::default();
            let got = scheduled(&scheduler, prompt, &greedy, Bias::default(), no_calls);
            assert!(!got.is_empty(), "{}", case.display());
            let mut session = engine.session();
            let mut logits = session.eval_prompt(prompt).unwrap();
            for token in got {
                let allowed = (0..logits.len())
                    .filter(|id| ruled_out.iter().all(|token| token.0 as usize != *id));
                let best = allowed.reduce(|a, b| if logits[b] > logits[a] { b } else { a });
                assert_eq!(Some(token.0 as usize), best, "{}", case.display());
                logits = session.eval_token(token).unwrap();
            }
        }
    }
}

#[test]
fn probabilities_are_among_the_tokens_that_are_left() {
    let engine = Engine::open(&demo(), &EngineOptions::default()).unwrap();
    let tokenizer = Arc::new(engine.tokenizer().unwrap());
    let prompt = tokenizer.encode("What is", moeflux_text::Markup::Literal).unwrap();
    let limits = SchedulerOptions { n_sessions: 1, max_waiting: 1 };
    let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits).unwrap();
    let greedy = SamplerOptions::default();
    let ask = |no_calls| reported(&scheduler, &prompt, &greedy, Bias::default(), no_calls);
    let first = ask(None)[0].token;
    let logits = engine.session().eval_prompt(&prompt).unwrap();
    let log_sum = |is_left: &dyn Fn(usize) -> bool| {
        let left = (0..logits.len()).filter(|id| is_left(*id));
        left.map(|id| f64::from(logits[id]).exp()).sum::<f64>().ln()
    };
    let all = &ask(None)[0];
    assert_eq!(all.logprob, all.logprob_without_calls);
    let want = f64::from(logits[first.0 as usize]) - log_sum(&|_| true);
    assert!((f64::from(all.logprob) - want).abs() < 1e-4, "{all:?} {want}");
    let left = &ask(Some(NoCalls::of_tokens([first])))[0];
    let is_left = |id: usize| id != first.0 as usize;
    let best = (0..logits.len()).filter(|id| is_left(*id)).map(|id| logits[id]);
    let want = f64::from(best.fold(f32::NEG_INFINITY, f32::max)) - log_sum(&is_left);
    assert!((f64::from(left.logprob_without_calls) - want).abs() < 1e-4, "{left:?} {want}");
    // Clients read what the model itself says.
    let own = f64::from(logits[left.token.0 as usize]) - log_sum(&|_| true);
    assert!((f64::from(left.logprob) - own).abs() < 1e-4, "{left:?} {own}");
}
