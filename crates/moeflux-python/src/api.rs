//! The HTTP API of a model, without HTTP.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use moeflux::Model;
use moeflux_server::{LocalApi, LocalPart, LocalReply, LocalRequest};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;

use crate::answer::TICK;
use crate::error::{Failure, OrRaise};
use crate::news::Bell;
use crate::process::Owned;

/// The routes of a server for a model, until they are closed.
#[pyclass(frozen, module = "moeflux._moeflux", name = "Api")]
pub(crate) struct PyApi {
    api: Owned<Mutex<Option<Arc<LocalApi>>>>,
}

impl PyApi {
    pub(crate) fn new(model: Model, names: Vec<String>, any_name: bool) -> Result<PyApi, Failure> {
        let api = LocalApi::new(model, names, any_name)
            .map_err(|err| Failure::new("machine", err.to_string()))?;
        Ok(PyApi { api: Owned::new(Mutex::new(Some(Arc::new(api)))) })
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<Arc<LocalApi>>>, Failure> {
        Ok(self.api.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl PyApi {
    /// Begins to answer a request.
    fn ask(
        &self,
        py: Python<'_>,
        method: String,
        path: String,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    ) -> PyResult<PyReply> {
        let asked = py.detach(|| {
            let api = self.lock()?.clone();
            let api = api.ok_or_else(|| Failure::new("stopped", "the API was closed"))?;
            let bell = Bell::new();
            let request = LocalRequest { method, path, headers, body };
            let reply = api
                .ask(request, bell.ring())
                .map_err(|err| Failure::new("request", format!("the request is none: {err}")))?;
            Ok::<_, Failure>(PyReply { reply: Owned::new(Mutex::new(Some(reply))), bell })
        });
        asked.or_raise(py)
    }

    /// Ends all requests, and lets go of the model.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| {
            let api = self.lock()?.take();
            // Without the lock: threads end here.
            drop(api);
            Ok::<_, Failure>(())
        });
        closed.or_raise(py)
    }
}

/// A reply while it is made.
#[pyclass(frozen, module = "moeflux._moeflux", name = "Reply")]
pub(crate) struct PyReply {
    reply: Owned<Mutex<Option<LocalReply>>>,
    bell: Bell,
}

impl PyReply {
    /// The next part, if there is one in this time. There is none where the reply was closed.
    fn wait(&self, most: Duration) -> Result<Option<LocalPart>, Failure> {
        let mut reply = self.reply.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        match reply.as_mut() {
            Some(reply) => reply.wait(most).map_err(|err| Failure::new("stopped", err)),
            None => Ok(Some(LocalPart::End)),
        }
    }
}

#[pymethods]
impl PyReply {
    /// The number by which `wait_for_news` calls it.
    #[getter]
    fn number(&self) -> u64 {
        self.bell.number
    }

    /// Waits for the next part; `None` at the end. The first is the head, as JSON. Raises `TimeoutError` after this
    /// many seconds.
    #[pyo3(signature = (seconds=None))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        seconds: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let start = Instant::now();
        loop {
            let found = py.detach(|| self.wait(TICK));
            if let Some(part) = found.or_raise(py)? {
                return Ok(to_bytes(py, &part));
            }
            py.check_signals().inspect_err(|_| self.drop_reply(py))?;
            if seconds.is_some_and(|most| start.elapsed().as_secs_f64() >= most) {
                return Err(PyTimeoutError::new_err("no part of the reply came in time"));
            }
        }
    }

    /// The next part, if there is one, and whether that is certain. Where it is not, `wait_for_news` returns this
    /// reply's number when it is to be called again.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<(bool, Option<Bound<'py, PyBytes>>)> {
        let found = py.detach(|| {
            self.bell.arm();
            self.wait(Duration::ZERO)
        });
        let part = found.or_raise(py)?;
        Ok((part.is_some(), part.and_then(|part| to_bytes(py, &part))))
    }

    /// Ends it.
    fn close(&self, py: Python<'_>) {
        self.drop_reply(py);
    }
}

impl PyReply {
    fn drop_reply(&self, py: Python<'_>) {
        py.detach(|| {
            if let Ok(reply) = self.reply.get() {
                drop(reply.lock().unwrap_or_else(PoisonError::into_inner).take());
            }
        });
    }
}

/// A part as bytes; `None` for the end.
fn to_bytes<'py>(py: Python<'py>, part: &LocalPart) -> Option<Bound<'py, PyBytes>> {
    match part {
        LocalPart::Head { status, headers } => {
            let head = json!({"status": status, "headers": headers}).to_string();
            Some(PyBytes::new(py, head.as_bytes()))
        }
        LocalPart::Body(bytes) => Some(PyBytes::new(py, bytes)),
        LocalPart::End => None,
    }
}
