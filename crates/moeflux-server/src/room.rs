//! Memory that large bodies of requests share while they are received.
//!
//! A body reserves all that was announced once a part of it has come, so that one that does not come
//! takes nothing, and none waits in the middle for others that wait too. Where a body waits for room,
//! one that came too slowly to be complete in time gives up its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// How long a body waits before others are looked at, and how long they have come at least.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes that bodies share.
pub(crate) struct Room {
    max: usize,
    taken: Mutex<Taken>,
    /// Notified when there is more room.
    freed: Notify,
}

struct Taken {
    bytes: usize,
    next_id: u64,
    /// Of the bodies that are still received and have room.
    by_id: BTreeMap<u64, Share>,
}

/// A body that is being received.
struct Share {
    began: Instant,
    received: usize,
    announced: usize,
    give_up: Arc<Notify>,
}

impl Share {
    /// How long all of it takes at its pace.
    fn needs(&self) -> Duration {
        let parts = self.announced as f64 / self.received.max(1) as f64;
        Duration::try_from_secs_f64(self.began.elapsed().as_secs_f64() * parts)
            .unwrap_or(Duration::MAX)
    }
}

impl Room {
    pub(crate) const fn new(max: usize) -> Room {
        let taken = Taken { bytes: 0, next_id: 0, by_id: BTreeMap::new() };
        Room { max, taken: Mutex::new(taken), freed: Notify::const_new() }
    }

    /// Waits until there is room for a body of `announced` bytes, of which `received` came since `began`.
    /// One that needs more than there is takes all. Bodies have to be complete `within` a time.
    pub(crate) async fn reserve(
        &self,
        announced: usize,
        received: usize,
        began: Instant,
        within: Duration,
    ) -> Place<'_> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(place) = self.try_reserve(announced, received, began) {
                return place;
            }
            tokio::select! {
                () = freed => {}
                () = sleep(PATIENCE) => self.free_some(within),
            }
        }
    }

    fn try_reserve(&self, announced: usize, received: usize, began: Instant) -> Option<Place<'_>> {
        let mut taken = self.lock();
        let bytes = announced.min(self.max);
        if taken.bytes + bytes > self.max {
            return None;
        }
        taken.bytes += bytes;
        let id = taken.next_id;
        taken.next_id += 1;
        let give_up = Arc::new(Notify::new());
        let share = Share { began, received, announced, give_up: Arc::clone(&give_up) };
        taken.by_id.insert(id, share);
        Some(Place { room: self, id, bytes, give_up })
    }

    /// Tells the slowest body to give up, if it will not be complete in time.
    fn free_some(&self, within: Duration) {
        let taken = self.lock();
        let came_long = |share: &&Share| share.began.elapsed() >= PATIENCE;
        let slowest = taken.by_id.values().filter(came_long).max_by_key(|share| share.needs());
        if let Some(share) = slowest.filter(|share| share.needs() > within) {
            share.give_up.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The room of a body, which it gives back when dropped.
pub(crate) struct Place<'a> {
    room: &'a Room,
    id: u64,
    bytes: usize,
    give_up: Arc<Notify>,
}

impl Place<'_> {
    /// Notes how much has come.
    pub(crate) fn note(&self, received: usize) {
        if let Some(share) = self.room.lock().by_id.get_mut(&self.id) {
            share.received = received;
        }
    }

    /// Waits until this body has to give up its room.
    pub(crate) async fn given_up(&self) {
        self.give_up.notified().await;
    }

    /// Keeps the room of a body that is complete until this is dropped.
    pub(crate) fn complete(&self) {
        self.room.lock().by_id.remove(&self.id);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut taken = self.room.lock();
        taken.by_id.remove(&self.id);
        taken.bytes -= self.bytes;
        drop(taken);
        self.room.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_body_waits_for_those_that_come_in_time() {
        let room = Room::new(100);
        let began = Instant::now();
        let first = room.reserve(60, 10, began, WITHIN).await;
        let coming = async {
            sleep(5 * PATIENCE).await;
            first.note(30);
            tokio::select! {
                () = first.given_up() => panic!("it comes in time"),
                () = sleep(5 * PATIENCE) => {}
            }
            first.complete();
            drop(first);
        };
        let (second, ()) = tokio::join!(room.reserve(50, 10, began, WITHIN), coming);
        assert_eq!(room.lock().bytes, 50);
        drop(second);
        assert_eq!(room.lock().bytes, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_that_come_too_slowly_the_slowest_gives_way() {
        let room = Room::new(100);
        let began = Instant::now();
        let slow = room.reserve(50, 20, began, WITHIN).await;
        let stalled = room.reserve(50, 1, began, WITHIN).await;
        let gone = async {
            tokio::select! {
                () = stalled.given_up() => drop(stalled),
                () = slow.given_up() => panic!("it is not the slowest"),
            }
        };
        let (last, ()) = tokio::join!(room.reserve(40, 20, began, WITHIN), gone);
        assert_eq!(room.lock().bytes, 90);
        drop(last);
    }

    #[tokio::test(start_paused = true)]
    async fn a_complete_body_keeps_its_room() {
        let room = Room::new(100);
        let began = Instant::now();
        let done = room.reserve(90, 1, began, WITHIN).await;
        done.complete();
        let freed = async {
            sleep(3 * WITHIN).await;
            drop(done);
        };
        let (last, ()) = tokio::join!(room.reserve(50, 1, began, WITHIN), freed);
        assert_eq!(room.lock().bytes, 50);
        drop(last);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_larger_than_the_room_takes_all_of_it() {
        let room = Room::new(100);
        let place = room.reserve(700, 1, Instant::now(), WITHIN).await;
        assert_eq!(room.lock().bytes, 100);
        drop(place);
    }
}
