//! Sessions: tokens in, logits out, and back to earlier positions.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Mutex;

use moeflux::{Model, Sampling};
use moeflux_engine::sampler::Sampler;
use moeflux_engine::{EngineError, Logits, Session, TokenId};

use crate::failure::{call, moeflux_error};
use crate::handles::{Handle, exclusive, issue, look_up, retire};
use crate::model::{ids, model, moeflux_model};
use crate::pointers::{Out, array, path};
use crate::progress::{Progress, moeflux_progress};
use crate::request::{moeflux_request, wanted};
use crate::status::{Fault, MOEFLUX_ERROR_ORDER, moeflux_status};
use crate::text::{issue_tokens, moeflux_tokens};

/// Tokens, and what a model has computed of them.
#[expect(non_camel_case_types, reason = "the name in C")]
#[derive(Debug)]
pub struct moeflux_session {
    _private: (),
}

impl Handle for moeflux_session {
    const NAME: &'static str = "moeflux_session";
    type Object = Mutex<State>;
}

/// The object of a [`moeflux_session`].
pub(crate) struct State {
    model: Model,
    session: Session,
    /// Of the next token, where the last call was an evaluation.
    logits: Option<Logits>,
    /// With what it was made from.
    sampler: Option<(Sampling, Sampler)>,
}

impl State {
    fn logits(&self) -> Result<&Logits, Fault> {
        self.logits.as_ref().ok_or_else(no_logits)
    }

    /// Refuses tokens before any of them is read from or evaluated.
    fn check(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let vocab = self.model.engine().shape().vocab;
        match tokens.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(EngineError::TokenOutOfRange { token: TokenId(*id), vocab }),
            None if tokens.is_empty() => Err(EngineError::EmptyPrompt),
            None => Ok(()),
        }
    }

    fn check_room(&self, n_tokens: usize) -> Result<(), EngineError> {
        let limit = self.model.engine().plan().ctx;
        let wanted = self.session.position().saturating_add(n_tokens);
        if wanted > limit { Err(EngineError::ContextFull { wanted, limit }) } else { Ok(()) }
    }

    /// Evaluates tokens chunk by chunk. The engine is free between chunks, so that a callback may use it.
    fn evaluate(&mut self, tokens: &[TokenId], progress: &mut Progress) -> Result<(), Fault> {
        self.logits = None;
        let n_total = tokens.len() as u64;
        let mut n_done = 0;
        for chunk in tokens.chunks(self.model.engine().plan().chunk) {
            let logits = self.session.eval_prompt(chunk)?;
            n_done += chunk.len() as u64;
            progress.report(n_done, n_total)?;
            self.logits = Some(logits);
        }
        Ok(())
    }

    /// Chooses the next token.
    fn sample(&mut self, sampling: Sampling) -> Result<TokenId, Fault> {
        if self.sampler.as_ref().is_none_or(|(made_from, _)| *made_from != sampling) {
            let sampler = Sampler::new(sampling.clone()).map_err(EngineError::from)?;
            self.sampler = Some((sampling, sampler));
        }
        let State { session, logits: Some(logits), sampler: Some((_, sampler)), .. } = self else {
            return Err(no_logits());
        };
        Ok(sampler.sample(logits, session.tokens()).map_err(EngineError::from)?)
    }
}

fn no_logits() -> Fault {
    let text = "the session has no logits: evaluate tokens after it was made, loaded or cut";
    Fault::new(MOEFLUX_ERROR_ORDER, text)
}

/// Makes an empty session. It shares the model's steps with answers and other sessions; memory is planned
/// for as many as the option `sessions` says, answers that run included.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_session_new(
    model: *mut moeflux_model,
    session: *mut *mut moeflux_session,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("session", session, ptr::null_mut()) }?;
        let model = Model::clone(&*self::model(model)?);
        let session = model.engine().session();
        out.set(issue(Mutex::new(State { model, session, logits: None, sampler: None }))?);
        Ok(())
    })
}

/// Evaluates tokens that follow those of the session. Where one is outside the vocabulary, or all do not
/// fit the context, none is evaluated. `progress` may be null; it learns tokens, and where it asks to stop
/// the session ends with the last token that it learned of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_session_evaluate(
    session: *mut moeflux_session,
    tokens: *const u32,
    n_tokens: usize,
    progress: moeflux_progress,
    user: *mut c_void,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        let object = look_up(session)?;
        let mut state = exclusive(session, &object)?;
        // A length gone wrong is found before the memory is looked at.
        state.check_room(n_tokens)?;
        // SAFETY: the caller gives that many tokens, or null.
        let tokens = unsafe { array("tokens", tokens, n_tokens) }?;
        state.check(tokens)?;
        // SAFETY: the caller gives a function of this type, or null.
        let mut progress = unsafe { Progress::new(progress, user) };
        state.evaluate(&ids(tokens), &mut progress)
    })
}

/// The logits of the token after the session's last one, one for every entry of the vocabulary. They are
/// the library's own memory, valid until the session is evaluated, cut, loaded or freed.
/// `MOEFLUX_ERROR_ORDER` where no evaluation came before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_session_logits(
    session: *mut moeflux_session,
    logits: *mut *const f32,
    n_logits: *mut usize,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("logits", logits, ptr::null()) }?;
        // SAFETY: the caller names a place for a length, or null.
        let mut n_logits = unsafe { Out::new("n_logits", n_logits, 0) }?;
        let object = look_up(session)?;
        let state = exclusive(session, &object)?;
        let logits = state.logits()?;
        out.set(logits.as_ptr());
        n_logits.set(logits.len());
        Ok(())
    })
}

/// Chooses the token that follows by the session's logits, as `request` says, which may be null. Random
/// numbers go on from call to call while what it says of choosing stays the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_session_sample(
    session: *mut moeflux_session,
    request: *mut moeflux_request,
    token: *mut u32,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a token, or null.
        let mut out = unsafe { Out::new("token", token, 0) }?;
        let object = look_up(session)?;
        let wanted = wanted(request)?;
        let mut state = exclusive(session, &object)?;
        let sampling = wanted.sampling(state.model.tokenizer().generation_defaults());
        out.set(state.sample(sampling)?.0);
        Ok(())
    })
}

/// The number of tokens in a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_session_position(
    session: *mut moeflux_session,
    position: *mut usize,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a number, or null.
        let mut out = unsafe { Out::new("position", position, 0) }?;
        let object = look_up(session)?;
        out.set(exclusive(session, &object)?.session.position());
        Ok(())
    })
}

/// The tokens of a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_session_tokens(
    session: *mut moeflux_session,
    tokens: *mut *mut moeflux_tokens,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("tokens", tokens, ptr::null_mut()) }?;
        let object = look_up(session)?;
        let state = exclusive(session, &object)?;
        out.set(issue_tokens(state.session.tokens())?);
        Ok(())
    })
}

/// Forgets the tokens from `position` on. Sessions of models with recurrent layers end at an earlier
/// checkpoint: `n_missing`, which may be null, is how many tokens before `position` are to be evaluated
/// again, and is 0 for other models.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_session_truncate(
    session: *mut moeflux_session,
    position: usize,
    n_missing: *mut usize,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a number, or null.
        let n_missing = unsafe { Out::optional("n_missing", n_missing, 0) }?;
        let object = look_up(session)?;
        let mut state = exclusive(session, &object)?;
        let n = state.session.truncate(position)?;
        state.logits = None;
        n_missing.into_iter().for_each(|mut n_missing| n_missing.set(n));
        Ok(())
    })
}

/// Makes a checkpoint where the session stands, for `moeflux_session_restore`. Only models with recurrent
/// layers or windows need one.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_session_checkpoint(
    session: *mut moeflux_session,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        let object = look_up(session)?;
        let mut state = exclusive(session, &object)?;
        let position = state.session.position();
        Ok(state.session.checkpoint(position)?)
    })
}

/// Returns to a checkpoint, or to any position where the model needs none, and forgets the tokens after
/// it.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_session_restore(
    session: *mut moeflux_session,
    position: usize,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        let object = look_up(session)?;
        let mut state = exclusive(session, &object)?;
        state.session.restore_to(position)?;
        state.logits = None;
        Ok(())
    })
}

/// Writes a session to a file, whole or not at all, that only its owner may read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_session_save(
    session: *mut moeflux_session,
    path: *const c_char,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        let object = look_up(session)?;
        // SAFETY: the caller gives a path that ends with a NUL, or null.
        let path = unsafe { self::path("path", path) }?;
        Ok(exclusive(session, &object)?.session.save(&path)?)
    })
}

/// Replaces a session by one that `moeflux_session_save` has written, of the same model. Where the file
/// cannot be used, nothing changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_session_load(
    session: *mut moeflux_session,
    path: *const c_char,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        let object = look_up(session)?;
        // SAFETY: the caller gives a path that ends with a NUL, or null.
        let path = unsafe { self::path("path", path) }?;
        let mut state = exclusive(session, &object)?;
        state.session.load(&path)?;
        state.logits = None;
        Ok(())
    })
}

/// Frees a session.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_session_free(session: *mut moeflux_session) -> moeflux_status {
    call(ptr::null_mut(), || retire(session))
}
