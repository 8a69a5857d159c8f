//! The threads that serve connections, and requests without one.

use std::io;
use std::sync::Mutex;

use tokio::runtime::Runtime;

/// Threads that serve connections.
const N_WORKERS: usize = 2;

/// Starts the threads that serve connections.
///
/// Tokio panics where the system refuses one of its threads, and then waits for the others without
/// end. So threads are started for a try first.
pub(crate) fn start_runtime() -> io::Result<Runtime> {
    // All of them exist at the same time: they wait for the end of this lock.
    let gate = Mutex::new(());
    std::thread::scope(|scope| {
        let _closed = gate.lock();
        let wait = || drop(gate.lock());
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, wait).map(drop);
        (0..N_WORKERS).try_for_each(start)
    })?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(N_WORKERS).thread_name("http").enable_io().enable_time().build()
}
