//! A loaded model.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use moeflux::{AnswerOptions, Ask, Model, Request};
use moeflux_engine::TokenId;
use moeflux_text::{AnswerShape, Conversation, Markup, ToolChoice, Tools};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use serde_json::Value;

use crate::answer::{PyAnswer, TICK};
use crate::api::PyApi;
use crate::error::{Failure, OrRaise};
use crate::facts;
use crate::news::Bell;
use crate::process::Owned;
use crate::request::{PromptArg, RequestArg, Shown};
use crate::score::{Scores, score};
use crate::session::PySession;

/// Bytes of text from which on reading it is noticed.
const LONG_TEXT: usize = 1 << 16;

/// A loaded model, until it is closed.
#[pyclass(frozen, module = "moeflux._moeflux", name = "Model")]
pub(crate) struct PyModel {
    model: Owned<Mutex<Option<Model>>>,
}

impl PyModel {
    pub(crate) fn new(model: Model) -> PyModel {
        PyModel { model: Owned::new(Mutex::new(Some(model))) }
    }

    /// A handle of the model.
    fn model(&self) -> Result<Model, Failure> {
        let model = self.model.get()?.lock().unwrap_or_else(PoisonError::into_inner).clone();
        model.ok_or_else(|| Failure::new("stopped", "the model was closed"))
    }

    /// Calls `work` with the model and without Python's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Model) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        py.detach(|| work(&self.model()?)).or_raise(py)
    }

    /// As `with`, for work that reads `n_bytes` of text. Tokenizers and templates cannot be stopped in the middle:
    /// an interrupt leaves long work to its thread, and drops what comes of it.
    fn read<T: Send + 'static>(
        &self,
        py: Python<'_>,
        n_bytes: usize,
        work: impl FnOnce(&Model) -> Result<T, Failure> + Send + 'static,
    ) -> PyResult<T> {
        if n_bytes < LONG_TEXT {
            return self.with(py, work);
        }
        let model = self.model().or_raise(py)?;
        let (sender, mut receiver) = mpsc::channel();
        // Nothing is received after an interrupt.
        let work = move || drop(sender.send(work(&model)));
        thread::Builder::new()
            .name(String::from("read"))
            .spawn(work)
            .map_err(|err| Failure::new("machine", format!("cannot start a thread: {err}")))
            .or_raise(py)?;
        loop {
            let received = py.detach(|| {
                let receiver = &mut receiver;
                receiver.recv_timeout(TICK)
            });
            match received {
                Ok(done) => return done.or_raise(py),
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new("machine", "reading the text failed").raise(py));
                }
            }
        }
    }
}

#[pymethods]
impl PyModel {
    /// Requests answers, all or none of them. Each prompt has its request, as JSON.
    fn answer(
        &self,
        py: Python<'_>,
        prompts: Vec<PromptArg>,
        requests: Vec<String>,
    ) -> PyResult<Vec<PyAnswer>> {
        let n_bytes = prompts.iter().map(PromptArg::n_bytes).fold(0, usize::saturating_add);
        self.read(py, n_bytes, move |model| answer(model, prompts, &requests))
    }

    /// Evaluates prompts and returns the probabilities of their tokens, see `score`.
    fn score(&self, py: Python<'_>, prompts: Vec<Vec<u32>>) -> PyResult<Scores> {
        let model = self.model().or_raise(py)?;
        score(py, &model, prompts, || self.is_closed())
    }

    /// Begins a session.
    fn session(&self, py: Python<'_>) -> PyResult<PySession> {
        self.with(py, |model| Ok(PySession::new(model.engine())))
    }

    /// The routes of a server for this model. With `any_name` every other name means it, too.
    fn api(&self, py: Python<'_>, names: Vec<String>, any_name: bool) -> PyResult<PyApi> {
        self.with(py, |model| PyApi::new(model.clone(), names, any_name))
    }

    /// Token ids of a text. With `special`, what is written as a control token is one.
    fn encode(&self, py: Python<'_>, text: String, special: bool) -> PyResult<Vec<u32>> {
        let markup = if special { Markup::Parse } else { Markup::Literal };
        let ids = self.read(py, text.len(), move |model| {
            Ok(model.tokenizer().encode(&text, markup).map_err(moeflux::Error::from)?)
        })?;
        Ok(ids.into_iter().map(|id| id.0).collect())
    }

    /// The text of token ids.
    fn decode(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<String> {
        let ids: Vec<TokenId> = ids.into_iter().map(TokenId).collect();
        self.with(py, |model| Ok(model.tokenizer().decode(&ids)))
    }

    /// The prompt that a conversation becomes, as text and as token ids.
    fn render(
        &self,
        py: Python<'_>,
        conversation: String,
        pictures: Vec<PyBackedBytes>,
        tools: String,
        thinking: Option<bool>,
        continues: bool,
    ) -> PyResult<(String, Vec<u32>)> {
        // Towers take seconds for a picture.
        let n_bytes = if pictures.is_empty() { conversation.len() } else { usize::MAX };
        self.read(py, n_bytes, move |model| {
            let functions: Vec<Value> = serde_json::from_str(&tools)
                .map_err(|err| Failure::of_request("tools", format!("tools: {err}")))?;
            let Shown { messages, pictures } = Shown::see(model, &conversation, &pictures)?;
            let conversation = Conversation {
                tools: Tools { functions: functions.clone(), strict: Vec::new() },
                tool_choice: ToolChoice::Auto,
                shape: AnswerShape::Text,
                thinking,
                continues,
                pictures: pictures.iter().map(|seen| seen.rows()).collect(),
                ..Conversation::new(messages.clone())
            };
            let mut request = Request::default().tools(functions).pictures(pictures);
            (request.thinking, request.continues) = (thinking, continues);
            let prepared = model.prepare(&messages, &request)?;
            // What can be prepared can be rendered.
            let text = model.text().prompt_text(&conversation).unwrap_or_default();
            Ok((text, prepared.turn.tokens.iter().map(|id| id.0).collect()))
        })
    }

    /// What does not change while it is loaded, as JSON.
    fn facts(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |model| Ok(facts::of_model(model).to_string()))
    }

    /// Counts since it was loaded, or since they were reset, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |model| Ok(facts::stats(model).to_string()))
    }

    /// Begins to count anew what was read.
    fn reset_stats(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |model| {
            model.engine().reset_stats();
            Ok(())
        })
    }

    /// Whether it was closed, or belongs to another process.
    fn is_closed(&self) -> bool {
        self.model().is_err()
    }

    /// Frees the memory, once the last answer and the last session are gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| {
            let model = self.model.get()?.lock().unwrap_or_else(PoisonError::into_inner).take();
            // Without the lock: the model's thread ends here.
            drop(model);
            Ok::<_, Failure>(())
        });
        closed.or_raise(py)
    }
}

fn answer(
    model: &Model,
    prompts: Vec<PromptArg>,
    requests: &[String],
) -> Result<Vec<PyAnswer>, Failure> {
    let (mut asks, mut handles) = (Vec::new(), Vec::new());
    for (prompt, request) in prompts.into_iter().zip(requests) {
        let request = RequestArg::read(request)?.of_model(model);
        let (prepared, pictures) = prompt.prepare(model, &request)?;
        let settings = request.settings(model.tokenizer());
        let (cancelled, bell) = (Arc::<AtomicBool>::default(), Bell::new());
        let options = AnswerOptions {
            cancelled: Arc::clone(&cancelled),
            news: Some(bell.ring()),
            ..AnswerOptions::default()
        };
        asks.push(Ask { prepared, pictures, settings, options });
        handles.push((cancelled, bell));
    }
    let answers = model.answer_all(asks)?.into_iter().zip(handles);
    Ok(answers.map(|(answer, (cancelled, bell))| PyAnswer::new(answer, cancelled, bell)).collect())
}
