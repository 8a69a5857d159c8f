//! Answers step by step and with callbacks, their figures and their ends.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::thread;

use moeflux_c::*;
use serde_json::Value;

use crate::support::{Demo, LONG, MOEFLUX_ERROR_CANCELLED, MOEFLUX_ERROR_ORDER, QUESTION, c, rust};

/// What callbacks were given, and when they ask to stop.
#[derive(Default)]
struct Seen {
    text: String,
    prompts: Vec<(u64, u64)>,
    stops_piece: bool,
    stops_prompt: bool,
}

unsafe extern "C" fn on_piece(
    user: *mut c_void,
    kind: moeflux_piece,
    data: *const c_char,
    n_bytes: usize,
) -> i32 {
    // SAFETY: the tests pass a `Seen` that nothing else uses meanwhile.
    let seen = unsafe { &mut *user.cast::<Seen>() };
    let text = rust(data);
    assert_eq!((kind, text.len()), (moeflux_piece::MOEFLUX_TEXT, n_bytes));
    seen.text += &text;
    i32::from(seen.stops_piece)
}

unsafe extern "C" fn on_prompt(user: *mut c_void, done: u64, total: u64) -> i32 {
    // SAFETY: the tests pass a `Seen` that nothing else uses meanwhile.
    let seen = unsafe { &mut *user.cast::<Seen>() };
    seen.prompts.push((done, total));
    i32::from(seen.stops_prompt)
}

fn run(demo: &Demo, answer: *mut moeflux_answer, seen: &mut Seen) -> moeflux_status {
    let user = (&raw mut *seen).cast();
    // SAFETY: the callbacks take a `Seen`.
    unsafe { moeflux_answer_run(answer, Some(on_piece), Some(on_prompt), user, demo.errors.0) }
}

fn summary(demo: &Demo, answer: *mut moeflux_answer) -> Value {
    let mut text = null_mut();
    // SAFETY: the place is a local.
    demo.errors.ok(unsafe { moeflux_answer_summary(answer, &raw mut text, demo.errors.0) });
    serde_json::from_str(&demo.take(text)).expect("JSON")
}

#[test]
fn a_callback_gets_the_text_of_the_steps() {
    let demo = Demo::open(&[]);
    assert_eq!(demo.text(demo.chat(QUESTION, &[])), "68");
    let settings = [("max_tokens", "6"), ("temperature", "0")];
    let steps = demo.text(demo.chat(LONG, &settings));
    let (answer, mut seen) = (demo.chat(LONG, &settings), Seen::default());
    demo.errors.ok(run(&demo, answer, &mut seen));
    assert_eq!(seen.text, steps);
    let (done, total) = *seen.prompts.last().expect("a prompt has progress");
    assert_eq!(done, total);
    let figures = summary(&demo, answer);
    assert_eq!(figures["prompt_tokens"], total);
    assert_eq!(figures["finish"], "max_tokens");
    assert_eq!(figures["generated_tokens"], 6);
    let mut message = null_mut();
    // SAFETY: the place is a local.
    demo.errors.ok(unsafe { moeflux_answer_message(answer, &raw mut message, demo.errors.0) });
    let message: Value = serde_json::from_str(&demo.take(message)).expect("JSON");
    assert_eq!((&message["role"], &message["content"]), (&"assistant".into(), &steps.into()));
    demo.errors.ok(moeflux_answer_free(answer));
}

#[test]
fn a_callback_that_asks_to_stop_cancels_and_loses_nothing() {
    let demo = Demo::open(&[]);
    let whole = demo.text(demo.chat(LONG, &[("temperature", "0")]));
    for stops_prompt in [false, true] {
        let answer = demo.chat(LONG, &[("temperature", "0")]);
        let mut seen = Seen { stops_prompt, stops_piece: !stops_prompt, ..Seen::default() };
        demo.errors.failed(run(&demo, answer, &mut seen), MOEFLUX_ERROR_CANCELLED);
        assert_eq!(seen.text.is_empty(), stops_prompt);
        let rest: String = std::iter::from_fn(|| demo.next(answer)).map(|(_, text)| text).collect();
        let received = seen.text + &rest;
        assert!(whole.starts_with(&received) && received.len() < whole.len(), "{received:?}");
        assert_eq!(summary(&demo, answer)["finish"], "cancelled");
        demo.errors.ok(moeflux_answer_free(answer));
    }
}

#[test]
fn another_thread_ends_an_answer_that_is_waited_for() {
    let demo = Demo::open(&[]);
    let answer = demo.chat(LONG, &[("temperature", "0")]);
    let first = demo.next(answer);
    assert!(first.is_some());
    let number = answer.expose_provenance();
    let other = thread::spawn(move || {
        let answer = std::ptr::with_exposed_provenance_mut(number);
        moeflux_answer_cancel(answer, null_mut())
    });
    while demo.next(answer).is_some() {}
    assert_eq!(other.join().expect("it does not panic"), moeflux_status::MOEFLUX_OK);
    let finish = summary(&demo, answer)["finish"].clone();
    assert!(finish == "cancelled" || finish == "end_of_text", "{finish}");
    demo.errors.ok(moeflux_answer_free(answer));
}

#[test]
fn figures_come_after_the_end_and_not_before() {
    let demo = Demo::open(&[]);
    let answer = demo.chat(QUESTION, &[("top_logprobs", "2")]);
    let mut text = null_mut();
    // SAFETY: the place is a local.
    let status = unsafe { moeflux_answer_summary(answer, &raw mut text, demo.errors.0) };
    demo.errors.failed(status, MOEFLUX_ERROR_ORDER);
    assert!(text.is_null());
    while demo.next(answer).is_some() {}
    assert!(demo.next(answer).is_none(), "the end stays the end");
    // SAFETY: the place is a local.
    demo.errors.ok(unsafe { moeflux_answer_logprobs(answer, &raw mut text, demo.errors.0) });
    let tokens: Value = serde_json::from_str(&demo.take(text)).expect("JSON");
    assert!(tokens.as_array().is_some_and(|tokens| !tokens.is_empty()), "{tokens}");
    assert_eq!(tokens[0]["top"].as_array().map(Vec::len), Some(2), "{tokens}");
    demo.errors.ok(moeflux_answer_free(answer));
}

#[test]
fn tools_are_called_and_schemas_hold() {
    let demo = Demo::open(&[]);
    let tools = r#"[{"type": "function", "function": {"name": "get_weather",
        "description": "Get the current weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]"#;
    let question = r#"[{"role": "user", "content": [{"type": "text", "text": "What is the weather in Paris?"}]}]"#;
    let answer = demo.chat(question, &[("tools", tools), ("max_tokens", "60")]);
    let pieces: Vec<_> = std::iter::from_fn(|| demo.next(answer)).collect();
    let call = pieces.iter().find(|(kind, _)| *kind == moeflux_piece::MOEFLUX_CALL);
    let (_, call) = call.unwrap_or_else(|| panic!("no call in {pieces:?}"));
    let call: Value = serde_json::from_str(call).expect("JSON");
    assert_eq!(call["function"]["name"], "get_weather");
    let arguments = call["function"]["arguments"].as_str().expect("text, as in the OpenAI API");
    assert!(serde_json::from_str::<Value>(arguments).is_ok(), "{arguments}");
    demo.errors.ok(moeflux_answer_free(answer));

    let schema = r#"{"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
        "additionalProperties": false}"#;
    let request = demo.request(&[("format", schema), ("max_tokens", "40")]);
    let (prompt, mut answer) = (c("n:"), null_mut());
    // SAFETY: the prompt lives on, and the place is a local.
    let status = unsafe {
        moeflux_generate(
            demo.model,
            prompt.as_ptr(),
            MOEFLUX_TO_NUL,
            request,
            &raw mut answer,
            demo.errors.0,
        )
    };
    demo.errors.ok(status);
    demo.errors.ok(moeflux_request_free(request));
    let value: Value = serde_json::from_str(&demo.text(answer)).expect("JSON");
    assert!(value["n"] == 1 || value["n"] == 2, "{value}");
}

#[test]
fn answers_of_several_threads_equal_those_alone() {
    let demo = Demo::open(&[("sessions", "3"), ("threads", "2")]);
    let settings = [("max_tokens", "12"), ("temperature", "0")];
    let alone = demo.text(demo.chat(LONG, &settings));
    let model = demo.model.expose_provenance();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            thread::spawn(move || {
                let own = Demo::borrowed(std::ptr::with_exposed_provenance_mut(model));
                own.text(own.chat(LONG, &settings))
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().expect("it does not panic"), alone);
    }
}

#[test]
fn an_answer_outlives_its_model() {
    let mut demo = Demo::open(&[]);
    let answer = demo.chat(QUESTION, &[]);
    demo.errors.ok(moeflux_model_free(demo.model));
    demo.owns_model = false;
    let pieces = std::iter::from_fn(|| demo.next(answer)).map(|(_, text)| text);
    assert_eq!(pieces.collect::<String>(), "68");
    demo.errors.ok(moeflux_answer_free(answer));
    assert_eq!(moeflux_model_free(demo.model), moeflux_status::MOEFLUX_ERROR_HANDLE);
}
