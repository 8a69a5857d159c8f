//! Memory that bodies of requests share while they are received.
//!
//! A body takes room as its bytes come, so one that was announced and does not come takes none. Where
//! there is no more room, one of those that have some gives up: the one that came slowest, or, where
//! all wait for room themselves, the one of which the least would have to be sent again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// How long a body waits for room before another gives up, and how long that one has had at least.
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
    /// Of the bodies that are still received.
    by_id: BTreeMap<u64, Share>,
}

/// What a body has.
struct Share {
    bytes: usize,
    began: Instant,
    is_waiting: bool,
    give_up: Arc<Notify>,
}

impl Share {
    /// Bytes a second.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.began.elapsed().as_secs_f64()
    }
}

impl Room {
    pub(crate) const fn new(max: usize) -> Room {
        let taken = Taken { bytes: 0, next_id: 0, by_id: BTreeMap::new() };
        Room { max, taken: Mutex::new(taken), freed: Notify::const_new() }
    }

    /// A body that takes its room from here.
    pub(crate) fn enter(&self) -> Place<'_> {
        let (mut taken, give_up) = (self.lock(), Arc::new(Notify::new()));
        let id = taken.next_id;
        taken.next_id += 1;
        let share = Share {
            bytes: 0,
            began: Instant::now(),
            is_waiting: false,
            give_up: Arc::clone(&give_up),
        };
        taken.by_id.insert(id, share);
        Place { room: self, id, bytes: 0, give_up }
    }

    /// Tells a body to give up what it has.
    fn free_some(&self) {
        let taken = self.lock();
        let has_some = |share: &&Share| share.bytes > 0 && share.began.elapsed() >= PATIENCE;
        let shares = || taken.by_id.values().filter(has_some);
        let came_slowest =
            shares().filter(|share| !share.is_waiting).min_by(|a, b| a.rate().total_cmp(&b.rate()));
        let found = came_slowest.or_else(|| shares().min_by_key(|share| share.bytes));
        if let Some(share) = found {
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

/// A body has to give up its room, for others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GivenUp;

impl Place<'_> {
    /// Waits until there is room for `more` bytes. One that needs more than there is takes all.
    ///
    /// # Errors
    /// Where this body has to give up what it has.
    pub(crate) async fn grow(&mut self, more: usize) -> Result<(), GivenUp> {
        loop {
            let freed = self.room.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.try_grow(more) {
                return Ok(());
            }
            tokio::select! {
                () = freed => {}
                () = sleep(PATIENCE) => self.room.free_some(),
                () = self.give_up.notified() => return Err(GivenUp),
            }
        }
    }

    fn try_grow(&mut self, more: usize) -> bool {
        let mut taken = self.room.lock();
        let others = taken.bytes - self.bytes;
        let wanted = (self.bytes + more).min(self.room.max);
        let fits = others + wanted <= self.room.max;
        if fits {
            (taken.bytes, self.bytes) = (others + wanted, wanted);
        }
        if let Some(share) = taken.by_id.get_mut(&self.id) {
            (share.bytes, share.is_waiting) = (self.bytes, !fits);
        }
        fits
    }

    /// Waits until this body has to give up.
    pub(crate) async fn given_up(&self) {
        self.give_up.notified().await;
    }

    /// Keeps the room of a body that is complete until this is dropped.
    pub(crate) fn complete(&mut self) {
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

    #[tokio::test(start_paused = true)]
    async fn what_has_not_come_takes_no_room() {
        let room = Room::new(100);
        let _announced: Vec<_> = (0..64).map(|_| room.enter()).collect();
        let mut place = room.enter();
        place.grow(100).await.unwrap();
        assert_eq!(room.lock().bytes, 100);
        drop(place);
        assert_eq!(room.lock().bytes, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_gives_way() {
        let room = Room::new(100);
        let [mut slow, mut fast] = [room.enter(), room.enter()];
        slow.grow(30).await.unwrap();
        sleep(10 * PATIENCE).await;
        fast.grow(60).await.unwrap();
        let mut last = room.enter();
        let gone = async {
            slow.given_up().await;
            drop(slow);
        };
        let (grown, ()) = tokio::join!(last.grow(40), gone);
        assert_eq!(grown, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_complete_body_keeps_its_room() {
        let room = Room::new(100);
        let mut done = room.enter();
        done.grow(90).await.unwrap();
        done.complete();
        let mut waiting = room.enter();
        let freed = async {
            sleep(20 * PATIENCE).await;
            drop(done);
        };
        let (grown, ()) = tokio::join!(waiting.grow(50), freed);
        assert_eq!(grown, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn of_bodies_that_wait_for_each_other_the_smallest_gives_up() {
        let room = Room::new(100);
        let [mut small, mut large] = [room.enter(), room.enter()];
        small.grow(40).await.unwrap();
        large.grow(60).await.unwrap();
        let first = async {
            let grown = small.grow(30).await;
            drop(small);
            grown
        };
        let (first, second) = tokio::join!(first, large.grow(30));
        assert_eq!((first, second), (Err(GivenUp), Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_larger_than_the_room_takes_all_of_it() {
        let room = Room::new(100);
        let mut place = room.enter();
        for _ in 0..5 {
            place.grow(70).await.unwrap();
        }
        assert_eq!(room.lock().bytes, 100);
    }
}
