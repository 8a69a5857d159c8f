//! Sessions: logits, cuts, checkpoints, files.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use moeflux_c::*;

use crate::support::{
    Demo, Errors, MOEFLUX_ERROR_CANCELLED, MOEFLUX_ERROR_IN_USE, MOEFLUX_ERROR_MODEL,
    MOEFLUX_ERROR_ORDER, MOEFLUX_ERROR_REQUEST, MOEFLUX_OK, QUESTION, c,
};

struct Open<'a> {
    demo: &'a Demo,
    session: *mut moeflux_session,
}

impl<'a> Open<'a> {
    fn new(demo: &'a Demo) -> Open<'a> {
        let mut session = null_mut();
        // SAFETY: the place is a local.
        let status = unsafe { moeflux_session_new(demo.model, &raw mut session, demo.errors.0) };
        demo.errors.ok(status);
        Open { demo, session }
    }

    fn errors(&self) -> &Errors {
        &self.demo.errors
    }

    fn evaluate(&self, tokens: &[u32]) -> moeflux_status {
        let (first, n) = (tokens.as_ptr(), tokens.len());
        // SAFETY: there are that many tokens.
        unsafe {
            moeflux_session_evaluate(self.session, first, n, None, null_mut(), self.errors().0)
        }
    }

    fn logits(&self) -> Result<Vec<f32>, moeflux_status> {
        let (mut logits, mut n) = (null(), 0);
        // SAFETY: the places are locals.
        let status = unsafe {
            moeflux_session_logits(self.session, &raw mut logits, &raw mut n, self.errors().0)
        };
        if status != MOEFLUX_OK {
            return Err(status);
        }
        // SAFETY: the library gave that many out, valid until the next call.
        Ok(unsafe { std::slice::from_raw_parts(logits, n) }.to_vec())
    }

    fn position(&self) -> usize {
        let mut position = 0;
        // SAFETY: the place is a local.
        let status =
            unsafe { moeflux_session_position(self.session, &raw mut position, self.errors().0) };
        self.errors().ok(status);
        position
    }

    fn sample(&self, settings: &[(&str, &str)]) -> u32 {
        let (request, mut token) = (self.demo.request(settings), 0);
        // SAFETY: the place is a local.
        let status = unsafe {
            moeflux_session_sample(self.session, request, &raw mut token, self.errors().0)
        };
        self.errors().ok(status);
        self.errors().ok(moeflux_request_free(request));
        token
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        assert_eq!(moeflux_session_free(self.session), MOEFLUX_OK);
    }
}

/// The tokens of a conversation.
fn prompt(demo: &Demo, messages: &str) -> Vec<u32> {
    let (messages, mut tokens) = (c(messages), null_mut());
    // SAFETY: the messages live on, and the place is a local.
    let status = unsafe {
        moeflux_chat_prompt(
            demo.model,
            messages.as_ptr(),
            null_mut(),
            null_mut(),
            &raw mut tokens,
            demo.errors.0,
        )
    };
    demo.errors.ok(status);
    demo.ids(tokens)
}

fn ends(demo: &Demo, token: u32) -> bool {
    let mut ends = false;
    // SAFETY: the place is a local.
    let status = unsafe { moeflux_token_ends(demo.model, token, &raw mut ends, demo.errors.0) };
    demo.errors.ok(status);
    ends
}

fn detokenize(demo: &Demo, tokens: &[u32]) -> String {
    let mut text = null_mut();
    // SAFETY: there are that many tokens, and the place is a local.
    let status = unsafe {
        moeflux_detokenize(demo.model, tokens.as_ptr(), tokens.len(), &raw mut text, demo.errors.0)
    };
    demo.errors.ok(status);
    demo.take(text)
}

#[test]
fn a_loop_over_logits_answers_as_an_answer_does() {
    let demo = Demo::open(&[]);
    let session = Open::new(&demo);
    demo.errors.ok(session.evaluate(&prompt(&demo, QUESTION)));
    let mut said = Vec::new();
    loop {
        let token = session.sample(&[("temperature", "0")]);
        let logits = session.logits().expect("evaluated");
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        assert_eq!(best, Some(token as usize));
        if ends(&demo, token) {
            break;
        }
        said.push(token);
        assert!(said.len() < 20, "{said:?}");
        demo.errors.ok(session.evaluate(&[token]));
    }
    assert_eq!(detokenize(&demo, &said), "68");
}

#[test]
fn a_session_that_went_back_has_the_same_logits_again() {
    let demo = Demo::open(&[]);
    let tokens = prompt(&demo, QUESTION);
    let session = Open::new(&demo);
    demo.errors.failed(session.logits().unwrap_err(), MOEFLUX_ERROR_ORDER);
    let (head, tail) = tokens.split_at(tokens.len() - 3);
    demo.errors.ok(session.evaluate(head));
    demo.errors.ok(moeflux_session_checkpoint(session.session, demo.errors.0));
    demo.errors.ok(session.evaluate(tail));
    let logits = session.logits().expect("evaluated");

    demo.errors.ok(moeflux_session_restore(session.session, head.len(), demo.errors.0));
    assert_eq!(session.position(), head.len());
    demo.errors.failed(session.logits().unwrap_err(), MOEFLUX_ERROR_ORDER);
    demo.errors.ok(session.evaluate(tail));
    assert_eq!(session.logits().expect("evaluated"), logits);

    let mut n_missing = usize::MAX;
    // SAFETY: the place is a local.
    let status = unsafe {
        moeflux_session_truncate(session.session, head.len(), &raw mut n_missing, demo.errors.0)
    };
    demo.errors.ok(status);
    let again = &tokens[session.position()..];
    assert_eq!(session.position() + n_missing, head.len());
    demo.errors.ok(session.evaluate(again));
    assert_eq!(session.logits().expect("evaluated"), logits);

    let mut kept = null_mut();
    // SAFETY: the place is a local.
    let status = unsafe { moeflux_session_tokens(session.session, &raw mut kept, demo.errors.0) };
    demo.errors.ok(status);
    assert_eq!(demo.ids(kept), tokens);
}

#[test]
fn a_saved_session_goes_on_elsewhere() {
    let demo = Demo::open(&[]);
    let tokens = prompt(&demo, QUESTION);
    let file = std::env::temp_dir().join(format!("moeflux-c-session-{}", std::process::id()));
    let path = c(file.to_str().expect("UTF-8"));
    let (first, second) = (Open::new(&demo), Open::new(&demo));
    demo.errors.ok(first.evaluate(&tokens[..4]));
    // SAFETY: the path lives on.
    demo.errors.ok(unsafe { moeflux_session_save(first.session, path.as_ptr(), demo.errors.0) });
    demo.errors.ok(second.evaluate(&tokens[..1]));
    // SAFETY: the path lives on.
    demo.errors.ok(unsafe { moeflux_session_load(second.session, path.as_ptr(), demo.errors.0) });
    assert_eq!(second.position(), 4);
    demo.errors.failed(second.logits().unwrap_err(), MOEFLUX_ERROR_ORDER);
    for session in [&first, &second] {
        demo.errors.ok(session.evaluate(&tokens[4..]));
    }
    assert_eq!(first.logits().ok(), second.logits().ok());

    std::fs::write(&file, b"no snapshot").expect("the file can be written");
    // SAFETY: the path lives on.
    let status = unsafe { moeflux_session_load(second.session, path.as_ptr(), demo.errors.0) };
    assert!((status as i32) < 0, "a damaged file was loaded");
    assert_eq!(second.position(), tokens.len(), "a failed load changes nothing");
    let _ = MOEFLUX_ERROR_MODEL;
    std::fs::remove_file(file).expect("the file can be removed");
}

#[test]
fn tokens_that_cannot_be_evaluated_leave_the_session_as_it_was() {
    let demo = Demo::open(&[("ctx", "16")]);
    let session = Open::new(&demo);
    demo.errors.ok(session.evaluate(&[1, 2]));
    let before = session.logits().expect("evaluated");
    for tokens in [vec![1; 15], vec![3, u32::MAX], Vec::new()] {
        demo.errors.failed(session.evaluate(&tokens), MOEFLUX_ERROR_REQUEST);
        assert_eq!((session.position(), session.logits().as_ref()), (2, Ok(&before)));
    }
    demo.errors.failed(session.evaluate(&[1; 15]), MOEFLUX_ERROR_REQUEST);
    assert_eq!(demo.errors.option(), "ctx");
}

/// What the callback below needs, and what it found.
struct Reentry {
    session: *mut moeflux_session,
    demo: *const Demo,
    own: Option<moeflux_status>,
    other: Option<String>,
    calls: usize,
    stops_at: usize,
}

unsafe extern "C" fn calls_back(user: *mut c_void, done: u64, total: u64) -> i32 {
    assert!(done <= total && total > 0);
    // SAFETY: the test passes a `Reentry` that nothing else uses meanwhile.
    let reentry = unsafe { &mut *user.cast::<Reentry>() };
    // SAFETY: the test keeps its model open.
    let demo = unsafe { &*reentry.demo };
    reentry.calls += 1;
    let mut position = 0;
    // SAFETY: the place is a local.
    let own =
        unsafe { moeflux_session_position(reentry.session, &raw mut position, demo.errors.0) };
    reentry.own = Some(own);
    if reentry.other.is_none() {
        reentry.other = Some(demo.text(demo.chat(QUESTION, &[])));
    }
    i32::from(reentry.calls == reentry.stops_at)
}

#[test]
fn a_callback_may_use_the_model_and_stop_the_evaluation() {
    let demo = Demo::open(&[("chunk", "2"), ("sessions", "2")]);
    let session = Open::new(&demo);
    let tokens = prompt(&demo, QUESTION);
    let chunk = {
        let mut reentry = Reentry {
            session: session.session,
            demo: &raw const demo,
            own: None,
            other: None,
            calls: 0,
            stops_at: 2,
        };
        // SAFETY: there are that many tokens, and the callback takes a `Reentry`.
        let status = unsafe {
            moeflux_session_evaluate(
                session.session,
                tokens.as_ptr(),
                tokens.len(),
                Some(calls_back),
                (&raw mut reentry).cast(),
                demo.errors.0,
            )
        };
        demo.errors.failed(status, MOEFLUX_ERROR_CANCELLED);
        assert_eq!(reentry.own, Some(MOEFLUX_ERROR_IN_USE));
        assert_eq!(reentry.other.as_deref(), Some("68"));
        session.position() / 2
    };
    assert!(chunk >= 1 && session.position() < tokens.len(), "{chunk}");
    demo.errors.ok(session.evaluate(&tokens[session.position()..]));
    assert_eq!(detokenize(&demo, &[session.sample(&[("temperature", "0")])]), "6");
}
