//! Buffers for experts that a thread allocates while dense weights are loaded: drivers take a while for
//! gigabytes.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::device::buffer::Mem;
use crate::device::context::Context;

/// Buffers in the order in which they are going to be asked for.
#[derive(Debug, Default)]
pub(crate) struct AllocatedAhead {
    coming: Mutex<Option<Receiver<Mem>>>,
    thread: Option<JoinHandle<()>>,
}

impl AllocatedAhead {
    /// Begins to allocate buffers of these sizes, until there is no memory for one.
    pub(crate) fn begin(context: &Arc<Context>, sizes: Vec<u64>) -> AllocatedAhead {
        let (sender, receiver) = channel();
        let context = Arc::clone(context);
        let allocate = move || {
            for bytes in sizes {
                let Some(buffer) = context.try_storage(bytes, "experts") else { return };
                if sender.send(Mem::new(buffer)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(String::from("gpu-memory")).spawn(allocate).ok();
        AllocatedAhead { coming: Mutex::new(Some(receiver)), thread }
    }

    /// The next buffer, where it has this many bytes or up to `slack` more; waits for it. Any other is
    /// freed, with all that would come after it.
    pub(crate) fn take(&self, bytes: u64, slack: u64) -> Option<Mem> {
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        let next = coming.as_ref().and_then(|coming| coming.recv().ok());
        if next.as_ref().is_some_and(|mem| (bytes..=bytes + slack).contains(&mem.bytes())) {
            return next;
        }
        if let Some(mem) = next {
            mem.buffer.destroy();
        }
        for mem in coming.take().into_iter().flatten() {
            mem.buffer.destroy();
        }
        None
    }
}

impl Drop for AllocatedAhead {
    fn drop(&mut self) {
        *self.coming.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(thread) = self.thread.take() {
            // A panicked thread has allocated less.
            let _ = thread.join();
        }
    }
}
