//! The open connections: at most a number of them, of which those that wait for their client make
//! room for others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The open connections of a server.
pub(crate) struct Connections {
    max: usize,
    open: Mutex<Open>,
    /// Notified when a connection closes, or changes its stage.
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Open {
    next_id: u64,
    by_id: BTreeMap<u64, Activity>,
}

impl Connections {
    pub(crate) fn new(max: usize) -> Connections {
        Connections { max, open: Mutex::default(), changed: Arc::default() }
    }

    /// Waits until there is room for one more connection. Where there is none, the connection
    /// closes that has waited longest for its client to send something.
    pub(crate) async fn admit(self: &Arc<Self>) -> Admitted {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(admitted) = self.try_admit() {
                return admitted;
            }
            self.close_longest_waiting();
            changed.await;
        }
    }

    fn try_admit(self: &Arc<Self>) -> Option<Admitted> {
        let mut open = self.lock();
        if open.by_id.len() >= self.max {
            return None;
        }
        let id = open.next_id;
        open.next_id += 1;
        let activity = Activity(Arc::new(Shared::new(Arc::clone(&self.changed))));
        open.by_id.insert(id, activity.clone());
        Some(Admitted { id, activity, connections: Arc::clone(self) })
    }

    fn close_longest_waiting(&self) {
        let open = self.lock();
        let waiting = open.by_id.values().filter(|activity| activity.waits_for_client());
        let key = |activity: &&Activity| {
            let requests = *activity.0.lock();
            (requests.stage(), requests.since)
        };
        if let Some(activity) = waiting.min_by_key(key) {
            activity.0.close.notify_one();
        }
    }

    /// Waits until all connections are closed.
    pub(crate) async fn all_closed(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.lock().by_id.is_empty() {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place among the open ones, which it leaves when dropped.
pub(crate) struct Admitted {
    id: u64,
    pub(crate) activity: Activity,
    connections: Arc<Connections>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.connections.lock().by_id.remove(&self.id);
        self.connections.changed.notify_waiters();
    }
}

/// What a connection does now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    requests: Mutex<Requests>,
    /// Whether the client of a request may be sent an interim reply.
    may_be_asked: AtomicBool,
    n_answers: AtomicU64,
    /// Answers of which the client has a part to take, and since when.
    untaken: Mutex<BTreeMap<u64, Instant>>,
    /// Whether the client has not yet taken all that was written.
    is_writing: AtomicBool,
    close: Notify,
    changed: Arc<Notify>,
}

/// The requests of a connection. HTTP/2 has several at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    n_open: usize,
    /// Those whose body is not complete.
    n_receiving: usize,
    /// When one of these numbers changed.
    since: Option<Instant>,
}

impl Requests {
    fn stage(&self) -> Stage {
        match (self.n_open, self.n_receiving) {
            (0, _) => Stage::NoRequest,
            (n_open, n_receiving) if n_open == n_receiving => Stage::Body,
            _ => Stage::Answer,
        }
    }
}

/// The earlier ones make room first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// No request, or a part of its header.
    NoRequest,
    /// A request whose body is not complete.
    Body,
    /// A request that is being answered.
    Answer,
}

impl Shared {
    fn new(changed: Arc<Notify>) -> Shared {
        let requests = Requests { since: Some(Instant::now()), ..Requests::default() };
        Shared { requests: Mutex::new(requests), changed, ..Shared::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn untaken(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.untaken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Requests)) {
        let mut requests = self.lock();
        change(&mut requests);
        requests.since = Some(Instant::now());
        drop(requests);
        self.changed.notify_waiters();
    }
}

impl Activity {
    /// A request is being answered until the guard is dropped. Whether its client takes the answer is
    /// watched where the connection has others, too.
    pub(crate) fn answer(&self, is_watched: bool) -> AnswerGuard {
        self.0.change(|requests| requests.n_open += 1);
        let nth = self.0.n_answers.fetch_add(1, Ordering::Relaxed);
        AnswerGuard { activity: self.clone(), nth: is_watched.then_some(nth) }
    }

    /// Whether a part of an answer has not been taken for this long.
    pub(crate) fn is_stalled(&self, most: Duration) -> bool {
        self.0.untaken().values().any(|since| since.elapsed() >= most)
    }

    /// A request's body is being received until the guard is dropped.
    pub(crate) fn receive(&self) -> BodyGuard {
        self.0.change(|requests| requests.n_receiving += 1);
        BodyGuard(self.clone())
    }

    /// Whether a request is being answered.
    pub(crate) fn is_answering(&self) -> bool {
        self.0.lock().stage() == Stage::Answer
    }

    /// Notes whether the client may be sent an interim reply: from a request of HTTP/1.1 until its
    /// reply begins.
    pub(crate) fn set_may_be_asked(&self, may_be_asked: bool) {
        self.0.may_be_asked.store(may_be_asked, Ordering::Relaxed);
    }

    pub(crate) fn may_be_asked(&self) -> bool {
        self.0.may_be_asked.load(Ordering::Relaxed)
    }

    /// Notes whether a write waits for the client.
    pub(crate) fn set_writing(&self, is_writing: bool) {
        self.0.is_writing.store(is_writing, Ordering::Relaxed);
    }

    /// Whether it is the client's turn: to send a request, or the rest of one.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.0.lock().stage() < Stage::Answer && !self.0.is_writing.load(Ordering::Relaxed)
    }

    /// Waits until the connection has to make room for another one.
    pub(crate) async fn must_close(&self) {
        loop {
            self.0.close.notified().await;
            // A request may have come in the meantime.
            if self.waits_for_client() {
                return;
            }
        }
    }
}

/// A request that is being answered until this is dropped.
pub(crate) struct AnswerGuard {
    activity: Activity,
    /// The number of an answer that is watched.
    nth: Option<u64>,
}

impl AnswerGuard {
    /// Notes that the connection asked for more of the answer, and whether it got some: it asks
    /// again when the client has room.
    pub(crate) fn note_polled(&self, is_ready: bool) {
        let Some(nth) = self.nth else { return };
        let mut untaken = self.activity.0.untaken();
        if is_ready {
            untaken.insert(nth, Instant::now());
        } else {
            untaken.remove(&nth);
        }
    }
}

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        if let Some(nth) = self.nth {
            self.activity.0.untaken().remove(&nth);
        }
        self.activity.0.change(|requests| requests.n_open -= 1);
    }
}

/// A request whose body is being received until this is dropped.
pub(crate) struct BodyGuard(Activity);

impl Drop for BodyGuard {
    fn drop(&mut self) {
        self.0.0.change(|requests| requests.n_receiving -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().build().unwrap().block_on(test);
    }

    async fn is_closing(admitted: &Admitted) -> bool {
        let time = std::time::Duration::from_millis(20);
        tokio::time::timeout(time, admitted.activity.must_close()).await.is_ok()
    }

    #[test]
    fn the_one_that_waits_longest_for_its_client_makes_room() {
        run(async {
            let connections = Arc::new(Connections::new(4));
            let answering = connections.admit().await;
            let sending = connections.admit().await;
            let old = connections.admit().await;
            let new = connections.admit().await;
            let answer = answering.activity.answer(false);
            let request = sending.activity.answer(false);
            let body = sending.activity.receive();
            let waiting = tokio::spawn({
                let connections = Arc::clone(&connections);
                async move { connections.admit().await }
            });
            assert!(is_closing(&old).await && !is_closing(&new).await);
            assert!(!is_closing(&answering).await && !is_closing(&sending).await);
            drop(old);
            let admitted = waiting.await.unwrap();
            // Now those without a request are gone, and then the one that still sends.
            let keep = (new.activity.answer(false), admitted.activity.answer(false));
            let waiting = tokio::spawn({
                let connections = Arc::clone(&connections);
                async move { connections.admit().await }
            });
            assert!(is_closing(&sending).await && !is_closing(&answering).await);
            drop((body, request));
            drop(sending);
            let last = waiting.await.unwrap();
            drop((answer, keep));
            drop((answering, new, admitted, last));
            connections.all_closed().await;
        });
    }
}
