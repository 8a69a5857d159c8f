//! Answers: step by step, or with a callback.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use moeflux::{Answer, Model, Piece, Request};
use serde_json::json;

use crate::facts;
use crate::failure::{call, call_for_status, moeflux_error};
use crate::handles::{Handle, exclusive, issue, look_up, retire};
use crate::messages::{infill, messages};
use crate::model::{model, moeflux_model};
use crate::pointers::{Out, sized_text, text};
use crate::progress::{Progress, Stopped, moeflux_progress};
use crate::request::{moeflux_request, wanted};
use crate::status::{
    Fault, MOEFLUX_END, MOEFLUX_ERROR_INTERNAL, MOEFLUX_ERROR_ORDER, MOEFLUX_OK, moeflux_status,
};
use crate::text::{TextBytes, issue_json, moeflux_text};

/// An answer while it is made.
#[expect(non_camel_case_types, reason = "the name in C")]
#[derive(Debug)]
pub struct moeflux_answer {
    _private: (),
}

impl Handle for moeflux_answer {
    const NAME: &'static str = "moeflux_answer";
    type Object = AnswerObject;
}

/// What a piece of an answer is.
#[expect(non_camel_case_types, reason = "the name in C")]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum moeflux_piece {
    /// More of the answer's text.
    MOEFLUX_TEXT = 0,
    /// More of what the model thinks before it answers.
    MOEFLUX_THOUGHT = 1,
    /// A whole call of a tool: a JSON object as in `tool_calls` of the OpenAI API.
    MOEFLUX_CALL = 2,
}

/// Gets a piece of an answer: UTF-8 with a NUL after it, valid during the callback. Called on the thread
/// of `moeflux_answer_run`. Any other number than 0 ends the answer.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type moeflux_on_piece = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        kind: moeflux_piece,
        data: *const c_char,
        n_bytes: usize,
    ) -> i32,
>;

/// The object of a [`moeflux_answer`].
pub(crate) struct AnswerObject {
    /// In front of the lock: another thread ends an answer whose piece is waited for.
    cancelled: Arc<AtomicBool>,
    state: Mutex<State>,
}

struct State {
    answer: Answer<'static>,
    /// The last piece that was given out.
    piece: TextBytes,
    /// A piece that came although a callback had asked to stop.
    kept: Option<Piece>,
}

impl AnswerObject {
    fn new(answer: Answer<'static>) -> AnswerObject {
        let cancelled = answer.cancelled();
        let state = State { answer, piece: TextBytes::default(), kept: None };
        AnswerObject { cancelled, state: Mutex::new(state) }
    }
}

impl Drop for AnswerObject {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl State {
    /// Waits for the next piece; `None` at the end.
    fn next(&mut self, progress: &mut Progress) -> Result<Option<moeflux_piece>, Fault> {
        let received = match self.kept.take() {
            Some(kept) => Some(kept),
            None => self.receive(progress)?,
        };
        let Some(piece) = received else { return Ok(None) };
        let (kind, text) = match piece {
            Piece::Text(text) => (moeflux_piece::MOEFLUX_TEXT, text),
            Piece::Thought(text) => (moeflux_piece::MOEFLUX_THOUGHT, text),
            Piece::Call(call) => {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                let call = json!({ "id": call.id, "type": "function", "function": function });
                (moeflux_piece::MOEFLUX_CALL, call.to_string())
            }
            other => {
                let text = format!("the interface has no kind for the piece {other:?}");
                return Err(Fault::new(MOEFLUX_ERROR_INTERNAL, text));
            }
        };
        self.piece = TextBytes::new(text);
        Ok(Some(kind))
    }

    fn receive(&mut self, progress: &mut Progress) -> Result<Option<Piece>, Fault> {
        let mut outcome = Ok(());
        let cancelled = self.answer.cancelled();
        let piece = self.answer.next_piece(&mut |n_done, n_total| {
            if outcome.is_ok() {
                outcome = progress.report(n_done as u64, n_total as u64);
                cancelled.fetch_or(outcome.is_err(), Ordering::Relaxed);
            }
        });
        let piece = piece.transpose()?;
        if let Err(stopped) = outcome {
            self.kept = piece;
            return Err(stopped.into());
        }
        Ok(piece)
    }
}

/// Begins an answer and gives its handle out.
fn begin(
    model: *mut moeflux_model,
    request: *mut moeflux_request,
    answer: impl FnOnce(&Model, &Request) -> Result<Answer<'static>, Fault>,
) -> Result<*mut moeflux_answer, Fault> {
    let model = self::model(model)?;
    let request = wanted(request)?.request(model.tokenizer().generation_defaults());
    issue(AnswerObject::new(answer(&model, &request)?))
}

/// Begins the answer to a conversation. `messages` is a JSON array as in the OpenAI API; `request` may be
/// null. Returns when the prompt has its tokens. What the conversation has in common with earlier ones is
/// not evaluated again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_chat(
    model: *mut moeflux_model,
    messages: *const c_char,
    request: *mut moeflux_request,
    answer: *mut *mut moeflux_answer,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("answer", answer, ptr::null_mut()) }?;
        // SAFETY: the caller gives a text that ends with a NUL, or null.
        let json = unsafe { text("messages", messages) }?;
        out.set(begin(model, request, |model, request| {
            Ok(model.answer(&self::messages(json)?, request)?)
        })?);
        Ok(())
    })
}

/// Begins the continuation of a raw prompt, without a chat template. Control tokens that are written in
/// it count, so it must not hold text of others. `request` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_generate(
    model: *mut moeflux_model,
    prompt: *const c_char,
    n_bytes: usize,
    request: *mut moeflux_request,
    answer: *mut *mut moeflux_answer,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("answer", answer, ptr::null_mut()) }?;
        // SAFETY: the caller gives that many bytes, or null.
        let prompt = unsafe { sized_text("prompt", prompt, n_bytes) }?;
        out.set(begin(model, request, |model, request| Ok(model.generate(prompt, request)?))?);
        Ok(())
    })
}

/// Begins to fill the gap in a text, for models that were trained to. `infill` is a JSON object with
/// `prefix` and `suffix`, and, where other texts help, `others` with `name` and `text`. `request` may be
/// null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_fill(
    model: *mut moeflux_model,
    infill: *const c_char,
    request: *mut moeflux_request,
    answer: *mut *mut moeflux_answer,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("answer", answer, ptr::null_mut()) }?;
        // SAFETY: the caller gives a text that ends with a NUL, or null.
        let json = unsafe { text("infill", infill) }?;
        let gap = self::infill(json)?;
        out.set(begin(model, request, |model, request| Ok(model.fill(&gap, request)?))?);
        Ok(())
    })
}

/// Waits for the next piece of an answer; `MOEFLUX_END` after the last one. `data` is UTF-8 with a NUL
/// after it that `n_bytes` does not count, valid until the next call with the answer; `n_bytes` may be
/// null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_answer_next(
    answer: *mut moeflux_answer,
    kind: *mut moeflux_piece,
    data: *mut *const c_char,
    n_bytes: *mut usize,
    error: *mut moeflux_error,
) -> moeflux_status {
    call_for_status(error, || {
        // SAFETY: the caller names a place for a kind, or null.
        let mut kind = unsafe { Out::new("kind", kind, moeflux_piece::MOEFLUX_TEXT) }?;
        // SAFETY: the caller names a place for a pointer, or null.
        let mut data = unsafe { Out::new("data", data, c"".as_ptr()) }?;
        // SAFETY: the caller names a place for a length, or null.
        let n_bytes = unsafe { Out::optional("n_bytes", n_bytes, 0) }?;
        let object = look_up(answer)?;
        let mut state = exclusive(answer, &object.state)?;
        // SAFETY: there is no callback to be called.
        let mut silent = unsafe { Progress::new(None, ptr::null_mut()) };
        let Some(found) = state.next(&mut silent)? else { return Ok(MOEFLUX_END) };
        kind.set(found);
        data.set(state.piece.data());
        n_bytes.into_iter().for_each(|mut n_bytes| n_bytes.set(state.piece.n_bytes()));
        Ok(MOEFLUX_OK)
    })
}

/// Runs an answer to its end. `on_piece` gets its pieces, `on_prompt` learns before the first one how many
/// tokens of the prompt are done; either may be null, and `user` is passed to both. Where one of them asks
/// to stop, the answer is cancelled and the call returns `MOEFLUX_ERROR_CANCELLED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_answer_run(
    answer: *mut moeflux_answer,
    on_piece: moeflux_on_piece,
    on_prompt: moeflux_progress,
    user: *mut c_void,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        let object = look_up(answer)?;
        let mut state = exclusive(answer, &object.state)?;
        // SAFETY: the caller gives a function of this type, or null.
        let mut progress = unsafe { Progress::new(on_prompt, user) };
        while let Some(kind) = state.next(&mut progress)? {
            let Some(on_piece) = on_piece else { continue };
            let (data, n_bytes) = (state.piece.data(), state.piece.n_bytes());
            // SAFETY: the caller gives a function that may be called with `user`.
            if unsafe { on_piece(user, kind, data, n_bytes) } != 0 {
                object.cancelled.store(true, Ordering::Relaxed);
                return Err(Stopped.into());
            }
        }
        Ok(())
    })
}

/// Ends an answer soon. What has come until then can still be had, and then the end. Any thread may call
/// this at any time, also while another one waits for a piece.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_answer_cancel(
    answer: *mut moeflux_answer,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        look_up(answer)?.cancelled.store(true, Ordering::Relaxed);
        Ok(())
    })
}

/// The message that was received so far, as a JSON object to be added to the messages of a conversation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_answer_message(
    answer: *mut moeflux_answer,
    message: *mut *mut moeflux_text,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("message", message, ptr::null_mut()) }?;
        let object = look_up(answer)?;
        let message = exclusive(answer, &object.state)?.answer.message();
        let json = serde_json::to_value(message)
            .map_err(|err| Fault::new(MOEFLUX_ERROR_INTERNAL, err.to_string()))?;
        out.set(issue_json(&json)?);
        Ok(())
    })
}

/// The figures of an answer that has ended, as a JSON object: why it ended, tokens, seconds.
/// `MOEFLUX_ERROR_ORDER` before its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_answer_summary(
    answer: *mut moeflux_answer,
    summary: *mut *mut moeflux_text,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("summary", summary, ptr::null_mut()) }?;
        let object = look_up(answer)?;
        let state = exclusive(answer, &object.state)?;
        let Some(summary) = state.answer.summary() else {
            let text = "the answer has not ended: take its pieces until MOEFLUX_END";
            return Err(Fault::new(MOEFLUX_ERROR_ORDER, text));
        };
        out.set(issue_json(&facts::of_summary(summary))?);
        Ok(())
    })
}

/// The tokens that were received so far with their probabilities, as a JSON array; empty where the request
/// has no `top_logprobs`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_answer_logprobs(
    answer: *mut moeflux_answer,
    logprobs: *mut *mut moeflux_text,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("logprobs", logprobs, ptr::null_mut()) }?;
        let object = look_up(answer)?;
        let state = exclusive(answer, &object.state)?;
        out.set(issue_json(&facts::of_logprobs(state.answer.logprobs()))?);
        Ok(())
    })
}

/// Frees an answer, and cancels it where it has not ended.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_answer_free(answer: *mut moeflux_answer) -> moeflux_status {
    call(ptr::null_mut(), || retire(answer))
}
