//! Threads for kernels of tens of microseconds: fork, take tasks, join.
//!
//! One atomic word holds the number of the fork and the tasks that no thread has
//! taken. Taking a task is a compare-and-swap of that word, so a thread that
//! comes late finds either tasks of the present fork or nothing. The caller
//! takes tasks like everybody else and waits only for tasks that were taken: a
//! worker that the system does not run in time costs nothing.

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Threads that share the tasks of one call.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    spin: Duration,
    start: Instant,
    /// When the last fork ended, in nanoseconds since `start`.
    last_end: AtomicU64,
}

#[derive(Debug)]
struct Worker {
    thread: JoinHandle<()>,
    sleeps: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Shared {
    /// Number of the fork above [`TASK_BITS`], tasks not yet taken below.
    open: AtomicU64,
    /// Invariant: written only while no task is open or taken; read only by who
    /// took a task and has not yet counted it as done.
    fork: UnsafeCell<Fork>,
    n_done: AtomicUsize,
    /// A fork is in flight; who finds it set runs its tasks alone.
    busy: AtomicBool,
    caller_sleeps: AtomicBool,
    lock: Mutex<()>,
    all_done: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

// SAFETY: `fork` alone is not `Sync`; its invariant orders every write before every read, and the
// closure that it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `fork` refers to a `Sync` closure, which may be called from any thread.
unsafe impl Send for Shared {}

#[derive(Debug)]
struct Fork {
    task: *const (dyn Fn(usize) + Sync),
    n_tasks: usize,
}

const TASK_BITS: u32 = 24;
const TASK_MASK: u64 = (1 << TASK_BITS) - 1;

impl Pool {
    /// How long a thread without work looks for more before it sleeps.
    pub const SPIN: Duration = Duration::from_micros(50);

    /// A pool of `n_threads`, the caller included; zero counts as one.
    ///
    /// # Errors
    /// Where the system does not start a thread.
    pub fn try_new(n_threads: usize) -> io::Result<Pool> {
        Pool::with_spin(n_threads, Pool::SPIN)
    }

    /// A pool of `n_threads` threads, the caller's included, for tests and measurements;
    /// [`Pool::try_new`] reports errors.
    ///
    /// # Panics
    /// Where the system does not start a thread.
    pub fn new(n_threads: usize) -> Pool {
        Pool::try_new(n_threads).expect("a machine that starts threads")
    }

    /// A pool whose idle threads look for work for `spin` before they sleep.
    ///
    /// # Errors
    /// Where the system does not start a thread.
    pub fn with_spin(n_threads: usize, spin: Duration) -> io::Result<Pool> {
        let shared = Arc::new(Shared::new());
        let (workers, last_end) = (Vec::new(), AtomicU64::new(0));
        // Dropped where a thread is missing, it ends those that were started.
        let mut pool = Pool { shared, workers, spin, start: Instant::now(), last_end };
        for idx in 1..n_threads {
            pool.workers.push(Worker::spawn(idx, &pool.shared, spin)?);
        }
        Ok(pool)
    }

    /// Threads that take tasks, the caller included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task` with every index below `n_tasks` and returns when all calls
    /// have returned. Called from inside a task, or while another thread's call
    /// is in flight, it runs all tasks on the calling thread.
    ///
    /// # Panics
    /// With the payload of a task that panicked, after all tasks have ended.
    pub fn run(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.fork(n_tasks, task, true);
    }

    /// As [`Pool::run`], for work that takes less time than it may take to wake
    /// a thread (tens of microseconds on virtual machines): threads that sleep
    /// are woken only while forks follow so closely that they would stay awake
    /// for the next one.
    pub fn run_small(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let gap = self.now().saturating_sub(self.last_end.load(Ordering::Relaxed));
        self.fork(n_tasks, task, u128::from(gap) < self.spin.as_nanos());
    }

    fn fork(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync), wake: bool) {
        let alone = n_tasks <= 1 || self.workers.is_empty();
        if alone || self.shared.busy.swap(true, Ordering::Acquire) {
            (0..n_tasks).for_each(task);
            return;
        }
        self.shared.open_fork(n_tasks, task);
        if wake {
            self.wake(n_tasks - 1);
        }
        while self.shared.take_and_run() {}
        self.shared.wait_for_all(n_tasks, self.spin);
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.last_end.store(self.now(), Ordering::Relaxed);
        self.shared.busy.store(false, Ordering::Release);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Nanoseconds since the pool was made.
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn wake(&self, n_wanted: usize) {
        for worker in self.workers.iter().take(n_wanted) {
            if worker.sleeps.load(Ordering::SeqCst) && worker.sleeps.swap(false, Ordering::SeqCst) {
                worker.thread.thread().unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread.thread().unpark();
            // A worker catches what its tasks throw; there is nothing left to report here.
            let _ = worker.thread.join();
        }
    }
}

impl Worker {
    fn spawn(idx: usize, shared: &Arc<Shared>, spin: Duration) -> io::Result<Worker> {
        let sleeps = Arc::new(AtomicBool::new(false));
        let work = {
            let (shared, sleeps) = (shared.clone(), sleeps.clone());
            move || shared.work(&sleeps, spin)
        };
        let thread = thread::Builder::new().name(format!("moeflux-{idx}")).spawn(work)?;
        Ok(Worker { thread, sleeps })
    }
}

impl Shared {
    fn new() -> Shared {
        Shared {
            open: AtomicU64::new(0),
            fork: UnsafeCell::new(Fork { task: &|_| (), n_tasks: 0 }),
            n_done: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            caller_sleeps: AtomicBool::new(false),
            lock: Mutex::new(()),
            all_done: Condvar::new(),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        }
    }

    /// Called by the holder of `busy`, after all tasks of the last fork.
    fn open_fork(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        assert!(n_tasks as u64 <= TASK_MASK, "{n_tasks} tasks in one fork");
        let task = std::ptr::from_ref(task);
        // SAFETY: only the lifetime changes; a task is called only before `run` returns, and `run`
        // borrows the closure for that long.
        let task = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize) + Sync + '_),
                *const (dyn Fn(usize) + Sync + 'static),
            >(task)
        };
        // SAFETY: no task is open or taken here, so no thread reads the fork while it is written.
        unsafe { *self.fork.get() = Fork { task, n_tasks } };
        self.n_done.store(0, Ordering::Relaxed);
        let number = (self.open.load(Ordering::Relaxed) >> TASK_BITS).wrapping_add(1);
        self.open.store(number << TASK_BITS | n_tasks as u64, Ordering::SeqCst);
    }

    /// Runs one open task; false when there is none.
    fn take_and_run(&self) -> bool {
        let mut open = self.open.load(Ordering::SeqCst);
        let n_open = loop {
            let n_open = open & TASK_MASK;
            if n_open == 0 {
                return false;
            }
            let taken = Ordering::AcqRel;
            match self.open.compare_exchange_weak(open, open - 1, taken, Ordering::Relaxed) {
                Ok(_) => break n_open as usize,
                Err(now) => open = now,
            }
        };
        // SAFETY: this thread took a task of the present fork and has not counted it as done, so
        // the fork is not written.
        let fork = unsafe { &*self.fork.get() };
        let n_tasks = fork.n_tasks;
        // SAFETY: `run` waits for this task, so the closure it borrows is alive.
        let task = unsafe { &*fork.task };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(n_tasks - n_open))) {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
        }
        let last = self.n_done.fetch_add(1, Ordering::SeqCst) + 1 == n_tasks;
        if last && self.caller_sleeps.load(Ordering::SeqCst) {
            // Held while notifying, so that the caller is either before its check or asleep.
            let _held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.all_done.notify_all();
        }
        true
    }

    fn wait_for_all(&self, n_tasks: usize, spin: Duration) {
        let done = || self.n_done.load(Ordering::SeqCst) == n_tasks;
        if spin_until(spin, done) {
            return;
        }
        self.caller_sleeps.store(true, Ordering::SeqCst);
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !done() {
            held = self.all_done.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// The life of a worker.
    fn work(&self, sleeps: &AtomicBool, spin: Duration) {
        let call = || {
            self.open.load(Ordering::SeqCst) & TASK_MASK != 0 || self.stop.load(Ordering::SeqCst)
        };
        let mut spin_now = spin;
        while !self.stop.load(Ordering::SeqCst) {
            let mut took_any = false;
            while self.take_and_run() {
                took_any = true;
            }
            // Who woke too late for any task would only be in the way, perhaps of the caller.
            spin_now = if took_any { spin } else { spin_now };
            if spin_until(spin_now, call) {
                continue;
            }
            // `wake` opens the fork before it looks at `sleeps`; this looks the other way round, so
            // at least one of the two sees the other.
            sleeps.store(true, Ordering::SeqCst);
            while !call() && sleeps.load(Ordering::SeqCst) {
                thread::park();
            }
            sleeps.store(false, Ordering::SeqCst);
            spin_now = Duration::ZERO;
        }
    }
}

/// Whether `happened` within `limit`.
fn spin_until(limit: Duration, happened: impl Fn() -> bool) -> bool {
    /// About a microsecond.
    const LOOKS_PER_YIELD: usize = 32;
    if happened() {
        return true;
    }
    let start = Instant::now();
    while start.elapsed() < limit {
        for _ in 0..LOOKS_PER_YIELD {
            std::hint::spin_loop();
            if happened() {
                return true;
            }
        }
        // The thread that is waited for may share this processor.
        thread::yield_now();
    }
    happened()
}

/// A mutable slice that the tasks of one fork write disjoint parts of.
#[derive(Debug)]
pub struct SharedMut<'a, T> {
    first: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedMut<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<'_, T> {}

// SAFETY: it only hands out parts through `slice`, whose callers promise that they do not overlap;
// then each element has one user at a time, which `T: Send` allows on any thread.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as for `Sync`.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Takes the slice for `'a`.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedMut { first: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first element, to compare with others.
    pub fn address(&self) -> usize {
        self.first.addr()
    }

    /// The part at `range`, which must be within the slice.
    ///
    /// # Safety
    /// While the result lives, no other part that overlaps `range` is used.
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} shared elements",
            self.len
        );
        // SAFETY: the range was just checked against the length.
        let first = unsafe { self.first.add(range.start) };
        // SAFETY: these elements were borrowed mutably for 'a by `new`, and the caller promises to
        // use no other part that overlaps them.
        unsafe { std::slice::from_raw_parts_mut(first, range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_each_task_once(pool: &Pool, n_tasks: usize) {
        let counts: Vec<_> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(n_tasks, &|i| {
            counts[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{n_tasks} tasks");
    }

    #[test]
    fn runs_each_task_once() {
        for n_threads in [0, 1, 2, 3, 8] {
            let pool = Pool::new(n_threads);
            assert_eq!(pool.n_threads(), n_threads.max(1));
            for n_tasks in [0, 1, 2, 7, 1000] {
                check_each_task_once(&pool, n_tasks);
            }
        }
    }

    #[test]
    fn many_tiny_forks_lose_nothing() {
        for spin in [Duration::ZERO, Pool::SPIN] {
            let pool = Pool::with_spin(4, spin).unwrap();
            let sum = AtomicUsize::new(0);
            for _ in 0..5_000 {
                let task = |i| {
                    sum.fetch_add(i + 1, Ordering::Relaxed);
                };
                pool.run(5, &task);
                pool.run_small(5, &task);
            }
            assert_eq!(sum.into_inner(), 2 * 5_000 * 15);
        }
    }

    #[test]
    fn a_fork_inside_a_task_runs_inline() {
        let pool = Pool::new(3);
        let n = AtomicUsize::new(0);
        pool.run(4, &|_| {
            let here = thread::current().id();
            pool.run(4, &|_| {
                assert_eq!(thread::current().id(), here);
                n.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(n.into_inner(), 16);
    }

    #[test]
    fn callers_on_several_threads_do_not_mix() {
        let pool = Pool::new(3);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (1..200).for_each(|n| check_each_task_once(&pool, n % 17)));
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_tasks() {
        let pool = Pool::new(3);
        let n = AtomicUsize::new(0);
        let run = || {
            pool.run(10, &|i| {
                n.fetch_add(1, Ordering::Relaxed);
                assert_ne!(i, 3, "task three");
            })
        };
        let payload = catch_unwind(AssertUnwindSafe(run)).expect_err("task 3 panics");
        assert!(payload.downcast_ref::<String>().is_some_and(|text| text.contains("task three")));
        assert_eq!(n.load(Ordering::Relaxed), 10);
        check_each_task_once(&pool, 100);
    }

    #[test]
    fn tasks_write_their_parts_of_a_shared_slice() {
        let pool = Pool::new(4);
        let mut data = vec![0usize; 103];
        let shared = SharedMut::new(&mut data);
        pool.run(11, &|i| {
            let end = (i * 10 + 10).min(shared.len());
            // SAFETY: task i alone uses elements 10 i .. 10 i + 10.
            let part = unsafe { shared.slice(i * 10..end) };
            part.iter_mut().enumerate().for_each(|(k, value)| *value = i * 10 + k);
        });
        assert!(data.iter().enumerate().all(|(i, value)| i == *value));
    }

    #[test]
    #[should_panic(expected = "shared elements")]
    fn refuses_a_part_outside_the_slice() {
        let mut data = [0u8; 4];
        // SAFETY: no other part is used.
        unsafe { SharedMut::new(&mut data).slice(2..5) };
    }
}
