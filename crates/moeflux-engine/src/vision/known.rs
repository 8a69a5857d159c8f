//! Rows of pictures that were seen, by the pictures' hashes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use moeflux_core::PictureRows;

use super::seen::SeenPicture;

/// Rows of pictures, of which the least recently used leave.
#[derive(Debug)]
pub(super) struct KnownPictures {
    max_bytes: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pictures: HashMap<PictureRows, Entry>,
    n_bytes: usize,
    /// Grows with every use.
    clock: u64,
    n_known: u64,
    n_seen: u64,
}

#[derive(Debug)]
struct Entry {
    seen: Arc<SeenPicture>,
    last_use: u64,
}

impl KnownPictures {
    pub(super) fn new(max_bytes: usize) -> KnownPictures {
        KnownPictures { max_bytes, state: Mutex::default() }
    }

    pub(super) fn get(&self, rows: &PictureRows) -> Option<Arc<SeenPicture>> {
        let state = &mut *self.state();
        state.clock += 1;
        let entry = state.pictures.get_mut(rows)?;
        entry.last_use = state.clock;
        state.n_known += 1;
        Some(Arc::clone(&entry.seen))
    }

    /// Adds a picture. The last one is kept whatever its size.
    pub(super) fn insert(&self, seen: &Arc<SeenPicture>) {
        let state = &mut *self.state();
        state.clock += 1;
        state.n_seen += 1;
        let entry = Entry { seen: Arc::clone(seen), last_use: state.clock };
        state.n_bytes += seen.n_bytes();
        if let Some(old) = state.pictures.insert(seen.rows(), entry) {
            state.n_bytes -= old.seen.n_bytes();
        }
        while state.n_bytes > self.max_bytes && state.pictures.len() > 1 {
            let oldest = state.pictures.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some(oldest) = oldest.map(|(rows, _)| *rows) else { break };
            if let Some(old) = state.pictures.remove(&oldest) {
                state.n_bytes -= old.seen.n_bytes();
            }
        }
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        let state = &mut *self.state();
        state.pictures.clear();
        state.n_bytes = 0;
    }

    /// How often a picture was known, and how often one was added.
    pub(super) fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.n_known, state.n_seen)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use moeflux_model::Seen;

    use super::*;

    fn picture(nth: u8) -> Arc<SeenPicture> {
        let rows = PictureRows { id: [nth; 32], n_rows: 6 };
        let seen = Seen { rows: vec![f32::from(nth); 6 * 4], deepstack: Vec::new() };
        Arc::new(SeenPicture::new(rows, [2, 3], 4, seen))
    }

    #[test]
    fn the_least_recently_used_leave() {
        let bytes = picture(0).n_bytes();
        let known = KnownPictures::new(2 * bytes);
        known.insert(&picture(1));
        known.insert(&picture(2));
        assert!(known.get(&picture(1).rows()).is_some());
        known.insert(&picture(3));
        let is_known = [1, 2, 3].map(|nth| known.get(&picture(nth).rows()).is_some());
        assert_eq!(is_known, [true, false, true]);
        // Again, which takes no more room.
        known.insert(&picture(3));
        assert!(known.get(&picture(1).rows()).is_some());
        assert_eq!(known.counts(), (4, 4));
    }

    #[test]
    fn a_picture_larger_than_all_room_is_kept_alone() {
        let known = KnownPictures::new(1);
        known.insert(&picture(1));
        known.insert(&picture(2));
        let is_known = [1, 2].map(|nth| known.get(&picture(nth).rows()).is_some());
        assert_eq!(is_known, [false, true]);
    }
}
