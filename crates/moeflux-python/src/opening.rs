//! From a name to a loaded model, with progress, and with an end where the caller wants none any more.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;

use moeflux::{Model, Options};
use moeflux_cli::in_words;
use moeflux_engine::{Engine, SchedulerOptions};
use moeflux_hub::Event;
use pyo3::prelude::*;

use crate::answer::TICK;
use crate::error::{Failure, OrRaise};
use crate::finding::find;
use crate::model::PyModel;
use crate::options;
use crate::process;

/// Requests that may wait for a session.
const MAX_WAITING: usize = 1 << 20;

/// Unwinds from a callback to the thread that loads: the caller was interrupted.
struct Interrupted;

/// How far it is: what is done, in bytes, and of how many.
struct Progress {
    what: &'static str,
    done: u64,
    total: u64,
}

/// What happens meanwhile.
enum Happening {
    Progress(Progress),
    /// What the user should know, in one line.
    Note(String),
}

/// What loading tells the caller, and hears from it.
struct Line<'a> {
    sender: Sender<Happening>,
    is_given_up: &'a AtomicBool,
}

impl Line<'_> {
    fn report(&self, what: &'static str, done: u64, total: u64) {
        self.send(Happening::Progress(Progress { what, done, total }));
    }

    fn send(&self, happening: Happening) {
        if self.is_given_up.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Interrupted));
        }
        // The receiver waits until this thread ends.
        drop(self.sender.send(happening));
    }
}

/// Shows what has happened: every note, and of the progress the last.
fn show(
    py: Python<'_>,
    happenings: Vec<Happening>,
    progress: Option<&Py<PyAny>>,
    note: &Py<PyAny>,
) -> PyResult<()> {
    let mut last = None;
    for happening in happenings {
        match happening {
            Happening::Note(text) => drop(note.call1(py, (text,))?),
            Happening::Progress(progress) => last = Some(progress),
        }
    }
    if let (Some(Progress { what, done, total }), Some(progress)) = (last, progress) {
        progress.call1(py, (what, done, total))?;
    }
    Ok(())
}

/// Finds a model, downloads it if that is asked for, and loads it. `progress` is called with what is done
/// (`downloading`, `loading`), the bytes so far and their total; `note` with what the user should know of a download.
#[pyfunction]
pub(crate) fn open_model(
    py: Python<'_>,
    model: Option<&str>,
    options: &str,
    download: bool,
    progress: Option<Py<PyAny>>,
    note: Py<PyAny>,
) -> PyResult<PyModel> {
    process::claim().or_raise(py)?;
    let options = options::read(options).map_err(|err| err.raise(py))?;
    let is_given_up = AtomicBool::new(false);
    let (sender, mut receiver) = mpsc::channel();
    thread::scope(|scope| {
        let line = Line { sender, is_given_up: &is_given_up };
        let started = thread::Builder::new()
            .name(String::from("load"))
            .spawn_scoped(scope, || open(model, &options, download, line));
        let worker = started
            .map_err(|err| Failure::new("machine", format!("cannot start a thread: {err}")))
            .or_raise(py)?;
        loop {
            let (ended, happenings) = py.detach(|| {
                let receiver = &mut receiver;
                let first = receiver.recv_timeout(TICK);
                let ended = matches!(first, Err(RecvTimeoutError::Disconnected));
                (ended, first.into_iter().chain(receiver.try_iter()).collect())
            });
            let shown = show(py, happenings, progress.as_ref(), &note);
            if let Err(err) = shown.and_then(|()| py.check_signals()) {
                is_given_up.store(true, Ordering::Relaxed);
                // What it ends with is of no use.
                drop(py.detach(|| worker.join()));
                return Err(err);
            }
            if ended {
                break;
            }
        }
        let done = py.detach(|| worker.join().unwrap_or_else(|payload| resume_unwind(payload)));
        done.or_raise(py).map(PyModel::new)
    })
}

fn open(
    model: Option<&str>,
    options: &Options,
    download: bool,
    line: Line<'_>,
) -> Result<Model, Failure> {
    let mut on_event = |event: Event<'_>| match event {
        Event::Bytes { done, total, .. } => line.report("downloading", done, total),
        Event::Headers { done, total } => line.report("reading headers", done as u64, total as u64),
        event => match in_words(&event) {
            Some(words) => line.send(Happening::Note(words)),
            None => line.report("downloading", 0, 0),
        },
    };
    let on_event: Option<&mut dyn FnMut(Event<'_>)> =
        if download { Some(&mut on_event) } else { None };
    let path = find(model, on_event)?;
    let mut report = |done, total| line.report("loading", done, total);
    let engine = Engine::open_with_progress(&path, options, &mut report)?;
    let n_sessions = engine.plan().n_sessions;
    let limits = SchedulerOptions { n_sessions, max_waiting: MAX_WAITING };
    let model = Model::of_engine(engine, limits)?;
    model.text().read_templates().map_err(moeflux::Error::from)?;
    Ok(model)
}
