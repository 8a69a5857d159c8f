//! Several requests at a time, with events on the thread that waits for them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use moeflux_core::explain_thread_error;

use super::error::HubError;
use super::event::Retry;
use super::retry::Attempts;

/// What workers send to the thread that reports.
pub(super) enum Message {
    /// `have` bytes of a task's file are here, of which `received` came since the last message.
    Bytes { task: usize, have: u64, received: u64 },
    /// A request will be repeated.
    Retry(Retry),
    /// A task is done.
    Done,
}

enum Sent {
    Message(Message),
    Failed(HubError),
}

/// A task's view of the pool.
pub(super) struct Worker<'a> {
    task: usize,
    sender: &'a SyncSender<Sent>,
    is_stopped: &'a AtomicBool,
}

impl Worker<'_> {
    /// Reports bytes; `false` when the task shall end because another one failed.
    pub(super) fn bytes(&self, have: u64, received: u64) -> bool {
        self.send(Message::Bytes { task: self.task, have, received });
        !self.is_stopped.load(Ordering::Relaxed)
    }

    /// Calls `act` with the means to repeat requests for `what`.
    pub(super) fn attempts<T>(
        &self,
        what: &str,
        act: impl FnOnce(&mut Attempts<'_>) -> Result<T, HubError>,
    ) -> Result<T, HubError> {
        let mut notify = |retry: &Retry| self.send(Message::Retry(retry.clone()));
        act(&mut Attempts { what, notify: &mut notify, is_stopped: self.is_stopped })
    }

    fn send(&self, message: Message) {
        // The receiver outlives the workers.
        let _ = self.sender.send(Sent::Message(message));
    }
}

/// Stops workers when it is dropped, also where `report` unwinds: nothing waits for them then.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` for the numbers below `n_tasks` on up to `n_parallel` threads. `report` runs on this
/// thread. The first failure stops the other workers and is returned.
pub(super) fn run(
    n_tasks: usize,
    n_parallel: usize,
    work: impl Fn(usize, &Worker<'_>) -> Result<(), HubError> + Sync,
    report: &mut dyn FnMut(Message),
) -> Result<(), HubError> {
    let next = AtomicUsize::new(0);
    let is_stopped = AtomicBool::new(false);
    let mut result = Ok(());
    thread::scope(|scope| {
        let (sender, inbox) = sync_channel(64);
        let mut n_started = 0;
        for _ in 0..n_parallel.clamp(1, 16).min(n_tasks) {
            let sender = sender.clone();
            let (next, is_stopped, work) = (&next, &is_stopped, &work);
            let started = thread::Builder::new().spawn_scoped(scope, move || {
                while !is_stopped.load(Ordering::Relaxed) {
                    let task = next.fetch_add(1, Ordering::Relaxed);
                    if task >= n_tasks {
                        break;
                    }
                    let worker = Worker { task, sender: &sender, is_stopped };
                    let sent = match work(task, &worker) {
                        Ok(()) => Sent::Message(Message::Done),
                        Err(error) => Sent::Failed(error),
                    };
                    // The receiver outlives the workers.
                    let _ = sender.send(sent);
                }
            });
            match started {
                Ok(_) => n_started += 1,
                // Fewer threads take longer, nothing else.
                Err(_) if n_started > 0 => break,
                Err(err) => result = Err(HubError::Threads(explain_thread_error(err))),
            }
        }
        drop(sender);
        let _stop = Stop(&is_stopped);
        for sent in inbox {
            match sent {
                Sent::Message(message) => report(message),
                Sent::Failed(error) => {
                    is_stopped.store(true, Ordering::Relaxed);
                    if result.is_ok() {
                        result = Err(error);
                    }
                }
            }
        }
    });
    result
}
