//! Failures that no `Result` can report, as one line on standard error and exit code 1: an
//! allocation that the system refuses, and a mapped file that was cut short.
//!
//! Large buffers (weights, caches, activations) are allocated by `moeflux_core`, which returns
//! errors. What is left are the small allocations of the standard library and other crates; these
//! cannot fail, and the standard library aborts the process where they do.
//!
//! The allocator itself is set up here as well.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// `SIGBUS`: access to a page of a mapped file that the file does not have any more, or that its
/// drive cannot read.
#[cfg(target_os = "linux")]
const MAPPED_PAGE_GONE: i32 = 7;
#[cfg(all(unix, not(target_os = "linux")))]
const MAPPED_PAGE_GONE: i32 = 10;

#[cfg(unix)]
const MAPPED_PAGE_GONE_LINE: &[u8] =
    b"moeflux: a mapped file of the model was cut short, or its drive cannot read it (SIGBUS): check \
      it with `moeflux verify`, or read with --expert-io direct\n";

/// More of the first thread's stack than commands need. Other threads have all of theirs from the start.
#[cfg(target_os = "linux")]
const STACK_BYTES: usize = 512 << 10;

/// Touches the stack that the first thread will need. The system maps it page by page, and where the
/// process has no more addresses by then (`ulimit -v`), the next page is a `SIGSEGV` without a word.
/// Leaves a stack alone that is limited to little more (`ulimit -s`).
#[cfg(target_os = "linux")]
pub(crate) fn map_stack() {
    #[inline(never)]
    fn touch() {
        // A variable: a reference to the array itself would be one to a constant of the program.
        let pages = [0u8; STACK_BYTES];
        std::hint::black_box(&pages);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    if limit.is_none_or(|bytes| bytes >= 4 * STACK_BYTES as u64) {
        touch();
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn map_stack() {}

/// Whether failures are reported here. A child that renders chat templates is not: its parent
/// learns from the abort that the template took too much memory.
static REPORTS: AtomicBool = AtomicBool::new(false);

#[global_allocator]
static ALLOCATOR: ReportingAllocator = ReportingAllocator;

/// The system's allocator; a failure ends the process with one line.
struct ReportingAllocator;

// SAFETY: every call is passed on to `System` with the arguments of the caller, whose promises
// are those that `System` asks for, and what `System` returns is returned.
unsafe impl GlobalAlloc for ReportingAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        let ptr = unsafe { System.alloc(layout) };
        check(ptr, layout.size())
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        let ptr = unsafe { System.alloc_zeroed(layout) };
        check(ptr, layout.size())
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as promised by the caller.
        let ptr = unsafe { System.realloc(ptr, layout, new_size) };
        check(ptr, new_size)
    }
}

#[inline]
fn check(ptr: *mut u8, n_bytes: usize) -> *mut u8 {
    if ptr.is_null() && REPORTS.load(Ordering::Relaxed) {
        out_of_memory(n_bytes);
    }
    ptr
}

/// Makes the system's allocator give blocks of a megabyte and more back to the system when they are
/// freed.
///
/// The GNU allocator raises that limit with each large block that is freed, up to 32 MiB, and then
/// keeps what is below: a server that refused some bodies of 16 MB would stay 200 MB larger. A limit
/// that is set stays.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn return_large_blocks() {
    use std::ffi::c_int;

    /// `M_MMAP_THRESHOLD` of `malloc.h`.
    const MMAP_THRESHOLD: c_int = -3;
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    // SAFETY: a function of the C library with this signature, called while there is one thread.
    let is_set = unsafe { mallopt(MMAP_THRESHOLD, 1 << 20) };
    // Without it the process keeps more memory, and nothing else changes.
    let _ = is_set;
}

/// Other allocators have no such limit.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn return_large_blocks() {}

/// From now on failures of this process are reported here.
pub(crate) fn report_in_one_line() {
    REPORTS.store(true, Ordering::Relaxed);
    report_threads_without_stack();
    #[cfg(unix)]
    {
        let action = || end(MAPPED_PAGE_GONE_LINE);
        // SAFETY: the action only writes and ends the process, by functions that are allowed in
        // signal handlers; it neither allocates nor locks.
        let registered = unsafe { signal_hook::low_level::register(MAPPED_PAGE_GONE, action) };
        // Without it the signal ends the process, too, only without a reason.
        let _ = registered;
    }
}

/// A new thread maps a stack for its signal handlers before anything else, and the standard library
/// panics in that thread where the system has no memory for it.
fn report_threads_without_stack() {
    const LINE: &[u8] =
        b"moeflux: out of memory: a thread has no memory for its stack; allow this process more \
          memory (ulimit -v, its control group), or give fewer --threads\n";
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let file = info.location().map(std::panic::Location::file).unwrap_or_default();
        if file.ends_with("stack_overflow.rs") {
            end(LINE);
        }
        others(info);
    }));
}

#[cold]
fn out_of_memory(n_bytes: usize) -> ! {
    let mut line = [0; 256];
    let mut rest = &mut line[..];
    // The line is shorter than its buffer.
    let _ = writeln!(
        rest,
        "moeflux: out of memory: {n_bytes} bytes could not be allocated; allow this process more \
         memory (ulimit -v, its control group), or lower --expert-cache or --ctx"
    );
    let n_left = rest.len();
    end(&line[..line.len() - n_left])
}

/// Writes a line and ends the process at once: no destructor and no exit handler runs, since they
/// may allocate. Allowed in signal handlers.
fn end(line: &[u8]) -> ! {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    if IS_ENDING.swap(true, Ordering::SeqCst) {
        // Another thread writes its line and ends the process.
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    write_error(line);
    signal_hook::low_level::exit(i32::from(FAILED))
}

#[cfg(unix)]
fn write_error(line: &[u8]) {
    // There is nothing left to report to when standard error is closed.
    let _ = rustix::io::write(rustix::stdio::stderr(), line);
}

#[cfg(not(unix))]
fn write_error(line: &[u8]) {
    // There is nothing left to report to when standard error is closed.
    let _ = std::io::stderr().write_all(line);
}

/// Exit code of a command that failed.
pub(crate) const FAILED: u8 = 1;
