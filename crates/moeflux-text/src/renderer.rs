//! Where chat templates are rendered: in this process, or in child processes with limits.
//!
//! A template comes with a model and is a program. The fuel of minijinja counts its steps, but a
//! single step can double a string, walk through a list that stands for 2^60 items, or recurse
//! through data that is nested as deep as there were steps. A stack that overflows and a failed
//! allocation end the process in which they happen, and a thread cannot be stopped from outside.
//! So a program that opens models of others gives templates a process of their own, by
//! [`render_in_children`]. The child limits itself and dies where it meets a limit:
//! - **time**: 100 ms of processor time, and 1 µs for each byte of template and conversation (a
//!   conversation of 100,000 tokens has about 400 kB). Processor time does not run while the machine
//!   is busy with something else; where a system cannot tell it, a tenth of the elapsed time is
//!   taken for it. After 20 times the limit the child ends in any case.
//! - **memory**: 16 MiB, and 24 bytes for each byte of input, 48 MiB at most; by `RLIMIT_DATA`, on Linux. On other
//!   systems only time bounds it. All children together have no more than one may have: a rendering waits
//!   until there is room for it.
//! - **text**: 1 MiB, and 16 bytes for each byte of input.
//! - **stack**: 64 MiB.
//!
//! A child takes one job after another, so starting it is paid once. One that died is replaced
//! with the next job.
//!
//! Without children a template is rendered on a thread with a stack of [`STACK_BYTES_HERE`]. Limits on
//! its source and on the nesting of its data (`jinja::source`, `jinja::nesting`) keep it within
//! that stack, fuel ends its loops, and panics are caught. Its time and its memory are not limited:
//! that is enough for templates that are trusted.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use chrono::NaiveDateTime;
use minijinja::Environment;
use moeflux_core::explain_thread_error;
use serde_json::{Map, Value};

use super::guard::catch_panic;
use super::jinja;

/// Children that wait for a next job; more exist while more renderings happen at once.
const MAX_IDLE: usize = 2;

/// Exit code of a child that ran out of time.
const OUT_OF_TIME: u8 = 3;

/// Exit code of a child that could not start its threads.
const NO_THREADS: u8 = 4;

/// Stack of a child.
const STACK_BYTES: usize = 64 << 20;
/// Stack of the thread that renders in this process, which an overflow would end: more than any
/// template that `jinja::environment` accepts takes.
const STACK_BYTES_HERE: usize = 256 << 20;
const BASE_TIME: Duration = Duration::from_millis(100);
const TIME_PER_BYTE: Duration = Duration::from_micros(1);
/// Elapsed time that a unit of processor time may take.
const MAX_SLOWDOWN: u32 = 20;
const BASE_MEMORY: u64 = 16 << 20;
const MEMORY_PER_BYTE: u64 = 24;
/// Memory that all renderings share.
const SHARED_MEMORY: u64 = 48 << 20;
/// Bytes of a job after which a child is not kept: its heap stays as large as the job made it.
const LARGE_JOB: u64 = 1 << 20;
const BASE_TEXT: u64 = 1 << 20;
const TEXT_PER_BYTE: u64 = 16;
/// Longest template or conversation that a child takes.
const MAX_INPUT: u64 = 256 << 20;

/// How a moment is written in a job.
const CLOCK: &str = "%Y-%m-%dT%H:%M:%S%.f";

static CHILDREN: OnceLock<Children> = OnceLock::new();

/// From now on renders all chat templates of this process in children that `command` starts. The
/// command must call [`run_renderer`] and nothing else. A second call changes nothing.
pub fn render_in_children(command: fn() -> io::Result<Command>) {
    let children = Children { command, idle: Mutex::default(), memory: Memory::default() };
    // The children of the first call stay.
    let _ = CHILDREN.set(children);
}

/// One template, ready to render.
#[derive(Debug)]
pub(super) enum Renderer {
    Here(Box<Environment<'static>>),
    Children {
        children: &'static Children,
        source: String,
        /// How many renderings met a limit.
        n_stopped: AtomicU32,
        /// Processor time of the others, in microseconds.
        spent: AtomicU64,
    },
}

/// How to start children, and those without a job.
#[derive(Debug)]
pub(super) struct Children {
    command: fn() -> io::Result<Command>,
    idle: Mutex<Vec<Running>>,
    memory: Memory,
}

/// The memory that renderings share.
#[derive(Debug, Default)]
struct Memory {
    taken: Mutex<u64>,
    freed: Condvar,
    /// Held by the rendering that waits, so that small ones do not overtake a large one for ever.
    next: Mutex<()>,
}

/// The memory of a rendering, which it gives back when dropped.
struct Share<'a> {
    memory: &'a Memory,
    bytes: u64,
}

impl Memory {
    /// Waits until there is room for this many bytes.
    fn take(&self, bytes: u64) -> Share<'_> {
        let _next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut u64| *taken + bytes > SHARED_MEMORY;
        let taken = self.freed.wait_while(taken, is_full);
        *taken.unwrap_or_else(PoisonError::into_inner) += bytes;
        Share { memory: self, bytes }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *self.memory.taken.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.memory.freed.notify_one();
    }
}

/// A child that waits for a job. It ends when this is dropped.
#[derive(Debug)]
struct Running {
    child: Child,
    jobs: ChildStdin,
    replies: ChildStdout,
}

/// What a child has to do: parse `source`, and render it if there are variables.
#[derive(Debug)]
struct Job {
    source: String,
    /// A JSON object, or nothing.
    variables: String,
    /// As [`CLOCK`] says, or nothing.
    now: String,
}

/// What a child says: the text, or why the template gave none.
type Reply = Result<String, String>;

/// A reply, and the processor time that it took.
#[derive(Debug)]
struct Answer {
    reply: Reply,
    time: Duration,
}

/// Why there is no text.
#[derive(Debug)]
pub(super) enum RenderError {
    /// The template is at fault, or what it was given.
    Template(String),
    /// It met a limit of its process.
    Limit(String),
    /// No process can be started in which it could be rendered.
    Process(String),
}

impl From<String> for RenderError {
    fn from(reason: String) -> RenderError {
        RenderError::Template(reason)
    }
}

impl RenderError {
    fn no_process(source: io::Error) -> RenderError {
        RenderError::Process(explain_thread_error(source).to_string())
    }
}

impl Renderer {
    /// Parses a template.
    pub(super) fn new(source: &str) -> Result<Renderer, RenderError> {
        let Some(children) = CHILDREN.get() else {
            let env = on_deep_stack(|| jinja::environment(source))?;
            return Ok(Renderer::Here(Box::new(env.map_err(|err| err.to_string())?)));
        };
        let source = source.to_owned();
        let job = Job { source: source.clone(), variables: String::new(), now: String::new() };
        children.ask(&job)?.reply?;
        let (n_stopped, spent) = Default::default();
        Ok(Renderer::Children { children, source, n_stopped, spent })
    }

    /// Renders with `variables`, at a moment in local time.
    pub(super) fn render(
        &self,
        variables: &Map<String, Value>,
        now: NaiveDateTime,
    ) -> Result<String, RenderError> {
        match self {
            Renderer::Here(env) => {
                let text = on_deep_stack(|| jinja::render(env, jinja::values(variables), now))?;
                Ok(text.map_err(|err| err.to_string())?)
            }
            Renderer::Children { children, source, n_stopped, spent } => {
                let variables = serde_json::to_string(variables).map_err(|err| err.to_string())?;
                let now = now.format(CLOCK).to_string();
                let answer = children.ask(&Job { source: source.clone(), variables, now });
                match &answer {
                    Ok(answer) => {
                        let micros = u64::try_from(answer.time.as_micros()).unwrap_or(u64::MAX);
                        spent.fetch_add(micros, Ordering::Relaxed);
                    }
                    Err(RenderError::Limit(_)) => {
                        n_stopped.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(_) => {}
                }
                Ok(answer?.reply?)
            }
        }
    }

    /// Processor time that renderings took; zero for those in this process, which trusts them.
    pub(super) fn spent(&self) -> Duration {
        match self {
            Renderer::Here(_) => Duration::ZERO,
            Renderer::Children { spent, .. } => {
                Duration::from_micros(spent.load(Ordering::Relaxed))
            }
        }
    }

    /// Whether more than one rendering met a limit, so that what is rendered only to learn about
    /// the template should not be.
    pub(super) fn is_costly(&self) -> bool {
        match self {
            Renderer::Here(_) => false,
            Renderer::Children { n_stopped, .. } => n_stopped.load(Ordering::Relaxed) > 1,
        }
    }
}

impl Children {
    fn ask(&self, job: &Job) -> Result<Answer, RenderError> {
        let _share = self.memory.take(max_memory(job.n_bytes()));
        let idle = self.idle().pop();
        if let Some(mut running) = idle
            && let Ok(answer) = running.exchange(job)
        {
            self.keep(running, job);
            return Ok(answer);
        }
        // There was none, or it died: perhaps not of this job, so a new one tries.
        let started = (self.command)().and_then(Running::start);
        let mut running = started.map_err(RenderError::no_process)?;
        match running.exchange(job) {
            Ok(answer) => {
                self.keep(running, job);
                Ok(answer)
            }
            Err(err) => Err(running.why_it_died(err, job)),
        }
    }

    fn keep(&self, running: Running, job: &Job) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE && job.n_bytes() < LARGE_JOB {
            idle.push(running);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Running>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    /// Takes the exit code, without which the system keeps an entry for the process.
    fn drop(&mut self) {
        // Its job, if it has one, is given up. That it has ended before is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(mut command: Command) -> io::Result<Running> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // An interrupt from the terminal is meant for this process, not for its children.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(jobs), Some(replies)) => Ok(Running { child, jobs, replies }),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn exchange(&mut self, job: &Job) -> io::Result<Answer> {
        for part in [&job.source, &job.variables, &job.now] {
            write_text(&mut self.jobs, part)?;
        }
        self.jobs.flush()?;
        let (mut tag, mut micros) = ([0], [0; 8]);
        self.replies.read_exact(&mut tag)?;
        self.replies.read_exact(&mut micros)?;
        let text = read_text(&mut self.replies, max_text(job.n_bytes()))?;
        let reply = if tag == [1] { Ok(text) } else { Err(text) };
        Ok(Answer { reply, time: Duration::from_micros(u64::from_le_bytes(micros)) })
    }

    fn why_it_died(mut self, err: io::Error, job: &Job) -> RenderError {
        // A child that has closed its output is about to end with an exit code; one that did not
        // answer as it should is not.
        if !matches!(err.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe) {
            // It may be dead already.
            let _ = self.child.kill();
        }
        match self.child.wait() {
            Ok(status) if status.code() == Some(i32::from(OUT_OF_TIME)) => {
                let limit = max_time(job.n_bytes()).as_millis();
                RenderError::Limit(format!("it takes longer than {limit} ms"))
            }
            Ok(status) if status.code() == Some(i32::from(NO_THREADS)) => {
                RenderError::no_process(io::Error::other("no thread could be started in it"))
            }
            Ok(status) if was_killed(status) => RenderError::Limit(String::from(
                "it takes more memory or stack than a chat template may",
            )),
            Ok(status) => {
                RenderError::Process(format!("the process that renders it ended, {status}"))
            }
            Err(_) => RenderError::no_process(err),
        }
    }
}

/// Whether a signal ended it, as one does after a failed allocation and an overflow of the stack.
#[cfg(unix)]
fn was_killed(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status).is_some()
}

/// Systems without signals have exit codes for that.
#[cfg(not(unix))]
fn was_killed(status: ExitStatus) -> bool {
    !status.success()
}

impl Job {
    fn n_bytes(&self) -> u64 {
        (self.source.len() + self.variables.len()) as u64
    }

    /// The next job, or nothing where the pipe has ended.
    fn read(jobs: &mut impl Read) -> Option<Job> {
        let mut part = || read_text(jobs, MAX_INPUT).ok();
        Some(Job { source: part()?, variables: part()?, now: part()? })
    }

    fn run(self) -> Reply {
        let to_text = |err: minijinja::Error| err.to_string();
        let env = jinja::environment(&self.source).map_err(to_text)?;
        if self.variables.is_empty() {
            return Ok(String::new());
        }
        let variables: Map<String, Value> =
            serde_json::from_str(&self.variables).map_err(|err| err.to_string())?;
        let now = NaiveDateTime::parse_from_str(&self.now, CLOCK).map_err(|err| err.to_string())?;
        let limit = max_text(self.n_bytes());
        drop(self.variables);
        let values = jinja::values(&variables);
        drop(variables);
        let text = jinja::render(&env, values, now).map_err(to_text)?;
        match text.len() as u64 {
            len if len > limit => {
                Err(format!("it writes {len} bytes, at most {limit} are allowed"))
            }
            _ => Ok(text),
        }
    }
}

/// Runs `work` on a thread of its own, whose stack is large enough for any template that
/// `jinja::environment` accepts.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, RenderError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK_BYTES_HERE);
        let started = thread.spawn_scoped(scope, || catch_panic(work));
        let started = started.map_err(RenderError::no_process)?;
        // `work` is caught, so the thread ends without a panic.
        let done = started.join().unwrap_or_else(|_| Err(String::from("its library panicked")));
        Ok(done?)
    })
}

fn max_time(n_bytes: u64) -> Duration {
    BASE_TIME + TIME_PER_BYTE * u32::try_from(n_bytes).unwrap_or(u32::MAX)
}

fn max_memory(n_bytes: u64) -> u64 {
    MEMORY_PER_BYTE.saturating_mul(n_bytes).saturating_add(BASE_MEMORY).min(SHARED_MEMORY)
}

fn max_text(n_bytes: u64) -> u64 {
    BASE_TEXT + TEXT_PER_BYTE * n_bytes
}

/// A length of eight bytes, little-endian, and then the text.
fn write_text(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(text.as_bytes())
}

fn read_text(input: &mut impl Read, max_bytes: u64) -> io::Result<String> {
    let mut len = [0; 8];
    input.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    if len > max_bytes {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = String::new();
    match input.take(len).read_to_string(&mut text)? as u64 {
        got if got < len => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(text),
    }
}

/// The whole of a child that [`render_in_children`] starts: takes jobs from standard input and
/// answers on standard output, until there are no more. Returns the exit code of the process.
pub fn run_renderer() -> u8 {
    forbid_core_files();
    let watch = Arc::new(Watch::default());
    let watching = Arc::clone(&watch);
    let started = thread::Builder::new().spawn(move || watching.run()).and_then(|_| {
        thread::Builder::new().stack_size(STACK_BYTES).spawn(move || take_jobs(&watch))
    });
    match started.map(thread::JoinHandle::join) {
        Ok(Ok(())) => 0,
        Ok(Err(_)) => 1,
        Err(_) => NO_THREADS,
    }
}

fn take_jobs(watch: &Watch) {
    let (mut jobs, mut replies) = (io::stdin().lock(), io::stdout().lock());
    while let Some(job) = Job::read(&mut jobs) {
        let n_bytes = job.n_bytes();
        limit_memory(n_bytes);
        watch.begin(max_time(n_bytes));
        let before = processor_time();
        let reply = catch_panic(|| job.run()).and_then(|reply| reply);
        let time = processor_time().saturating_sub(before);
        watch.end();
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (tag, text) = match &reply {
            Ok(text) => (1, text),
            Err(reason) => (0, reason),
        };
        let written = replies
            .write_all(&[tag])
            .and_then(|()| replies.write_all(&micros.to_le_bytes()))
            .and_then(|()| write_text(&mut replies, text))
            .and_then(|()| replies.flush());
        if written.is_err() {
            return;
        }
    }
}

/// Ends the process when a job takes too long.
#[derive(Debug, Default)]
struct Watch {
    deadline: Mutex<Option<Deadline>>,
    began: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct Deadline {
    processor: Duration,
    elapsed: Instant,
}

impl Watch {
    fn begin(&self, limit: Duration) {
        let deadline = Deadline {
            processor: processor_time() + limit,
            elapsed: Instant::now() + limit * MAX_SLOWDOWN,
        };
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline);
        self.began.notify_all();
    }

    fn end(&self) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn run(&self) {
        loop {
            let deadline = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
            let deadline = self.began.wait_while(deadline, |deadline| deadline.is_none());
            let deadline = *deadline.unwrap_or_else(PoisonError::into_inner);
            let is_over = |deadline: Deadline| {
                processor_time() > deadline.processor || Instant::now() > deadline.elapsed
            };
            if deadline.is_some_and(is_over) {
                std::process::exit(i32::from(OUT_OF_TIME));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What all threads of this process used.
#[cfg(target_os = "linux")]
fn processor_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(spent).unwrap_or_default()
}

/// An estimate: see the head of this file.
#[cfg(not(target_os = "linux"))]
fn processor_time() -> Duration {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    STARTED.get_or_init(Instant::now).elapsed() / 10
}

/// What a job may take comes to what the process has before it: program, stacks, and the heap of earlier
/// jobs, which it uses again.
#[cfg(target_os = "linux")]
fn limit_memory(n_bytes: u64) {
    let status = std::fs::read_to_string("/proc/self/status").ok();
    let kibibytes = status.as_deref().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("VmData:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    let before = kibibytes.map_or(BEFORE_JOBS, |n| n.saturating_mul(1 << 10));
    set_limit(rustix::process::Resource::Data, before.saturating_add(max_memory(n_bytes)));
}

/// What a process has before its first job, where the system does not say it.
#[cfg(target_os = "linux")]
const BEFORE_JOBS: u64 = 128 << 20;

#[cfg(not(target_os = "linux"))]
fn limit_memory(_n_bytes: u64) {}

/// A template that overflows the stack is no reason to fill the disk.
#[cfg(target_os = "linux")]
fn forbid_core_files() {
    set_limit(rustix::process::Resource::Core, 0);
}

#[cfg(not(target_os = "linux"))]
fn forbid_core_files() {}

/// Keeps the hard limit, so that the next job can get more.
#[cfg(target_os = "linux")]
fn set_limit(resource: rustix::process::Resource, wanted: u64) {
    use rustix::process::{Rlimit, getrlimit, setrlimit};

    let maximum = getrlimit(resource).maximum;
    let current = Some(maximum.map_or(wanted, |maximum| wanted.min(maximum)));
    // A limit below the hard one is never refused.
    let _ = setrlimit(resource, Rlimit { current, maximum });
}
