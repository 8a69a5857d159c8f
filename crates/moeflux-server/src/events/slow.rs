//! For tests: streams of a model that needs minutes to read a prompt, in virtual time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use moeflux_engine::{Answer, Engine, EngineOptions, Event, Finish, SpeculationStats, TokenText};
use moeflux_text::OutputParser;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::{Encoder, EventStream, KEEP_ALIVE};
use crate::app::App;
use crate::ask::PendingAnswers;
use crate::callers::Callers;
use crate::common::Common;
use crate::fleet::Fleet;
use crate::options::ServerOptions;

/// Time in the queue, and then for the prompt.
const QUEUED: Duration = Duration::from_secs(130);
const READING: Duration = Duration::from_secs(420);

/// Tokens of the prompt.
pub(crate) const N_PROMPT: usize = 70_000;

/// A server with the demo model.
pub(crate) fn app() -> Arc<App> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    let options = ServerOptions::new("127.0.0.1:0".parse().unwrap(), String::from("demo"));
    let engine = EngineOptions::default().sessions(Some(1));
    let callers = Arc::new(Callers::new(&options).unwrap());
    let common = Arc::new(Common::new(options, callers));
    let fleet = Fleet::of_engine(Engine::open(&dir, &engine).unwrap(), common);
    App::new(Arc::new(fleet.unwrap()).lease_now("demo").unwrap())
}

/// The events of an [answer](text), of which none is a comment: their data.
pub(crate) async fn stream(
    answers: PendingAnswers,
    sender: mpsc::UnboundedSender<(usize, Event)>,
    encoder: Box<dyn Encoder>,
    pieces: &'static [&'static str],
) -> Vec<String> {
    let all = text(answers, sender, encoder, pieces).await;
    all.split_terminator("\n\n").map(data).collect()
}

/// The stream of an answer that says `pieces`. It waits in the queue first, and then for its
/// prompt. Checks that clients never wait for an event much longer than the server means them to.
pub(crate) async fn text(
    answers: PendingAnswers,
    sender: mpsc::UnboundedSender<(usize, Event)>,
    encoder: Box<dyn Encoder>,
    pieces: &'static [&'static str],
) -> String {
    let engine = async move {
        let prompt = |n_done| Event::Prompt { n_done, n_total: N_PROMPT, n_reused: 512 };
        sleep(QUEUED).await;
        sender.send((0, prompt(512))).unwrap();
        sleep(READING).await;
        sender.send((0, prompt(N_PROMPT))).unwrap();
        for text in pieces {
            let text = TokenText { text: (*text).to_owned(), logprobs: Vec::new() };
            sender.send((0, Event::Text(text))).unwrap();
        }
        sender.send((0, Event::Done(answer()))).unwrap();
    };
    let client = async move {
        let mut stream = EventStream::new(answers, encoder);
        let (mut all, mut last) = (String::new(), Instant::now());
        while let Some(frame) = stream.frame().await {
            let waited = last.elapsed();
            assert!(waited <= KEEP_ALIVE + Duration::from_secs(1), "{waited:?}: {all}");
            last = Instant::now();
            all.push_str(std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap());
        }
        all
    };
    let began = Instant::now();
    let ((), all) = tokio::join!(engine, client);
    assert!(began.elapsed() >= QUEUED + READING);
    all
}

/// The data of an event, which is no comment.
fn data(event: &str) -> String {
    let mut lines = event.lines();
    let last = lines.next_back().unwrap();
    assert!(lines.all(|line| line.starts_with("event: ")), "{event}");
    last.strip_prefix("data: ").unwrap_or_else(|| panic!("{event}")).to_owned()
}

/// The data of events as JSON, `[DONE]` left out.
pub(crate) fn values(events: &[String]) -> Vec<Value> {
    let values = events.iter().filter(|data| *data != "[DONE]");
    values.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Answers whose events come from a channel.
pub(crate) fn answers(
    app: &Arc<App>,
    parser: OutputParser,
    may_think: bool,
) -> (PendingAnswers, mpsc::UnboundedSender<(usize, Event)>) {
    let (sender, events) = mpsc::unbounded_channel();
    (PendingAnswers::of_events(app, events, parser.into(), N_PROMPT, may_think), sender)
}

fn answer() -> Answer {
    Answer {
        finish: Finish::EndOfText,
        stop: None,
        n_prompt: N_PROMPT,
        n_reused: 512,
        n_generated: 3,
        n_thought: 0,
        speculation: SpeculationStats::default(),
        queued: QUEUED,
        first_token: Some(QUEUED + READING),
        decode: Duration::from_millis(3),
    }
}
