//! Prompts with pictures as the engine takes them, from pixels to logits, against transformers 5.24; in
//! sessions, snapshots, the prefix cache and the scheduler.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;

use moeflux_engine::sampler::SamplerOptions;
use moeflux_engine::{
    Activations, Answer, DecodingOptions, Engine, EngineError, EngineOptions, Event, Job,
    PictureRows, Prompt, PromptCacheOptions, PromptPicture, RowError, Scheduler, SchedulerOptions,
    SeenPicture, Session, TokenId,
};
use moeflux_image::Picture;
use moeflux_model::Seen;
use moeflux_store::IoChoice;
use moeflux_text::{PicturePlace, Turn};

use crate::seen::{SeenPrompt, prompts};
use crate::towers;

/// Largest difference of a logit, the logits' standard deviation being about 1.
const MAX_DIFFERENCE: f32 = 2e-3;

fn open(family: &str, options: &EngineOptions) -> Engine {
    Engine::open(&towers::dir().join(family), options).unwrap()
}

fn exact() -> EngineOptions {
    EngineOptions::default().activations(Activations::Full)
}

/// What the engine's tower makes of a picture.
fn see(engine: &Engine, picture: &Picture) -> Arc<SeenPicture> {
    let vision = engine.vision().expect("a model that sees");
    let layout =
        vision.reader().processor().layout(picture.size().width, picture.size().height).unwrap();
    let prepared = vision.reader().processor().prepare(picture, &layout).unwrap();
    let seen = vision.see(&prepared, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let seen = seen.expect("nothing ends it");
    assert_eq!(seen.rows(), vision.rows(&prepared));
    seen
}

/// A prompt of the reference as the engine takes it.
struct Asked {
    turn: Turn,
    seen: Vec<Arc<SeenPicture>>,
}

impl Asked {
    /// The prompt with the pictures of these names.
    fn with(engine: &Engine, prompt: &SeenPrompt, names: &[String]) -> Asked {
        let all = towers::pictures();
        let pixels = |name: &String| &all.iter().find(|(own, _)| own == name).unwrap().1;
        let seen: Vec<_> = names.iter().map(|name| see(engine, pixels(name))).collect();
        let mut turn = Turn { tokens: prompt.tokens.clone(), ..Turn::default() };
        let mut at = 0;
        for seen in &seen {
            let rows = seen.rows();
            at += prompt.is_picture[at..]
                .iter()
                .position(|is_picture| *is_picture)
                .expect("another picture");
            let placeholder = turn.tokens[at];
            turn.tokens.splice(at..at + rows.n_rows, rows.tokens());
            turn.pictures.push(PicturePlace { start: at, rows, placeholder });
            at += rows.n_rows;
            assert!(!prompt.is_picture[at], "rows of one picture");
        }
        assert!(!prompt.is_picture[at..].contains(&true), "no other picture");
        Asked { turn, seen }
    }

    fn of(engine: &Engine, prompt: &SeenPrompt) -> Asked {
        Asked::with(engine, prompt, &prompt.pictures)
    }

    fn pictures(&self) -> Vec<PromptPicture> {
        let places = self.turn.pictures.iter().zip(&self.seen);
        let picture = |(place, seen): (&PicturePlace, &Arc<SeenPicture>)| PromptPicture {
            start: place.start,
            placeholder: place.placeholder,
            seen: Arc::clone(seen),
        };
        places.map(picture).collect()
    }

    /// Evaluates it, and returns the last logits with the tokens that were known.
    fn evaluate(&self, session: &mut Session, checkpoints: &[usize]) -> (Vec<f32>, usize) {
        let pictures = self.pictures();
        let prompt = Prompt { tokens: &self.turn.tokens, checkpoints, pictures: &pictures };
        let read = session.eval_conversation(prompt, &mut |_| {}).unwrap();
        (read.logits.to_vec(), read.n_reused)
    }
}

#[track_caller]
fn check(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= MAX_DIFFERENCE, "{what}: {worst}");
}

/// Checks all prompts of a family, whole and from the middle of a session.
fn check_family(engine: &Engine, family: &str) {
    let vocab = engine.shape().vocab;
    for prompt in prompts(family) {
        let what = format!("{family}, {}", prompt.name);
        let asked = Asked::of(engine, &prompt);
        // The logits of all rows that are known.
        let mut session = engine.session();
        session.expect_pictures(&asked.turn.tokens, &asked.pictures()).unwrap();
        let mut all = Vec::new();
        let sink = &mut |at: usize, logits: &[f32]| {
            if let Some(nth) = prompt.known.iter().position(|row| *row == at) {
                check(logits, &prompt.logits[nth * vocab..][..vocab], &format!("{what}, row {at}"));
                all.push(at);
            }
            Ok(())
        };
        session.eval_all(&asked.turn.tokens, sink).unwrap();
        assert_eq!(all, prompt.known, "{what}");
        // What follows, one by one, and again after a return into the prompt.
        for _ in 0..2 {
            for (token, want) in prompt.then.iter().zip(prompt.then_logits.chunks_exact(vocab)) {
                check(&session.eval_token(*token).unwrap(), want, &what);
            }
            let last = &prompt.logits[prompt.logits.len() - vocab..];
            let start = asked.turn.pictures[0].start;
            let (logits, n_reused) = asked.evaluate(&mut session, &[start]);
            check(&logits, last, &what);
            assert!(n_reused < asked.turn.tokens.len(), "{what}");
        }
    }
}

#[test]
fn prompts_are_the_references() {
    for family in &towers::families() {
        check_family(&open(family, &exact()), family);
        check_family(&open(family, &EngineOptions::default()), family);
        let streamed = exact().expert_io(IoChoice::Pread).expert_cache(Some(128 << 10));
        let whole = open(family, &exact()).shape().sees_pictures_whole;
        let chunk = if whole { 66 } else { 7 };
        check_family(&open(family, &streamed.chunk(Some(chunk))), family);
    }
}

/// Another picture for the one of that place: one whose pixels are turned upside down, so that all sizes are
/// the same.
fn upside_down(picture: &Picture) -> Picture {
    let mut rgb = picture.rgb().to_vec();
    rgb.reverse();
    Picture::from_rgb(picture.size(), rgb)
}

#[test]
fn a_second_question_on_a_picture_evaluates_neither_tower_nor_prompt() {
    for family in &towers::families() {
        let engine = open(family, &exact());
        let prompt = prompts(family).into_iter().find(|prompt| prompt.name == "one").unwrap();
        let asked = Asked::of(&engine, &prompt);
        let mut session = engine.session();
        let n = asked.turn.tokens.len();
        let (logits, n_reused) = asked.evaluate(&mut session, &[n - 1]);
        assert_eq!(n_reused, 0);
        let (_, n_seen) = engine.vision().unwrap().counts();
        assert_eq!(n_seen, 1);
        // The same picture, from its pixels.
        let again = Asked::of(&engine, &prompt);
        let (same, n_reused) = again.evaluate(&mut session, &[n - 1]);
        assert_eq!((engine.vision().unwrap().counts(), n_reused), ((1, 1), n - 1), "{family}");
        assert!(same == logits, "{family}");
        // Another one of its size has its tokens, and nothing else.
        let pixels = towers::pictures();
        let (_, pixels) = pixels.iter().find(|(name, _)| *name == prompt.pictures[0]).unwrap();
        let other = see(&engine, &upside_down(pixels));
        let place = asked.turn.pictures[0];
        let mut turn = asked.turn.clone();
        assert_eq!(other.rows().n_rows, place.rows.n_rows);
        turn.tokens.splice(place.start..place.start + place.rows.n_rows, other.rows().tokens());
        turn.pictures[0].rows = other.rows();
        let other = Asked { turn, seen: vec![other] };
        let (others, n_reused) = other.evaluate(&mut session, &[n - 1]);
        assert!(n_reused <= place.start, "{family}: {n_reused}");
        let fresh = other.evaluate(&mut engine.session(), &[]).0;
        assert!(others == fresh && others != logits, "{family}");
    }
}

#[test]
fn sessions_with_pictures_are_saved_and_found_again() {
    for family in &towers::families() {
        let dir = tempfile::tempdir().unwrap();
        let cache = PromptCacheOptions {
            dir: dir.path().join("prompts"),
            max_bytes: 1 << 30,
            min_tokens: 1,
        };
        let options = exact().prompt_cache(Some(cache));
        let prompt = prompts(family).into_iter().find(|prompt| prompt.name == "three").unwrap();
        let file = dir.path().join("session");
        let (end, want) = {
            let engine = open(family, &options);
            let asked = Asked::of(&engine, &prompt);
            let mut session = engine.session();
            let n = asked.turn.tokens.len();
            // Between two pictures, and at the end of the prompt.
            let between = asked.turn.pictures[1].start - 1;
            asked.evaluate(&mut session, &[between, n - 1]);
            session.save(&file).unwrap();
            session.store().unwrap();
            (
                n - 1,
                prompt
                    .then
                    .iter()
                    .map(|token| session.eval_token(*token).unwrap().to_vec())
                    .collect::<Vec<_>>(),
            )
        };
        let engine = open(family, &options);
        let mut loaded = engine.session();
        loaded.load(&file).unwrap();
        for (token, want) in prompt.then.iter().zip(&want) {
            assert!(loaded.eval_token(*token).unwrap()[..] == want[..], "{family}: loaded");
        }
        let asked = Asked::of(&engine, &prompt);
        let mut session = engine.session();
        let (_, n_reused) = asked.evaluate(&mut session, &[]);
        assert_eq!(n_reused, end, "{family}: of the prefix cache");
        for (token, want) in prompt.then.iter().zip(&want) {
            assert!(session.eval_token(*token).unwrap()[..] == want[..], "{family}: found");
        }
    }
}

#[test]
fn pictures_that_are_not_where_they_are_said_to_be_are_refused() {
    let engine = open("qwen3_vl_moe", &exact());
    let prompt = prompts("qwen3_vl_moe").into_iter().find(|prompt| prompt.name == "one").unwrap();
    let asked = Asked::of(&engine, &prompt);
    let tokens = &asked.turn.tokens;
    let mut session = engine.session();
    let mut refused = |tokens: &[TokenId], pictures: &[PromptPicture]| {
        let prompt = Prompt { tokens, pictures, ..Prompt::default() };
        let err = session.eval_conversation(prompt, &mut |_| {}).unwrap_err();
        assert_eq!(session.position(), 0);
        err
    };
    let pictures = asked.pictures();
    assert!(matches!(refused(tokens, &[]), EngineError::TokenOutOfRange { .. }));
    let mut other = pictures.clone();
    other[0].start += 1;
    for pictures in [&other[..], &[pictures.clone(), pictures.clone()].concat()] {
        let err = refused(tokens, pictures);
        assert!(matches!(err, EngineError::Row(RowError::PictureMisplaced { .. })), "{err}");
    }
    let cut = &tokens[..pictures[0].start + 1];
    let err = refused(cut, &pictures);
    assert!(matches!(err, EngineError::Row(RowError::PictureMisplaced { .. })), "{err}");
    let mut wrong = pictures.clone();
    wrong[0].placeholder = TokenId(u32::MAX - 7);
    assert!(matches!(refused(tokens, &wrong), EngineError::TokenOutOfRange { .. }));
    // Rows of another model's tower.
    let rows = PictureRows { id: [7; 32], n_rows: 2 };
    let hidden = engine.shape().hidden + 8;
    let seen = Seen { rows: vec![0.5; 2 * hidden], deepstack: Vec::new() };
    let seen = Arc::new(SeenPicture::new(rows, [1, 2], hidden, seen));
    let tokens: Vec<TokenId> = seen.rows().tokens().chain([TokenId(5)]).collect();
    let picture = PromptPicture { start: 0, placeholder: TokenId(314), seen };
    let err = refused(&tokens, &[picture]);
    assert!(matches!(err, EngineError::Row(RowError::PictureWidth { .. })), "{err}");
}

fn job(asked: &Asked, seed: u64) -> (Job, mpsc::Receiver<Event>) {
    let (sender, events) = mpsc::channel();
    let n = asked.turn.tokens.len();
    let job = Job {
        prompt: Turn { checkpoints: vec![n - 1], ..asked.turn.clone() },
        pictures: asked.seen.clone(),
        decoding: DecodingOptions {
            max_tokens: Some(24),
            sampler: SamplerOptions {
                temperature: 0.9,
                seed,
                repeat_penalty: 1.1,
                ..SamplerOptions::default()
            },
            ..DecodingOptions::default()
        },
        keeps_answer: true,
        prompt_logprobs: None,
        owner: None,
        cancelled: Arc::new(AtomicBool::new(false)),
        listener: Box::new(move |event| drop(sender.send(event))),
    };
    (job, events)
}

fn answer(events: mpsc::Receiver<Event>) -> (String, Answer) {
    let mut text = String::new();
    for event in events {
        match event {
            Event::Text(piece) => text.push_str(&piece.text),
            Event::Done(answer) => return (text, answer),
            Event::Failed(err) => panic!("{err}"),
            Event::Prompt { .. } | Event::Scored(_) => {}
        }
    }
    panic!("the scheduler forgot a job");
}

/// Answers all at a time, in that many sessions, with a prefix cache in a folder.
fn answers(family: &str, dir: &Path, n_sessions: usize, chunk: usize) -> Vec<(String, Answer)> {
    let cache = PromptCacheOptions { dir: dir.join("prompts"), max_bytes: 1 << 30, min_tokens: 1 };
    let options = exact().prompt_cache(Some(cache)).chunk(Some(chunk));
    let engine = open(family, &options.sessions(Some(n_sessions)));
    let tokenizer = Arc::new(engine.tokenizer().unwrap());
    let limits = SchedulerOptions { n_sessions, max_waiting: 16 };
    let scheduler = Scheduler::start(engine.clone(), tokenizer, limits).unwrap();
    let prompts = prompts(family);
    let asked: Vec<Asked> = prompts.iter().map(|prompt| Asked::of(&engine, prompt)).collect();
    let jobs = (0..8).map(|nth| job(&asked[nth % asked.len()], nth as u64));
    let events: Vec<_> = jobs
        .map(|(job, events)| {
            scheduler.submit(job).unwrap();
            events
        })
        .collect();
    let answers = events.into_iter().map(answer).collect();
    scheduler.shutdown(Duration::from_secs(60));
    answers
}

#[test]
fn eight_clients_get_what_each_would_alone_and_after_a_restart_too() {
    for family in &towers::families() {
        let dir = tempfile::tempdir().unwrap();
        let texts = |answers: &[(String, Answer)]| -> Vec<String> {
            answers.iter().map(|(text, _)| text.clone()).collect()
        };
        let alone = answers(family, &dir.path().join("alone"), 1, 512);
        let together = answers(family, dir.path(), 4, 80);
        assert_eq!(texts(&together), texts(&alone), "{family}");
        assert!(texts(&alone).iter().any(|text| !text.is_empty()), "{family}");
        let again = answers(family, dir.path(), 4, 80);
        assert_eq!(texts(&again), texts(&alone), "{family}: after a restart");
        let is_known = |(_, answer): &(String, Answer)| answer.n_reused + 1 == answer.n_prompt;
        assert!(again.iter().filter(|answer| is_known(answer)).count() >= 3, "{family}");
    }
}

#[test]
fn an_idle_tower_is_freed_and_comes_back() {
    let options = exact().tower_idle(Duration::from_millis(50));
    let engine = open("qwen3_5_moe", &options);
    let vision = engine.vision().unwrap();
    assert!(!vision.is_loaded(), "a tower stays on the drive until the first picture");
    let pictures = towers::pictures();
    for (_, picture) in &pictures[..2] {
        see(&engine, picture);
        assert!(vision.is_loaded());
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while vision.is_loaded() {
            assert!(std::time::Instant::now() < until, "a tower without pictures stays");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(vision.counts(), (0, 2));
}

#[test]
fn a_picture_can_be_given_up_while_another_is_seen_and_while_it_is() {
    let engine = open("qwen3_5_moe", &exact());
    let vision = engine.vision().unwrap();
    let pictures = towers::pictures();
    let picture = &pictures[0].1;
    let layout =
        vision.reader().processor().layout(picture.size().width, picture.size().height).unwrap();
    let prepared = vision.reader().processor().prepare(picture, &layout).unwrap();
    let seen = vision.see(&prepared, &mut |n_done, _| {
        if n_done == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(seen.unwrap().is_none());
    let (started, waits) = mpsc::channel();
    std::thread::scope(|threads| {
        let (release, released) = mpsc::channel::<()>();
        let slow = threads.spawn(|| {
            let released = released;
            let mut waited = false;
            vision.see(&prepared, &mut |_, n| {
                if n > 0 && !std::mem::replace(&mut waited, true) {
                    started.send(()).unwrap();
                    released.recv().unwrap();
                }
                ControlFlow::Continue(())
            })
        });
        waits.recv().unwrap();
        // The tower is another picture's.
        assert!(vision.see(&prepared, &mut |_, _| ControlFlow::Break(())).unwrap().is_none());
        release.send(()).unwrap();
        assert!(slow.join().unwrap().unwrap().is_some());
    });
    assert_eq!(vision.counts().1, 1);
}
