//! An answer while it is made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use moeflux::{Answer, Error, Finish, Piece, Summary};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::error::{Failure, OrRaise};
use crate::news::Bell;
use crate::process::Owned;

/// Between two looks at whether a signal came.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// A part of an answer: what it is, and its texts.
pub(crate) type PieceArg = (&'static str, String, Option<(String, String)>);

/// A token with its probability, and the likeliest in its place.
pub(crate) type LogprobArg = (u32, f32, Vec<(u32, f32)>);

/// An answer while it is made. Any thread may use it; one at a time waits.
#[pyclass(frozen, module = "moeflux._moeflux", name = "Answer")]
pub(crate) struct PyAnswer {
    answer: Owned<Mutex<Answer<'static>>>,
    cancelled: Arc<AtomicBool>,
    bell: Bell,
}

impl PyAnswer {
    pub(crate) fn new(answer: Answer<'static>, cancelled: Arc<AtomicBool>, bell: Bell) -> PyAnswer {
        PyAnswer { answer: Owned::new(Mutex::new(answer)), cancelled, bell }
    }

    /// Never called with Python's lock, which the owner of this one may be waiting for.
    fn lock(&self) -> Result<MutexGuard<'_, Answer<'static>>, Failure> {
        Ok(self.answer.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for `look` to find something, and looks at signals meanwhile. An interrupt ends the answer.
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        look: impl Fn(&mut Answer<'static>) -> Option<T> + Sync,
    ) -> PyResult<T> {
        loop {
            let found = py.detach(|| Ok::<_, Failure>(look(&mut *self.lock()?)));
            if let Some(found) = found.or_raise(py)? {
                return Ok(found);
            }
            py.check_signals().inspect_err(|_| self.cancel())?;
        }
    }
}

#[pymethods]
impl PyAnswer {
    /// The number by which `wait_for_news` calls it.
    #[getter]
    fn number(&self) -> u64 {
        self.bell.number
    }

    /// Waits for the next part; `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<PieceArg>> {
        let look = |answer: &mut Answer<'static>| answer.wait(TICK).then(|| answer.next());
        self.wait(py, look)?.map(|piece| piece.map(to_arg)).transpose().or_raise(py)
    }

    /// Waits for the end; what comes until then is part of the outcome.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let look = |answer: &mut Answer<'static>| -> Option<Result<(), Error>> {
            let start = Instant::now();
            while start.elapsed() < TICK && answer.wait(TICK) {
                match answer.next() {
                    Some(Ok(_)) => {}
                    Some(Err(err)) => return Some(Err(err)),
                    None => return Some(Ok(())),
                }
            }
            None
        };
        self.wait(py, look)?.or_raise(py)
    }

    /// The next part, if there is one, and whether that is certain. Where it is not, `wait_for_news` returns this
    /// answer's number when it is to be called again.
    fn poll(&self, py: Python<'_>) -> PyResult<(bool, Option<PieceArg>)> {
        let found = py.detach(|| {
            self.bell.arm();
            let mut answer = self.lock()?;
            Ok::<_, Failure>(answer.wait(Duration::ZERO).then(|| answer.next()))
        });
        match found.or_raise(py)? {
            None => Ok((false, None)),
            Some(next) => Ok((true, next.transpose().or_raise(py)?.map(to_arg))),
        }
    }

    /// Ends the answer soon; what has come until then can be received.
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// What was received so far, as JSON, with the figures once it has ended.
    fn outcome(&self, py: Python<'_>) -> PyResult<String> {
        let outcome = py.detach(|| {
            let answer = self.lock()?;
            let summary = answer.summary().map(figures);
            Ok::<_, Failure>(json!({"message": answer.message(), "summary": summary}).to_string())
        });
        outcome.or_raise(py)
    }

    /// The tokens that were received so far, where their probabilities were asked for.
    fn logprobs(&self, py: Python<'_>) -> PyResult<Vec<LogprobArg>> {
        let tokens = py.detach(|| {
            let answer = self.lock()?;
            let tokens = answer.logprobs().iter().map(|token| {
                let top = token.top.iter().map(|(id, logprob)| (id.0, *logprob)).collect();
                (token.token.0, token.logprob, top)
            });
            Ok::<_, Failure>(tokens.collect())
        });
        tokens.or_raise(py)
    }
}

fn to_arg(piece: Piece) -> PieceArg {
    match piece {
        Piece::Text(text) => ("text", text, None),
        Piece::Thought(text) => ("thought", text, None),
        Piece::Call(call) => ("call", call.id, Some((call.name, call.arguments))),
        _ => ("text", String::new(), None),
    }
}

fn figures(summary: &Summary) -> Value {
    json!({
        "finish_reason": finish_reason(summary.finish),
        "stop": summary.stop,
        "prompt_tokens": summary.prompt_tokens,
        "reused_tokens": summary.reused_tokens,
        "completion_tokens": summary.generated_tokens,
        "thought_tokens": summary.thought_tokens,
        "first_token_s": summary.first_token.map(|time| time.as_secs_f64()),
        "decode_s": summary.decode.as_secs_f64(),
        "prompt_tok_s": summary.prompt_rate(),
        "decode_tok_s": summary.decode_rate(),
        "drafted_tokens": summary.speculation.drafted,
        "accepted_tokens": summary.speculation.accepted,
    })
}

/// As clients of OpenAI know it; an answer with calls is known by its calls.
fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfText | Finish::Stop => "stop",
        Finish::MaxTokens | Finish::ContextFull => "length",
        Finish::Cancelled => "cancelled",
    }
}
