//! The threads that read, and the state that they share with consumers.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use moeflux_core::explain_thread_error;

use crate::StoreError;

/// The state of a store: where each record is, who waits for it, and what is read next. No method
/// waits.
pub(crate) trait Desk: Debug + Send + Sized + 'static {
    /// Runs reads, without the lock.
    type Reader: Debug + Send + Sync + 'static;
    /// A read that has begun.
    type Read: Send;
    /// Memory of a thread for one read at a time.
    type Memory: Default;
    /// What became of a read.
    type Outcome;

    /// Whether the state is whole after a panic of a thread that had the lock.
    const SURVIVES_PANICS: bool;

    /// Adds the reads that a thread runs next, one after the other, to `reads`; none if nothing is
    /// to be read now. Returns which other threads have reads to begin.
    fn begin(&mut self, reader: &Self::Reader, reads: &mut Vec<Self::Read>) -> Wake;

    /// Runs a read.
    fn run(
        reader: &Self::Reader,
        read: &mut Self::Read,
        memory: &mut Self::Memory,
    ) -> Self::Outcome;

    /// Ends a read. Returns whether consumers have to look at the state.
    fn end(
        &mut self,
        reader: &Self::Reader,
        read: Self::Read,
        memory: &Self::Memory,
        outcome: Self::Outcome,
    ) -> bool;
}

/// The threads to wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    None,
    One,
    All,
}

/// What consumers and readers share.
#[derive(Debug)]
pub(crate) struct Shared<D: Desk> {
    pub(crate) reader: D::Reader,
    desk: Mutex<D>,
    /// Set by a thread that has the lock.
    is_closed: AtomicBool,
    /// Notified when a read can begin, or the store closes.
    pub(crate) work: Condvar,
    /// Notified when consumers have to look at the state.
    pub(crate) arrived: Condvar,
}

#[cfg(test)]
thread_local! {
    /// How often this thread took a store's lock.
    pub(crate) static N_LOCKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl<D: Desk> Shared<D> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, D> {
        #[cfg(test)]
        N_LOCKS.set(N_LOCKS.get() + 1);
        survive::<D, _>(self.desk.lock())
    }

    /// Waits until consumers have to look at the state.
    pub(crate) fn wait<'a>(&self, desk: MutexGuard<'a, D>) -> MutexGuard<'a, D> {
        survive::<D, _>(self.arrived.wait(desk))
    }

    /// Waits like [`Shared::wait`], but at most for `time`.
    pub(crate) fn wait_for<'a>(
        &self,
        desk: MutexGuard<'a, D>,
        time: Duration,
    ) -> MutexGuard<'a, D> {
        survive::<D, _>(self.arrived.wait_timeout(desk, time)).0
    }

    /// Runs reads until the store closes.
    fn serve(&self) {
        let (mut reads, mut outcomes, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        let mut desk = self.lock();
        while !self.is_closed.load(Ordering::Relaxed) {
            let wake = desk.begin(&self.reader, &mut reads);
            if reads.is_empty() {
                desk = survive::<D, _>(self.work.wait(desk));
                continue;
            }
            match wake {
                Wake::None => {}
                Wake::One => self.work.notify_one(),
                Wake::All => self.work.notify_all(),
            }
            drop(desk);
            memory.resize_with(reads.len().max(memory.len()), D::Memory::default);
            let run = |(read, memory)| D::run(&self.reader, read, memory);
            outcomes.extend(reads.iter_mut().zip(&mut memory).map(run));
            desk = self.lock();
            let mut has_news = false;
            for ((read, memory), outcome) in reads.drain(..).zip(&memory).zip(outcomes.drain(..)) {
                has_news |= desk.end(&self.reader, read, memory, outcome);
            }
            if has_news {
                self.arrived.notify_all();
            }
        }
    }
}

/// The state although a thread may have panicked, if that leaves it whole.
fn survive<D: Desk, G>(locked: Result<G, PoisonError<G>>) -> G {
    match locked {
        Ok(guard) => guard,
        Err(poisoned) if D::SURVIVES_PANICS => poisoned.into_inner(),
        Err(_) => panic!("no holder of the lock panics"),
    }
}

/// How the readers of a store are started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threads {
    /// At least one is started.
    pub(crate) n: usize,
    /// Begin of their names.
    pub(crate) name: &'static str,
    /// Bytes of their stacks, if not those that the system gives.
    pub(crate) stack_bytes: Option<usize>,
    /// What messages call them.
    pub(crate) what: &'static str,
}

/// The threads that read for a store, until this is dropped.
#[derive(Debug)]
pub(crate) struct Readers<D: Desk> {
    pub(crate) shared: Arc<Shared<D>>,
    threads: Vec<JoinHandle<()>>,
}

impl<D: Desk> Readers<D> {
    /// # Errors
    /// If threads cannot be started.
    pub(crate) fn start(
        reader: D::Reader,
        desk: D,
        threads: Threads,
    ) -> Result<Readers<D>, StoreError> {
        let (desk, is_closed) = (Mutex::new(desk), AtomicBool::new(false));
        let (work, arrived) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { reader, desk, is_closed, work, arrived });
        let mut readers = Readers { shared, threads: Vec::new() };
        for i in 0..threads.n.max(1) {
            let shared = Arc::clone(&readers.shared);
            let mut thread = thread::Builder::new().name(format!("{}-{i}", threads.name));
            if let Some(bytes) = threads.stack_bytes {
                thread = thread.stack_size(bytes);
            }
            let thread = thread.spawn(move || shared.serve());
            readers.threads.push(thread.map_err(|err| threads.refused(err))?);
        }
        Ok(readers)
    }
}

impl Threads {
    /// The error if the system gives no threads.
    pub(crate) fn refused(&self, err: std::io::Error) -> StoreError {
        let (what, n, source) = (self.what, self.n.max(1), explain_thread_error(err));
        StoreError::Threads { what, n_readers: n, source }
    }
}

impl<D: Desk> Drop for Readers<D> {
    fn drop(&mut self) {
        let locked = self.shared.desk.lock();
        self.shared.is_closed.store(true, Ordering::Relaxed);
        drop(locked);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // The message of a panic in a reader has already been printed.
            let _ = thread.join();
        }
    }
}
