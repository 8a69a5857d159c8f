//! Calls that no program should make: each gets a status, and the library goes on.

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};

use moeflux_c::*;

use crate::support::{
    Demo, Errors, LONG, MOEFLUX_ERROR_ARGUMENT, MOEFLUX_ERROR_CANCELLED, MOEFLUX_ERROR_HANDLE,
    MOEFLUX_ERROR_IN_USE, MOEFLUX_ERROR_MODEL, MOEFLUX_ERROR_REQUEST, MOEFLUX_OK, QUESTION, c,
    demo,
};

/// Handles that are none of the wanted type.
fn wrong<T>(demo: &Demo) -> Vec<*mut T> {
    let mut freed = null_mut();
    // SAFETY: the place is a local.
    demo.errors.ok(unsafe { moeflux_request_new(&raw mut freed, demo.errors.0) });
    demo.errors.ok(moeflux_request_free(freed));
    let other = demo.errors.0;
    vec![
        null_mut(),
        freed.cast(),
        other.cast(),
        without_provenance_mut(1),
        without_provenance_mut(usize::MAX),
    ]
}

#[test]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one reason holds for all calls of a list"
)]
fn wrong_handles_get_a_status_from_every_function() {
    let demo = Demo::open(&[]);
    let error = demo.errors.0;
    let failed = |status| demo.errors.failed(status, MOEFLUX_ERROR_HANDLE);
    let (mut text, mut tokens, mut answer) = (null_mut(), null_mut(), null_mut());
    let (mut data, mut ids, mut logits): (*const c_char, *const u32, *const f32) =
        (null(), null(), null());
    let (mut n, mut token, mut ends, mut kind) = (0, 0, false, moeflux_piece::MOEFLUX_TEXT);
    let (mut session, json, name) = (null_mut(), c(QUESTION), c("ctx"));
    let json = json.as_ptr();
    for model in wrong(&demo) {
        // SAFETY: texts live on, and places are locals.
        unsafe {
            failed(moeflux_model_info(model, &raw mut text, error));
            failed(moeflux_model_stats(model, &raw mut text, error));
            failed(moeflux_tokenize(model, json, 3, 0, &raw mut tokens, error));
            failed(moeflux_detokenize(model, null(), 0, &raw mut text, error));
            failed(moeflux_token_ends(model, 0, &raw mut ends, error));
            failed(moeflux_chat_prompt(model, json, null_mut(), &raw mut text, null_mut(), error));
            failed(moeflux_chat(model, json, null_mut(), &raw mut answer, error));
            failed(moeflux_generate(model, json, 3, null_mut(), &raw mut answer, error));
            failed(moeflux_session_new(model, &raw mut session, error));
        }
    }
    for answer in wrong(&demo) {
        // SAFETY: places are locals.
        unsafe {
            failed(moeflux_answer_next(answer, &raw mut kind, &raw mut data, &raw mut n, error));
            failed(moeflux_answer_run(answer, None, None, null_mut(), error));
            failed(moeflux_answer_message(answer, &raw mut text, error));
            failed(moeflux_answer_summary(answer, &raw mut text, error));
            failed(moeflux_answer_logprobs(answer, &raw mut text, error));
        }
        failed(moeflux_answer_cancel(answer, error));
    }
    for session in wrong(&demo) {
        // SAFETY: texts live on, and places are locals.
        unsafe {
            failed(moeflux_session_evaluate(session, &raw const token, 1, None, null_mut(), error));
            failed(moeflux_session_logits(session, &raw mut logits, &raw mut n, error));
            failed(moeflux_session_sample(session, null_mut(), &raw mut token, error));
            failed(moeflux_session_position(session, &raw mut n, error));
            failed(moeflux_session_tokens(session, &raw mut tokens, error));
            failed(moeflux_session_truncate(session, 0, null_mut(), error));
            failed(moeflux_session_save(session, name.as_ptr(), error));
            failed(moeflux_session_load(session, name.as_ptr(), error));
        }
        failed(moeflux_session_checkpoint(session, error));
        failed(moeflux_session_restore(session, 0, error));
    }
    for text in wrong(&demo) {
        // SAFETY: places are locals.
        failed(unsafe { moeflux_text_get(text, &raw mut data, &raw mut n, error) });
    }
    for tokens in wrong(&demo) {
        // SAFETY: places are locals.
        failed(unsafe { moeflux_tokens_get(tokens, &raw mut ids, &raw mut n, error) });
    }
    for options in wrong(&demo) {
        // SAFETY: the texts live on.
        failed(unsafe { moeflux_options_set(options, name.as_ptr(), name.as_ptr(), error) });
    }
    for request in wrong(&demo) {
        // SAFETY: the texts live on.
        failed(unsafe { moeflux_request_set(request, name.as_ptr(), name.as_ptr(), error) });
    }
    assert_eq!(demo.text(demo.chat(QUESTION, &[])), "68", "the model goes on");
}

#[test]
fn freeing_takes_null_and_refuses_what_is_not_there() {
    let demo = Demo::open(&[]);
    assert_eq!(moeflux_model_free(null_mut()), MOEFLUX_OK);
    for wrong in wrong::<c_void>(&demo).into_iter().skip(1) {
        for status in [
            moeflux_model_free(wrong.cast()),
            moeflux_answer_free(wrong.cast()),
            moeflux_session_free(wrong.cast()),
            moeflux_text_free(wrong.cast()),
            moeflux_tokens_free(wrong.cast()),
            moeflux_options_free(wrong.cast()),
            moeflux_request_free(wrong.cast()),
        ] {
            assert_eq!(status, MOEFLUX_ERROR_HANDLE);
        }
    }
    assert_eq!(moeflux_error_free(demo.model.cast()), MOEFLUX_ERROR_HANDLE);
    assert_eq!(demo.text(demo.chat(QUESTION, &[])), "68", "nothing of another type was freed");
}

#[test]
fn errors_without_an_object_are_statuses_all_the_same() {
    let mut model = null_mut();
    let path = c("/nowhere");
    for error in [null_mut(), without_provenance_mut(7)] {
        // SAFETY: the path lives on, and the place is a local.
        let status = unsafe {
            moeflux_open(path.as_ptr(), null_mut(), None, null_mut(), &raw mut model, error)
        };
        assert_eq!(status, MOEFLUX_ERROR_MODEL);
        assert!(!moeflux_error_text(error).is_null() && !moeflux_error_option(error).is_null());
    }
    let errors = Errors::new();
    // SAFETY: the path lives on, and the place is a local.
    let status = unsafe {
        moeflux_open(path.as_ptr(), null_mut(), None, null_mut(), &raw mut model, errors.0)
    };
    errors.failed(status, MOEFLUX_ERROR_MODEL);
    assert!(errors.text().contains("/nowhere"));
}

#[test]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one reason holds for all calls of a list"
)]
fn null_pointers_bad_lengths_and_bytes_that_are_no_text_are_refused() {
    let demo = Demo::open(&[]);
    let error = demo.errors.0;
    let failed = |status| demo.errors.failed(status, MOEFLUX_ERROR_ARGUMENT);
    let (mut tokens, mut answer, mut session) = (null_mut(), null_mut(), null_mut());
    let latin = c"caf\xe9".as_ptr();
    let model = demo.model;
    // SAFETY: what is not null lives on; lengths that no memory has are refused before it is read.
    unsafe {
        failed(moeflux_open(null(), null_mut(), None, null_mut(), null_mut(), error));
        failed(moeflux_tokenize(model, latin, 4, 0, &raw mut tokens, error));
        failed(moeflux_tokenize(model, latin, MOEFLUX_TO_NUL, 0, &raw mut tokens, error));
        failed(moeflux_tokenize(model, latin, usize::MAX - 1, 0, &raw mut tokens, error));
        failed(moeflux_tokenize(model, null(), 4, 0, &raw mut tokens, error));
        failed(moeflux_tokenize(model, null(), 0, 77, &raw mut tokens, error));
        failed(moeflux_tokenize(model, latin, 3, 0, null_mut(), error));
        failed(moeflux_detokenize(model, null(), usize::MAX / 4, null_mut(), error));
        failed(moeflux_chat(model, null(), null_mut(), &raw mut answer, error));
        failed(moeflux_chat(model, latin, null_mut(), &raw mut answer, error));
        failed(moeflux_chat(model, latin, null_mut(), null_mut(), error));
        demo.errors.ok(moeflux_session_new(model, &raw mut session, error));
        failed(moeflux_session_evaluate(session, null(), 1, None, null_mut(), error));
        failed(moeflux_session_save(session, null(), error));
        failed(moeflux_session_save(session, c("").as_ptr(), error));
        failed(moeflux_session_logits(session, null_mut(), null_mut(), error));
    }
    let token = 1;
    for n in [usize::MAX, usize::MAX / 4, 1 << 40] {
        // SAFETY: such a length is refused before the memory is read.
        let status = unsafe {
            moeflux_session_evaluate(session, &raw const token, n, None, null_mut(), error)
        };
        demo.errors.failed(status, MOEFLUX_ERROR_REQUEST);
    }
    let mut places = [0_u64; 2];
    let crooked = (&raw mut places).cast::<u8>().wrapping_add(1).cast();
    // SAFETY: a place that is not aligned is refused before it is written.
    failed(unsafe { moeflux_session_position(session, crooked, error) });
    demo.errors.ok(moeflux_session_free(session));
}

#[test]
fn messages_that_are_none_are_refused() {
    let demo = Demo::open(&[]);
    for wrong in [
        "",
        "{}",
        "[",
        "[1]",
        "[{}]",
        r#"[{"role": 1}]"#,
        &"[".repeat(100_000),
        r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#,
    ] {
        let (messages, mut answer) = (c(wrong), null_mut());
        // SAFETY: the messages live on, and the place is a local.
        let status = unsafe {
            moeflux_chat(demo.model, messages.as_ptr(), null_mut(), &raw mut answer, demo.errors.0)
        };
        demo.errors.failed(status, MOEFLUX_ERROR_REQUEST);
        assert_eq!(demo.errors.option(), "messages");
        assert!(answer.is_null());
    }
}

unsafe extern "C" fn stops(user: *mut c_void, _: u64, _: u64) -> i32 {
    // SAFETY: the test passes a number that nothing else uses meanwhile.
    unsafe { *user.cast::<u32>() += 1 };
    1
}

#[test]
fn opening_ends_where_its_callback_asks_to_stop() {
    let errors = Errors::new();
    let (path, mut model, mut calls) = (demo(), null_mut(), 0_u32);
    let user = (&raw mut calls).cast();
    // SAFETY: the path lives on, the place is a local, and the callback takes a number.
    let status = unsafe {
        moeflux_open(path.as_ptr(), null_mut(), Some(stops), user, &raw mut model, errors.0)
    };
    errors.failed(status, MOEFLUX_ERROR_CANCELLED);
    assert!(model.is_null());
    assert_eq!(calls, 1);
}

/// An answer that is used, cancelled and freed in its own callback.
struct Own {
    answer: *mut moeflux_answer,
    statuses: Vec<moeflux_status>,
}

unsafe extern "C" fn uses_itself(
    user: *mut c_void,
    _: moeflux_piece,
    _: *const c_char,
    _: usize,
) -> i32 {
    // SAFETY: the test passes an `Own` that nothing else uses meanwhile.
    let own = unsafe { &mut *user.cast::<Own>() };
    if own.statuses.is_empty() {
        // SAFETY: null places are refused.
        let next = unsafe {
            moeflux_answer_next(own.answer, null_mut(), null_mut(), null_mut(), null_mut())
        };
        // SAFETY: there are no callbacks.
        let run = unsafe { moeflux_answer_run(own.answer, None, None, null_mut(), null_mut()) };
        let cancel = moeflux_answer_cancel(own.answer, null_mut());
        let free = moeflux_answer_free(own.answer);
        let again = moeflux_answer_free(own.answer);
        own.statuses = vec![next, run, cancel, free, again];
    }
    0
}

#[test]
fn a_callback_that_uses_its_own_answer_gets_a_status() {
    let demo = Demo::open(&[]);
    let mut own = Own { answer: demo.chat(LONG, &[]), statuses: Vec::new() };
    let (answer, user) = (own.answer, (&raw mut own).cast());
    // SAFETY: the callback takes an `Own`.
    let status =
        unsafe { moeflux_answer_run(answer, Some(uses_itself), None, user, demo.errors.0) };
    demo.errors.ok(status);
    let wanted = [
        MOEFLUX_ERROR_ARGUMENT,
        MOEFLUX_ERROR_IN_USE,
        MOEFLUX_OK,
        MOEFLUX_OK,
        MOEFLUX_ERROR_HANDLE,
    ];
    assert_eq!(own.statuses, wanted);
    assert_eq!(demo.text(demo.chat(QUESTION, &[])), "68");
}
