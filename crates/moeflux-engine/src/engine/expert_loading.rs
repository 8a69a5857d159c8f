//! What is left to do when a model is open: experts that the device has room for are loaded while the
//! engine answers, then products of the device are measured while it does not.
//!
//! A step that needs an expert before its turn uploads it to the place where it stays, so every expert
//! is uploaded once. The thread reads without the core's lock, and takes it for one part at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use moeflux_core::ExpertId;
use moeflux_store::{Arrivals, ExpertStore};

use crate::device::Tuner;
use crate::engine::core_lock::CoreLock;
use crate::error::EngineError;
use crate::residency::{ExpertPart, PARTS_AHEAD, arrived};

/// How long no step has to run before products are measured.
const IDLE: Duration = Duration::from_secs(2);

/// How long a step may have to wait for them.
const MEASURED_AT_ONCE: Duration = Duration::from_millis(200);

/// What is done while the engine answers.
pub(crate) struct Work {
    /// All experts; none where they stream, or are loaded.
    pub(crate) parts: Vec<ExpertPart>,
    /// Experts of a row, which the cache has room for once the device has all.
    pub(crate) top_k: usize,
    /// What measures products.
    pub(crate) tuner: Option<Tuner>,
}

/// The thread, which ends when this is dropped.
pub(crate) struct ExpertLoading {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// All experts are loaded, or none any more will be.
    has_ended: bool,
    /// Why experts stream from the host although the device has room for them.
    warning: Option<String>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Waits for that long, or until the engine is gone; whether it is.
    fn wait_closed(&self, time: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), time, |state| !state.is_closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }
}

impl ExpertLoading {
    /// Begins the work on a core, whose device has reserved memory for the experts.
    pub(crate) fn begin(
        core: &Arc<CoreLock>,
        experts: &Arc<ExpertStore>,
        work: Work,
    ) -> ExpertLoading {
        let progress = Arc::<Progress>::default();
        let loader = Loader {
            core: Arc::downgrade(core),
            experts: Arc::clone(experts),
            ending: Ending(Arc::clone(&progress)),
        };
        // Without the thread steps upload what they need.
        let thread = thread::Builder::new().name(String::from("expert-loading"));
        let thread = thread.spawn(move || loader.run(work)).ok();
        ExpertLoading { progress, thread }
    }

    /// Waits until all experts are loaded, or none any more will be.
    pub(crate) fn finish(&self) {
        let state = self.progress.lock();
        let waited = self.progress.changed.wait_while(state, |state| !state.has_ended);
        drop(waited);
    }

    /// What the user should know, since the last call.
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.progress.lock().warning.take()
    }
}

impl Drop for ExpertLoading {
    fn drop(&mut self) {
        self.progress.lock().is_closed = true;
        self.progress.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panicked thread leaves the others of its experts to steps.
            let _ = thread.join();
        }
    }
}

/// Says that no more experts will be loaded, also where the thread panicked or never began.
struct Ending(Arc<Progress>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

/// What the thread has. It does not keep the core.
struct Loader {
    core: Weak<CoreLock>,
    experts: Arc<ExpertStore>,
    ending: Ending,
}

impl Loader {
    fn run(self, work: Work) {
        let Work { parts, top_k, tuner } = work;
        let progress = Arc::clone(&self.ending.0);
        if !parts.is_empty()
            && let Err(err) = self.load(parts, top_k)
        {
            progress.lock().warning =
                Some(format!("experts stream from memory and drive, as loading them ended: {err}"));
        }
        let core = Weak::clone(&self.core);
        drop(self);
        if let Some(tuner) = tuner {
            measure_while_idle(&core, &progress, &tuner);
        }
    }

    /// Returns when all are loaded, or the engine is gone.
    fn load(&self, parts: Vec<ExpertPart>, top_k: usize) -> Result<(), EngineError> {
        let mut parts = parts.into_iter();
        let mut on_their_way = VecDeque::new();
        while !self.ending.0.is_closed() {
            while on_their_way.len() <= PARTS_AHEAD
                && let Some(part) = parts.next()
            {
                let Some(core) = self.core.upgrade() else { return Ok(()) };
                let missing = core.lock().missing_on_device(&part);
                drop(core);
                on_their_way.extend(self.request(&part, &missing));
            }
            let Some(arrivals) = on_their_way.pop_front() else {
                let Some(core) = self.core.upgrade() else { return Ok(()) };
                return core.lock().end_loading(top_k);
            };
            let experts = arrived(arrivals)?;
            let Some(core) = self.core.upgrade() else { return Ok(()) };
            core.lock().load_experts(&experts)?;
        }
        Ok(())
    }

    fn request(&self, part: &ExpertPart, experts: &[ExpertId]) -> Option<Arrivals<'_>> {
        (!experts.is_empty()).then(|| self.experts.request(part.layer, experts))
    }
}

/// Measures products, a few at a time after a while without steps, until all are known.
fn measure_while_idle(core: &Weak<CoreLock>, progress: &Progress, tuner: &Tuner) {
    let (mut n_steps, mut n_left) = (None, usize::MAX);
    while !progress.wait_closed(IDLE) {
        let Some(core) = core.upgrade() else { return };
        let core = core.lock();
        if n_steps.replace(core.n_steps) != Some(core.n_steps) {
            continue;
        }
        // Where the device fails, the next step says so.
        let Ok(Some(tuning)) = tuner.tune(MEASURED_AT_ONCE) else { return };
        if tuning.n_left == 0 || tuning.n_left >= n_left {
            return;
        }
        n_left = tuning.n_left;
    }
}
