//! Ctrl-C and SIGTERM while there are temporary files, or files that are not whole: they are removed
//! before the program ends.
//!
//! Once registered, a handler of signals stays for the process's life. So it is one that does what
//! the system does by default, except while there is something to remove, and until a command takes
//! the signals over ([`take_over`]).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Between two looks at whether a signal came.
const TICK: Duration = Duration::from_millis(20);

/// Attempts to remove a folder into which other threads still write.
const N_ATTEMPTS: usize = 5;

static SIGNALS: LazyLock<Signals> = LazyLock::new(Signals::register);

/// What is removed before a signal ends the program.
static PATHS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

struct Signals {
    /// Whether a signal ends the program at once.
    end_at_once: Arc<AtomicBool>,
    /// The last signal, 0 before the first.
    last: Arc<AtomicUsize>,
}

impl Signals {
    fn register() -> Signals {
        let signals =
            Signals { end_at_once: Arc::new(AtomicBool::new(false)), last: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            // Where a handler is refused the system's own stays.
            let _ = flag::register_conditional_default(signal, Arc::clone(&signals.end_at_once));
            let number = usize::try_from(signal).unwrap_or_default();
            let _ = flag::register_usize(signal, Arc::clone(&signals.last), number);
        }
        signals
    }
}

/// The caller handles the signals from now on.
pub(crate) fn take_over() {
    if LazyLock::get(&SIGNALS).is_some() {
        SIGNALS.end_at_once.store(false, Ordering::SeqCst);
    }
}

/// While this exists, a signal that ends the program removes a file or a folder first.
pub(crate) struct RemovedOnInterrupt {
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl RemovedOnInterrupt {
    /// Watches a path; `None` where no thread can be started for that.
    pub(crate) fn new(path: &Path) -> Option<RemovedOnInterrupt> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let watcher = thread::Builder::new().spawn(move || watch(&over)).ok()?;
        let mut paths = paths();
        paths.push(path.to_owned());
        SIGNALS.end_at_once.store(false, Ordering::SeqCst);
        Some(RemovedOnInterrupt { path: path.to_owned(), is_over, watcher: Some(watcher) })
    }
}

impl Drop for RemovedOnInterrupt {
    fn drop(&mut self) {
        let mut paths = paths();
        paths.retain(|path| *path != self.path);
        if paths.is_empty() {
            SIGNALS.end_at_once.store(true, Ordering::SeqCst);
        }
        drop(paths);
        self.is_over.store(true, Ordering::SeqCst);
        // It ends within a tick, and does not panic.
        let _ = self.watcher.take().map(JoinHandle::join);
    }
}

fn paths() -> MutexGuard<'static, Vec<PathBuf>> {
    PATHS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        let signal = SIGNALS.last.load(Ordering::SeqCst);
        if signal != 0 {
            paths().iter().for_each(|path| remove(path));
            // Ends the process as the signal does.
            let _ = low_level::emulate_default_handler(i32::try_from(signal).unwrap_or(SIGTERM));
        }
        thread::sleep(TICK);
    }
}

/// A folder with all that is in it, or a file. What cannot be removed stays.
fn remove(path: &Path) {
    for _ in 0..N_ATTEMPTS {
        let removed = match path.is_dir() {
            true => std::fs::remove_dir_all(path),
            false => std::fs::remove_file(path),
        };
        if removed.is_ok() || !path.exists() {
            break;
        }
        // Other threads were writing in it.
        thread::sleep(TICK);
    }
}
