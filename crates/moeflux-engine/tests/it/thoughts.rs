//! Thoughts that take too many tokens: ended by the template's own words, drafted or not, alone or with
//! others, and the answer goes on from there.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};

use moeflux_core::Dialects;
use moeflux_engine::sampler::{Sampler, SamplerOptions};
use moeflux_engine::{
    Answer, DecodingOptions, Engine, EngineOptions, Event, Finish, Job, Scheduler,
    SchedulerOptions, Speculation, TokenId,
};
use moeflux_text::{
    AnswerShape, ChatModel, Conversation, Delta, Message, Prepared, Special, Tokenizer,
};
use serde_json::{Value, json};

/// How the demo model's template opens an answer, and how one that thinks does.
const OPENS: &str = "{{- '<|im_start|>assistant\\n' }}\n{%- endif %}";
const THINKS: &str = "{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
    {{- '<think>\\n\\n</think>\\n\\n' }}
{%- else %}
    {{- '<think>\\n' }}
{%- endif %}
{%- endif %}";
/// What ends thoughts.
const CLOSING: &str = "\n</think>\n\n";

const QUESTIONS: [&str; 3] =
    ["What does `Vec::push` do?", "What is 23 + 45?", "What is `Option::unwrap_or` for?"];

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo")
}

/// The demo model's tokenizer with a template that opens thoughts. The model was never taught to end
/// them.
fn thinker() -> Arc<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"]
    {
        fs::copy(demo().join(name), dir.path().join(name)).unwrap();
    }
    let template = fs::read_to_string(demo().join("chat_template.jinja")).unwrap();
    assert_eq!(template.matches(OPENS).count(), 1);
    fs::write(dir.path().join("chat_template.jinja"), template.replace(OPENS, THINKS)).unwrap();
    Arc::new(Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap())
}

fn open(speculation: Speculation, n_sessions: usize) -> (Engine, ChatModel, Scheduler) {
    let options = EngineOptions::default().speculation(speculation);
    let engine = Engine::open(&demo(), &options).unwrap();
    let tokenizer = thinker();
    let text = ChatModel::new(Arc::clone(&tokenizer), engine.plan().ctx);
    let limits = SchedulerOptions { n_sessions, max_waiting: 100 };
    let scheduler = Scheduler::start(engine.clone(), tokenizer, limits).unwrap();
    (engine, text, scheduler)
}

fn conversation(question: &str, budget: Option<usize>) -> Conversation {
    let messages = vec![Message::new("user", question)];
    Conversation { thinking_budget: budget, ..Conversation::new(messages) }
}

/// An answer with its tokens and its text.
struct Said {
    tokens: Vec<TokenId>,
    thought: String,
    text: String,
    answer: Answer,
}

fn ask(
    scheduler: &Scheduler,
    prepared: &Prepared,
    sampler: &SamplerOptions,
    max_tokens: Option<usize>,
    top_logprobs: Option<usize>,
) -> Receiver<Event> {
    let (sender, events) = mpsc::channel();
    let prepared = prepared.clone();
    let job = Job {
        prompt: prepared.turn,
        pictures: Vec::new(),
        decoding: DecodingOptions {
            max_tokens,
            sampler: sampler.clone(),
            constraint: prepared.constraint,
            no_calls: prepared.no_calls,
            thoughts: prepared.thoughts,
            shown: prepared.shown,
            top_logprobs,
            ..DecodingOptions::default()
        },
        keeps_answer: true,
        prompt_logprobs: None,
        owner: None,
        cancelled: Arc::new(AtomicBool::new(false)),
        listener: Box::new(move |event| drop(sender.send(event))),
    };
    scheduler.submit(job).unwrap();
    events
}

fn said(prepared: &Prepared, events: &Receiver<Event>) -> Said {
    let mut reader = prepared.reader.clone();
    let (mut tokens, mut deltas) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Text(piece) => {
                tokens.extend(piece.logprobs.iter().map(|one| one.token));
                deltas.extend(reader.push(&piece.text));
            }
            Event::Done(answer) => {
                deltas.extend(reader.finish());
                let (mut thought, mut text) = (String::new(), String::new());
                for delta in deltas {
                    match delta {
                        Delta::Reasoning(more) => thought += &more,
                        Delta::Content(more) => text += &more,
                        Delta::Call { .. } | Delta::Arguments(_) => {}
                    }
                }
                return Said { tokens, thought, text, answer };
            }
            Event::Failed(err) => panic!("{err}"),
            Event::Prompt { .. } | Event::Scored(_) => {}
        }
    }
    panic!("the scheduler forgot a job");
}

/// An answer made one by one from all logits of a session.
struct ByHand {
    tokens: Vec<TokenId>,
    n_thought: usize,
    /// Whether its thoughts had to be ended.
    is_forced: bool,
}

fn by_hand(
    engine: &Engine,
    tokenizer: &Tokenizer,
    prepared: &Prepared,
    sampler: &SamplerOptions,
    budget: usize,
    max_tokens: usize,
) -> ByHand {
    let id = |text: &str| tokenizer.id_of(text).unwrap();
    let [open, close] = ["<think>", "</think>"].map(id);
    let closing = tokenizer.encode(CLOSING, moeflux_text::Markup::Parse).unwrap();
    let mut sampler = Sampler::new(sampler.clone()).unwrap();
    let mut no_calls = prepared.no_calls.clone();
    let mut session = engine.session();
    let mut logits = session.eval_prompt(&prepared.turn.tokens).unwrap().to_vec();
    let (mut answer, mut forced): (Vec<TokenId>, Vec<TokenId>) = (Vec::new(), Vec::new());
    let (mut n_thought, mut is_thinking, mut is_forced) = (0, true, false);
    while answer.len() < max_tokens {
        if is_thinking && n_thought == budget && forced.is_empty() {
            forced = closing.iter().rev().copied().collect();
            is_forced = true;
        }
        let token = match forced.pop() {
            Some(token) => token,
            None => {
                for token in no_calls.iter().flat_map(|no_calls| no_calls.ruled_out()) {
                    logits[token.0 as usize] = f32::NEG_INFINITY;
                }
                if !is_thinking && n_thought == budget {
                    logits[open.0 as usize] = f32::NEG_INFINITY;
                }
                let token = sampler.sample(&logits, session.tokens()).unwrap();
                let is_end = tokenizer.eos_ids().contains(&token);
                n_thought += usize::from(is_thinking && token != close && !is_end);
                token
            }
        };
        is_thinking &= token != close;
        if tokenizer.eos_ids().contains(&token) {
            break;
        }
        if let Some(no_calls) = &mut no_calls {
            no_calls.accept(token);
        }
        answer.push(token);
        logits = session.eval_token(token).unwrap().to_vec();
    }
    ByHand { tokens: answer, n_thought, is_forced }
}

fn warm(seed: u64) -> SamplerOptions {
    SamplerOptions { temperature: 1.0, top_k: 30, top_p: 0.9, seed, ..SamplerOptions::default() }
}

#[test]
fn thoughts_end_where_their_budget_does_and_the_answer_goes_on() {
    const MAX_TOKENS: usize = 60;
    for speculation in [Speculation::Off, Speculation::Fixed(4), Speculation::Auto] {
        let (engine, text, scheduler) = open(speculation, 3);
        let tokenizer = text.tokenizer();
        let mut asked = Vec::new();
        for (i, question) in (0..).zip(QUESTIONS) {
            for budget in [1, 2, 9, 20] {
                for sampler in [SamplerOptions::default(), warm(i)] {
                    // A prompt that ends with thoughts that have begun.
                    let prepared = text.prepare(&conversation(question, Some(budget))).unwrap();
                    let plain = ask(&scheduler, &prepared, &sampler, Some(MAX_TOKENS), None);
                    let events = ask(&scheduler, &prepared, &sampler, Some(MAX_TOKENS), Some(0));
                    asked.push((prepared, sampler, budget, plain, events));
                }
            }
        }
        let (mut n_forced, mut n_said) = (0, 0);
        for (prepared, sampler, budget, plain, events) in asked {
            let got = said(&prepared, &events);
            let want = by_hand(&engine, tokenizer, &prepared, &sampler, budget, MAX_TOKENS);
            assert_eq!(got.tokens, want.tokens, "{speculation:?} {budget} {sampler:?}");
            assert_eq!(got.answer.n_thought, want.n_thought);
            // Where few logits suffice, the same comes.
            let plain = said(&prepared, &plain);
            assert_eq!((&plain.thought, &plain.text), (&got.thought, &got.text));
            if want.is_forced {
                n_forced += 1;
                n_said += usize::from(!got.text.is_empty());
                let mut stream = tokenizer.stream(Special::Show);
                let all: String = got.tokens.iter().map(|token| stream.push(*token)).collect();
                assert_eq!(all.matches(CLOSING).count(), 1, "{all:?}");
            }
        }
        assert!(n_forced > 15 && n_said > n_forced - 4, "{n_said} of {n_forced}");
    }
}

#[test]
fn a_budget_of_nothing_leaves_no_thoughts() {
    let (_, text, scheduler) = open(Speculation::Auto, 1);
    let greedy = SamplerOptions::default();
    let prepared = text.prepare(&conversation(QUESTIONS[0], Some(0))).unwrap();
    // The template knows how to ask for that.
    let off = Conversation { thinking: Some(false), ..conversation(QUESTIONS[0], None) };
    assert_eq!(prepared.turn.tokens, text.prepare(&off).unwrap().turn.tokens);
    let got = said(&prepared, &ask(&scheduler, &prepared, &greedy, Some(30), None));
    assert_eq!((got.thought.as_str(), got.answer.n_thought), ("", 0));
    assert!(!got.text.is_empty());
    // One whose template always opens thoughts has them ended at once.
    let mut always = text.prepare(&conversation(QUESTIONS[0], None)).unwrap();
    let opened = text.format().thoughts(true, false).unwrap();
    always.thoughts = Some(opened.within(Some(0)));
    let got = said(&always, &ask(&scheduler, &always, &greedy, Some(30), Some(0)));
    assert_eq!((got.thought.as_str(), got.answer.n_thought), ("", 0));
    let closing = text.tokenizer().encode(CLOSING, moeflux_text::Markup::Parse).unwrap();
    assert!(got.tokens.starts_with(&closing) && !got.text.is_empty());
}

#[test]
fn some_of_the_answers_tokens_are_kept_for_what_is_said() {
    let (_, text, scheduler) = open(Speculation::Auto, 1);
    for max_tokens in [8, 12, 24, 40] {
        let prepared = text.prepare(&conversation(QUESTIONS[0], None)).unwrap();
        let events = ask(&scheduler, &prepared, &SamplerOptions::default(), Some(max_tokens), None);
        let got = said(&prepared, &events);
        assert!(!got.text.is_empty(), "{max_tokens} {}", got.thought);
        // Where little more is left than what ends thoughts takes, there are none.
        assert!(!got.thought.is_empty() || max_tokens < 24, "{max_tokens}");
        let n_kept = max_tokens - got.answer.n_thought;
        assert!(
            n_kept > max_tokens / 4 && n_kept < max_tokens / 4 + 16,
            "{n_kept} of {max_tokens}"
        );
        assert!(got.answer.n_generated <= max_tokens);
    }
    // More tokens than the answer has are no limit.
    let prepared = text.prepare(&conversation(QUESTIONS[0], Some(usize::MAX))).unwrap();
    let events = ask(&scheduler, &prepared, &SamplerOptions::default(), Some(40), None);
    let got = said(&prepared, &events);
    assert!(!got.text.is_empty() && got.answer.finish != Finish::Cancelled);
}

#[test]
fn a_grammar_goes_on_behind_thoughts_that_were_ended() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["long enough to draft", "c"]}},
        "required": ["a", "b"],
    });
    for speculation in [Speculation::Off, Speculation::Fixed(4)] {
        let (_, text, scheduler) = open(speculation, 2);
        for budget in [0, 1, 7] {
            let shape = AnswerShape::Json(schema.clone());
            let asked = Conversation { shape, ..conversation(QUESTIONS[1], Some(budget)) };
            let prepared = text.prepare(&asked).unwrap();
            let events = ask(&scheduler, &prepared, &warm(3), Some(200), None);
            let got = said(&prepared, &events);
            let value: Value = serde_json::from_str(&got.text).unwrap();
            assert!(value["a"].is_i64() && value["b"].is_string(), "{value}");
            assert_eq!(got.answer.n_thought, budget);
        }
    }
}
