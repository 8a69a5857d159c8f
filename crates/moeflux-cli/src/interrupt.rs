//! Ctrl-C and SIGTERM while there are temporary files, or files that are not whole: they are removed
//! before the program ends.
//!
//! Once registered, a handler of signals stays for the process's life. So it is one that does what
//! the system does by default, except while there is something to remove, and until a command takes
//! the signals over ([`take_over`]).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Between two looks at whether a signal came.
const TICK: Duration = Duration::from_millis(20);

/// Rounds of removal, as other threads may still write.
const N_ATTEMPTS: usize = 5;

/// The signals that are handled here.
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// Of [`SIGNALS`], whether a command handles it.
static IS_TAKEN_OVER: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];

/// Of [`SIGNALS`].
static HANDLERS: LazyLock<[Handler; 2]> = LazyLock::new(|| SIGNALS.map(Handler::register));

/// What is removed before a signal ends the program.
static PATHS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

struct Handler {
    /// Whether the signal ends the program at once.
    ends_at_once: Arc<AtomicBool>,
    came: Arc<AtomicBool>,
}

impl Handler {
    fn register(signal: i32) -> Handler {
        let handler = Handler { ends_at_once: Arc::default(), came: Arc::default() };
        // Where a handler is refused the system's own stays. With the first one the system's is gone, so
        // that one notes the signal: none may come between the two and be lost.
        let _ = flag::register(signal, Arc::clone(&handler.came));
        let _ = flag::register_conditional_default(signal, Arc::clone(&handler.ends_at_once));
        handler
    }
}

/// The caller handles these signals from now on, whatever there is to remove.
pub(crate) fn take_over(signals: &[i32]) {
    for (i, signal) in SIGNALS.iter().enumerate() {
        if signals.contains(signal) {
            IS_TAKEN_OVER[i].store(true, Ordering::SeqCst);
            if let Some(handlers) = LazyLock::get(&HANDLERS) {
                handlers[i].ends_at_once.store(false, Ordering::SeqCst);
            }
        }
    }
}

/// The handlers of signals that no command has taken over.
fn own_handlers() -> impl Iterator<Item = (i32, &'static Handler)> {
    let all = SIGNALS.into_iter().zip(HANDLERS.iter()).zip(&IS_TAKEN_OVER);
    all.filter(|(_, is_taken)| !is_taken.load(Ordering::SeqCst)).map(|(own, _)| own)
}

fn end_at_once(is_so: bool) {
    own_handlers().for_each(|(_, handler)| handler.ends_at_once.store(is_so, Ordering::SeqCst));
}

/// While this exists, a signal that ends the program removes a file or a folder first.
pub(crate) struct RemovedOnInterrupt {
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl RemovedOnInterrupt {
    /// Watches a path, which need not exist yet; `None` where no thread can be started for that.
    pub(crate) fn new(path: &Path) -> Option<RemovedOnInterrupt> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let watcher = thread::Builder::new().spawn(move || watch(&over)).ok()?;
        let mut paths = paths();
        paths.push(path.to_owned());
        end_at_once(false);
        Some(RemovedOnInterrupt { path: path.to_owned(), is_over, watcher: Some(watcher) })
    }
}

impl Drop for RemovedOnInterrupt {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // It ends within a tick, and does not panic.
        let _ = self.watcher.take().map(JoinHandle::join);
        let mut paths = paths();
        paths.retain(|path| *path != self.path);
        if paths.is_empty() {
            end_at_once(true);
        }
        drop(paths);
        // A signal since the watcher's last look must not be lost. Where work failed because a signal
        // had its path removed, the failure is not reported.
        end_if_signalled(Some(&self.path));
    }
}

fn paths() -> MutexGuard<'static, Vec<PathBuf>> {
    PATHS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        end_if_signalled(None);
        thread::sleep(TICK);
    }
}

/// Removes all paths, and one more, and ends the process as the signal does, if one came.
fn end_if_signalled(one_more: Option<&Path>) {
    for (signal, handler) in own_handlers() {
        if handler.came.load(Ordering::SeqCst) {
            let paths = paths();
            remove_all(&paths.iter().map(PathBuf::as_path).chain(one_more).collect::<Vec<_>>());
            drop(paths);
            let _ = low_level::emulate_default_handler(signal);
        }
    }
}

/// Removes files and folders. Other threads may write into one meanwhile, or rename one to another that
/// was looked at before, so this goes on until none is left. What cannot be removed stays.
fn remove_all(paths: &[&Path]) {
    for _ in 0..N_ATTEMPTS {
        paths.iter().copied().for_each(remove);
        if !paths.iter().any(|path| path.exists()) {
            break;
        }
        thread::sleep(TICK);
    }
}

/// Removes a folder with all that is in it, or a file.
fn remove(path: &Path) {
    let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
}
