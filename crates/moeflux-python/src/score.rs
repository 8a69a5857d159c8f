//! Probabilities of given tokens. Prompts share steps with each other and with answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};

use moeflux::{Model, Order, Request, Settings, TokenLogprob};
use moeflux_engine::{Event, TokenId};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::answer::TICK;
use crate::error::{Failure, OrRaise};

/// Of each prompt, behind its first token: the natural logarithm of every token's probability, as native `f32`, and
/// whether it is the likeliest, a byte each.
pub(crate) type Scores = Vec<(Py<PyBytes>, Py<PyBytes>)>;

/// What comes of one prompt, by its place.
type Scored = (usize, Event);

/// Evaluates prompts. An interrupt ends it, and so does closing the model.
pub(crate) fn score(
    py: Python<'_>,
    model: &Model,
    prompts: Vec<Vec<u32>>,
    is_closed: impl Fn() -> bool,
) -> PyResult<Scores> {
    let n_prompts = prompts.len();
    let cancelled = Arc::<AtomicBool>::default();
    let mut events = py.detach(|| submit(model, prompts, &cancelled)).or_raise(py)?;
    let mut tokens: Vec<Vec<TokenLogprob>> = vec![Vec::new(); n_prompts];
    let mut n_open = n_prompts;
    while n_open > 0 {
        if is_closed() {
            cancelled.store(true, Ordering::Relaxed);
            return Err(Failure::new("stopped", "the model was closed").raise(py));
        }
        let received = py.detach(|| {
            let events = &mut events;
            events.recv_timeout(TICK)
        });
        match received {
            Ok((at, Event::Scored(more))) => tokens[at].extend(more),
            Ok((_, Event::Done(_))) => n_open -= 1,
            Ok((_, Event::Failed(err))) => {
                cancelled.store(true, Ordering::Relaxed);
                return Err(Failure::from(moeflux::Error::from(err)).raise(py));
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().inspect_err(|_| cancelled.store(true, Ordering::Relaxed))?;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new("stopped", "the thread of the model has ended").raise(py));
            }
        }
    }
    Ok(tokens.iter().map(|tokens| to_bytes(py, tokens)).collect())
}

fn submit(
    model: &Model,
    prompts: Vec<Vec<u32>>,
    cancelled: &Arc<AtomicBool>,
) -> Result<Receiver<Scored>, Failure> {
    let (sender, events) = mpsc::channel::<Scored>();
    let request = Request::default();
    let mut orders = Vec::with_capacity(prompts.len());
    for (at, prompt) in prompts.into_iter().enumerate() {
        let prepared = model.prepare_tokens(prompt.into_iter().map(TokenId).collect(), &request)?;
        let sender = sender.clone();
        orders.push(Order {
            prepared,
            pictures: Vec::new(),
            settings: Settings {
                max_tokens: Some(0),
                top_logprobs: Some(1),
                ..Settings::default()
            },
            keeps_answer: false,
            scores_prompt: true,
            owner: None,
            cancelled: Arc::clone(cancelled),
            // Nothing is received after a failure.
            listener: Box::new(move |event| drop(sender.send((at, event)))),
        });
    }
    model.submit(orders).map_err(moeflux::Error::from)?;
    Ok(events)
}

fn to_bytes(py: Python<'_>, tokens: &[TokenLogprob]) -> (Py<PyBytes>, Py<PyBytes>) {
    let logprobs: Vec<f32> = tokens.iter().map(|token| token.logprob).collect();
    let likeliest =
        |token: &TokenLogprob| token.top.first().is_some_and(|top| top.0 == token.token);
    let are_likeliest: Vec<u8> = tokens.iter().map(|token| u8::from(likeliest(token))).collect();
    let logprobs = PyBytes::new(py, bytemuck::cast_slice(&logprobs));
    (logprobs.unbind(), PyBytes::new(py, &are_likeliest).unbind())
}
