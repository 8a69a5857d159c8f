//! Models: opening them, what they are, and their text side.

use std::ffi::{c_char, c_void};
use std::panic::resume_unwind;
use std::ptr;
use std::sync::Arc;

use ::moeflux_text::Markup;
use moeflux::{Model, Options, SchedulerOptions};
use moeflux_engine::{Engine, TokenId};

use crate::facts;
use crate::failure::{call, moeflux_error};
use crate::handles::{Handle, issue, look_up, retire};
use crate::messages::messages;
use crate::options::{engine_options, moeflux_options};
use crate::pointers::{Out, array, path, sized_text, text};
use crate::progress::{Progress, Stopped, moeflux_progress};
use crate::request::{moeflux_request, wanted};
use crate::status::{Fault, moeflux_status};
use crate::text::{issue_json, issue_text, issue_tokens, moeflux_text, moeflux_tokens};

/// A loaded model.
#[expect(non_camel_case_types, reason = "the name in C")]
#[derive(Debug)]
pub struct moeflux_model {
    _private: (),
}

impl Handle for moeflux_model {
    const NAME: &'static str = "moeflux_model";
    type Object = Model;
}

/// Answers that may wait for a session.
const MAX_WAITING: usize = 1 << 16;

/// The model of a handle.
pub(crate) fn model(handle: *mut moeflux_model) -> Result<Arc<Model>, Fault> {
    look_up(handle)
}

/// How text becomes tokens.
#[expect(non_camel_case_types, reason = "the name in C")]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum moeflux_markup {
    /// `<|im_end|>` is ten characters: for text of users, which becomes no control token.
    MOEFLUX_LITERAL = 0,
    /// `<|im_end|>` is a control token: for a program's own prompt. The token that begins every text,
    /// where the model has one, comes first.
    MOEFLUX_PROMPT = 1,
}

/// Opens a model: a folder as published, a packed folder, or a GGUF file. Reads all dense weights before
/// it returns. `options` may be null, and so may `progress`, which learns bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_open(
    path: *const c_char,
    options: *mut moeflux_options,
    progress: moeflux_progress,
    user: *mut c_void,
    model: *mut *mut moeflux_model,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("model", model, ptr::null_mut()) }?;
        // SAFETY: the caller gives a path that ends with a NUL, or null.
        let path = unsafe { self::path("path", path) }?;
        let options = engine_options(options)?;
        // SAFETY: the caller gives a function of this type, or null.
        let mut progress = unsafe { Progress::new(progress, user) };
        out.set(issue(open(&path, &options, &mut progress)?)?);
        Ok(())
    })
}

fn open(
    path: &std::path::Path,
    options: &Options,
    progress: &mut Progress,
) -> Result<Model, Fault> {
    // Loading takes no answer from what it reports to: unwinding ends it, and frees what was loaded.
    let mut report = |done, total| {
        if let Err(stopped) = progress.report(done, total) {
            resume_unwind(Box::new(stopped))
        }
    };
    let engine = Stopped::caught(|| Engine::open_with_progress(path, options, &mut report))??;
    let limits =
        SchedulerOptions { n_sessions: engine.plan().n_sessions, max_waiting: MAX_WAITING };
    let model = Model::of_engine(engine, limits)?;
    let read = model.text().read_templates();
    read.map_err(|err| Fault::from(moeflux::Error::from(err)))?;
    Ok(model)
}

/// What opening a model would take in memory, as a JSON object: whether it fits, row by row, and which
/// options would help. Reads headers, no weights.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_plan(
    path: *const c_char,
    options: *mut moeflux_options,
    plan: *mut *mut moeflux_text,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("plan", plan, ptr::null_mut()) }?;
        // SAFETY: the caller gives a path that ends with a NUL, or null.
        let path = unsafe { self::path("path", path) }?;
        let found = moeflux_engine::inspect(&path, &engine_options(options)?)?;
        out.set(issue_json(&facts::of_inspection(&found))?);
        Ok(())
    })
}

/// What a model is, as a JSON object: family, context, vocabulary, tokens that end a text, device, plan,
/// warnings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_model_info(
    model: *mut moeflux_model,
    info: *mut *mut moeflux_text,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("info", info, ptr::null_mut()) }?;
        out.set(issue_json(&facts::of_model(&*self::model(model)?))?);
        Ok(())
    })
}

/// What a model did since it was opened, as a JSON object: hits and misses of the expert cache, bytes
/// read, seconds waited, tokens, steps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_model_stats(
    model: *mut moeflux_model,
    stats: *mut *mut moeflux_text,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("stats", stats, ptr::null_mut()) }?;
        out.set(issue_json(&facts::of_work(&*self::model(model)?))?);
        Ok(())
    })
}

/// Frees the handle of a model. The model ends with its last answer and session; the call that ends it
/// waits for its thread.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_model_free(model: *mut moeflux_model) -> moeflux_status {
    call(ptr::null_mut(), || retire(model))
}

/// Turns text into tokens. `markup` is a `moeflux_markup`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_tokenize(
    model: *mut moeflux_model,
    text: *const c_char,
    n_bytes: usize,
    markup: i32,
    tokens: *mut *mut moeflux_tokens,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("tokens", tokens, ptr::null_mut()) }?;
        let model = self::model(model)?;
        // SAFETY: the caller gives that many bytes, or null.
        let text = unsafe { sized_text("text", text, n_bytes) }?;
        let tokenizer = model.tokenizer();
        let encoded = if markup == moeflux_markup::MOEFLUX_LITERAL as i32 {
            tokenizer.encode(text, Markup::Literal)
        } else if markup == moeflux_markup::MOEFLUX_PROMPT as i32 {
            tokenizer.encode_prompt(text, usize::MAX)
        } else {
            let text = format!("markup {markup}: give MOEFLUX_LITERAL or MOEFLUX_PROMPT");
            return Err(Fault::argument(text));
        };
        out.set(issue_tokens(&encoded.map_err(moeflux::Error::from)?)?);
        Ok(())
    })
}

/// Turns tokens into text, control tokens included. Bytes that are not UTF-8 become U+FFFD, and ids
/// outside of the vocabulary nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_detokenize(
    model: *mut moeflux_model,
    tokens: *const u32,
    n_tokens: usize,
    text: *mut *mut moeflux_text,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("text", text, ptr::null_mut()) }?;
        let model = self::model(model)?;
        // SAFETY: the caller gives that many tokens, or null.
        let tokens = unsafe { array("tokens", tokens, n_tokens) }?;
        out.set(issue_text(model.tokenizer().decode(&ids(tokens)))?);
        Ok(())
    })
}

/// Whether a token ends a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_token_ends(
    model: *mut moeflux_model,
    token: u32,
    ends: *mut bool,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a bool, or null.
        let mut out = unsafe { Out::new("ends", ends, false) }?;
        out.set(self::model(model)?.tokenizer().eos_ids().contains(&TokenId(token)));
        Ok(())
    })
}

/// The prompt that a conversation becomes by the model's chat template, as text and as tokens. `messages`
/// is a JSON array as in the OpenAI API; `request` says of tools and thinking, and may be null. Either
/// place may be null. Only the tokens keep what messages say apart from markup.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_chat_prompt(
    model: *mut moeflux_model,
    messages: *const c_char,
    request: *mut moeflux_request,
    text: *mut *mut moeflux_text,
    tokens: *mut *mut moeflux_tokens,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let out_text = unsafe { Out::optional("text", text, ptr::null_mut()) }?;
        // SAFETY: as the text.
        let out_tokens = unsafe { Out::optional("tokens", tokens, ptr::null_mut()) }?;
        let model = self::model(model)?;
        // SAFETY: the caller gives a text that ends with a NUL, or null.
        let json = unsafe { self::text("messages", messages) }?;
        let messages = self::messages(json)?;
        let request = wanted(request)?.request(model.tokenizer().generation_defaults());
        // Both are made before one is given out.
        let prompt =
            out_text.is_some().then(|| model.prompt_text(&messages, &request)).transpose()?;
        let turn = out_tokens.is_some().then(|| model.prepare(&messages, &request)).transpose()?;
        if let (Some(mut out), Some(prompt)) = (out_text, prompt) {
            out.set(issue_text(prompt)?);
        }
        if let (Some(mut out), Some(prepared)) = (out_tokens, turn) {
            out.set(issue_tokens(&prepared.turn.tokens)?);
        }
        Ok(())
    })
}

/// Numbers as tokens.
pub(crate) fn ids(tokens: &[u32]) -> Vec<TokenId> {
    tokens.iter().map(|id| TokenId(*id)).collect()
}
