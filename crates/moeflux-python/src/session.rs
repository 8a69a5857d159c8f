//! A session: tokens, what the model has computed of them, and logits.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use moeflux_engine::{Engine, EngineError, Session, TokenId};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::error::{Failure, OrRaise};
use crate::process::Owned;

/// A session, until it is closed. Any thread may use it, one at a time.
#[pyclass(frozen, module = "moeflux._moeflux", name = "Session")]
pub(crate) struct PySession {
    session: Owned<Mutex<Option<Session>>>,
    /// Tokens that are evaluated between two looks at whether a signal came.
    chunk: usize,
    vocab: usize,
    ctx: usize,
}

impl PySession {
    pub(crate) fn new(engine: &Engine) -> PySession {
        PySession {
            session: Owned::new(Mutex::new(Some(engine.session()))),
            chunk: engine.plan().chunk.max(1),
            vocab: engine.shape().vocab,
            ctx: engine.plan().ctx,
        }
    }

    /// Calls `work` with the session and without Python's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Session) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            let mut session = self.session.get()?.lock().unwrap_or_else(PoisonError::into_inner);
            let closed = || Failure::new("stopped", "the session was closed");
            work(session.as_mut().ok_or_else(closed)?)
        });
        done.or_raise(py)
    }

    /// Refuses tokens that cannot be evaluated, before any of them is.
    fn check(&self, session: &Session, tokens: &[TokenId]) -> Result<(), Failure> {
        let (vocab, limit) = (self.vocab, self.ctx);
        let wanted = session.position() + tokens.len();
        if let Some(&token) = tokens.iter().find(|token| token.0 as usize >= vocab) {
            return Err(EngineError::TokenOutOfRange { token, vocab }.into());
        }
        match tokens {
            [] => Err(EngineError::EmptyPrompt.into()),
            _ if wanted > limit => Err(EngineError::ContextFull { wanted, limit }.into()),
            _ => Ok(()),
        }
    }

    /// Evaluates tokens in chunks. `step` gets each with its place among them; signals are looked at in between, so
    /// an interrupt leaves the session at the end of a chunk.
    fn evaluate(
        &self,
        py: Python<'_>,
        tokens: &[TokenId],
        mut step: impl FnMut(&mut Session, &[TokenId], usize) -> Result<(), Failure> + Send,
    ) -> PyResult<()> {
        self.with(py, |session| self.check(session, tokens))?;
        for (i, chunk) in tokens.chunks(self.chunk).enumerate() {
            let step = &mut step;
            self.with(py, move |session| step(session, chunk, i * self.chunk))?;
            py.check_signals()?;
        }
        Ok(())
    }
}

#[pymethods]
impl PySession {
    /// Evaluates tokens and returns the logits after the last, as native `f32`.
    fn eval<'py>(&self, py: Python<'py>, tokens: Vec<u32>) -> PyResult<Bound<'py, PyByteArray>> {
        let tokens = ids(tokens);
        PyByteArray::new_with(py, self.vocab * size_of::<f32>(), |bytes| {
            self.evaluate(py, &tokens, |session, chunk, at| {
                let logits = session.eval_prompt(chunk)?;
                if at + chunk.len() == tokens.len() {
                    bytes.copy_from_slice(bytemuck::cast_slice(&logits));
                }
                Ok(())
            })
        })
    }

    /// Evaluates tokens and returns the logits after each, one row after another, as native `f32`.
    fn eval_all<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let tokens = ids(tokens);
        // Before memory is taken for rows of any number of tokens.
        self.with(py, |session| self.check(session, &tokens))?;
        let row_bytes = self.vocab * size_of::<f32>();
        PyByteArray::new_with(py, tokens.len() * row_bytes, |bytes| {
            let mut rows = bytes.chunks_exact_mut(row_bytes);
            self.evaluate(py, &tokens, |session, chunk, _| {
                let mut sink = |_, logits: &[f32]| {
                    if let Some(row) = rows.next() {
                        row.copy_from_slice(bytemuck::cast_slice(logits));
                    }
                    Ok(())
                };
                Ok(session.eval_all(chunk, &mut sink)?)
            })
        })
    }

    /// The position of the next token.
    fn position(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |session| Ok(session.position()))
    }

    /// The tokens evaluated so far.
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.with(py, |session| Ok(session.tokens().iter().map(|id| id.0).collect()))
    }

    /// Makes a checkpoint here, and returns its position.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |session| {
            let position = session.position();
            session.checkpoint(position)?;
            Ok(position)
        })
    }

    /// Positions to which the session can return; `None` where it can return to any.
    fn checkpoints(&self, py: Python<'_>) -> PyResult<Option<Vec<usize>>> {
        self.with(py, |session| Ok(session.checkpoints()))
    }

    /// Returns to a checkpoint.
    fn restore(&self, py: Python<'_>, position: usize) -> PyResult<()> {
        self.with(py, |session| Ok(session.restore_to(position)?))
    }

    /// Forgets the tokens from a position on, and returns how many before it have to be evaluated again.
    fn truncate(&self, py: Python<'_>, position: usize) -> PyResult<usize> {
        self.with(py, |session| Ok(session.truncate(position)?))
    }

    /// Forgets everything.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |session| {
            session.clear();
            Ok(())
        })
    }

    /// Writes the session to a file, whole or not at all.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |session| Ok(session.save(&path)?))
    }

    /// Replaces the session by that of a file.
    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |session| Ok(session.load(&path)?))
    }

    /// Frees its memory.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| {
            let session = self.session.get()?.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(session);
            Ok::<_, Failure>(())
        });
        closed.or_raise(py)
    }
}

fn ids(tokens: Vec<u32>) -> Vec<TokenId> {
    tokens.into_iter().map(TokenId).collect()
}
