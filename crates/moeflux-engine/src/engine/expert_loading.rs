//! Loads the experts that a device has room for while the engine answers.
//!
//! A step that needs an expert before its turn uploads it to the place where it stays, so every expert
//! is uploaded once. The thread reads without the core's lock, and takes it for one part at a time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use moeflux_core::ExpertId;
use moeflux_store::{Arrivals, ExpertStore};

use crate::engine::core_lock::CoreLock;
use crate::error::EngineError;
use crate::residency::{ExpertPart, PARTS_AHEAD, arrived};

/// The thread, which ends when this is dropped.
pub(crate) struct ExpertLoading {
    state: Arc<State>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    is_closed: AtomicBool,
    /// Why experts stream from the host although the device has room for them.
    warning: Mutex<Option<String>>,
}

impl ExpertLoading {
    /// Begins to load `parts` of the experts of a core, whose device has reserved memory for all; a row
    /// gets `top_k` of them.
    pub(crate) fn begin(
        core: &Arc<CoreLock>,
        experts: &Arc<ExpertStore>,
        parts: Vec<ExpertPart>,
        top_k: usize,
    ) -> ExpertLoading {
        let state = Arc::<State>::default();
        let work = Loader {
            core: Arc::downgrade(core),
            experts: Arc::clone(experts),
            state: Arc::clone(&state),
            top_k,
        };
        // Without the thread steps upload what they need.
        let thread = thread::Builder::new().name(String::from("expert-loading"));
        let thread = thread.spawn(move || work.load(parts)).ok();
        ExpertLoading { state, thread: Mutex::new(thread) }
    }

    /// Waits until all experts are loaded, or none any more are.
    pub(crate) fn finish(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panicked thread leaves the others of its experts to steps.
            let _ = thread.join();
        }
    }

    /// What the user should know, since the last call.
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.state.warning.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for ExpertLoading {
    fn drop(&mut self) {
        self.state.is_closed.store(true, Ordering::Relaxed);
        self.finish();
    }
}

/// What the thread has. It does not keep the core.
struct Loader {
    core: Weak<CoreLock>,
    experts: Arc<ExpertStore>,
    state: Arc<State>,
    /// Experts of a row, which the cache of a model that is loaded has room for.
    top_k: usize,
}

impl Loader {
    fn load(&self, parts: Vec<ExpertPart>) {
        if let Err(err) = self.load_parts(parts) {
            let text =
                format!("experts stream from memory and drive, as loading them ended: {err}");
            *self.state.warning.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        }
    }

    /// Returns when all are loaded, or the engine is gone.
    fn load_parts(&self, parts: Vec<ExpertPart>) -> Result<(), EngineError> {
        let mut parts = parts.into_iter();
        let mut on_their_way = VecDeque::new();
        while !self.state.is_closed.load(Ordering::Relaxed) {
            while on_their_way.len() <= PARTS_AHEAD
                && let Some(part) = parts.next()
            {
                let Some(core) = self.core.upgrade() else { return Ok(()) };
                let missing = core.lock().missing_on_device(&part);
                drop(core);
                on_their_way.extend(self.request(&part, &missing));
            }
            let Some(arrivals) = on_their_way.pop_front() else { return self.end() };
            let experts = arrived(arrivals)?;
            let Some(core) = self.core.upgrade() else { return Ok(()) };
            core.lock().load_experts(&experts)?;
        }
        Ok(())
    }

    fn request(&self, part: &ExpertPart, experts: &[ExpertId]) -> Option<Arrivals<'_>> {
        (!experts.is_empty()).then(|| self.experts.request(part.layer, experts))
    }

    fn end(&self) -> Result<(), EngineError> {
        let Some(core) = self.core.upgrade() else { return Ok(()) };
        core.lock().end_loading(self.top_k)
    }
}
