//! Wakes tasks of asyncio: the numbers of answers that have more to receive, for one thread of Python that waits for
//! all of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use moeflux::News;
use pyo3::prelude::*;

/// The number that ends the wait.
const STOP: u64 = 0;

struct Channel {
    sender: Sender<u64>,
    receiver: Mutex<Receiver<u64>>,
}

static CHANNEL: LazyLock<Channel> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel();
    Channel { sender, receiver: Mutex::new(receiver) }
});

static NEXT: AtomicU64 = AtomicU64::new(STOP + 1);

/// What wakes the task that waits for one answer.
#[derive(Clone)]
pub(crate) struct Bell {
    /// Tells it from others.
    pub(crate) number: u64,
    is_armed: Arc<AtomicBool>,
}

impl Bell {
    pub(crate) fn new() -> Bell {
        Bell { number: NEXT.fetch_add(1, Ordering::Relaxed), is_armed: Arc::default() }
    }

    /// Has it ring once, with the next thing to receive.
    pub(crate) fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// What the model's thread calls: it does not wait.
    pub(crate) fn ring(&self) -> News {
        let Bell { number, is_armed } = self.clone();
        Arc::new(move || {
            if is_armed.swap(false, Ordering::SeqCst) {
                // The receiver is never dropped.
                let _ = CHANNEL.sender.send(number);
            }
        })
    }
}

/// Waits for answers that have more to receive, and returns their numbers; none where the wait was ended.
#[pyfunction]
pub(crate) fn wait_for_news(py: Python<'_>) -> Vec<u64> {
    py.detach(|| {
        let receiver = CHANNEL.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        // The sender is never dropped.
        let first = receiver.recv().unwrap_or(STOP);
        let numbers: Vec<u64> = std::iter::once(first).chain(receiver.try_iter()).collect();
        if numbers.contains(&STOP) { Vec::new() } else { numbers }
    })
}

/// Ends the wait.
#[pyfunction]
pub(crate) fn stop_news() {
    // The receiver is never dropped.
    let _ = CHANNEL.sender.send(STOP);
}
