//! The caches of sequences.

use std::ops::Range;

use crate::{Cache, CacheSpec, DeviceError, Sequence, StateSnapshot};

/// Creates, cuts, copies and saves the caches of sequences: keys and values, and the
/// recurrent states of convolutions and delta rules.
///
/// Handles of sequences that do not exist are the caller's mistake and panic.
pub trait Sequences {
    /// Begins a sequence whose caches are empty; `Cache(i)` is `specs[i]`.
    fn new_sequence(&mut self, specs: &[CacheSpec]) -> Sequence;
    /// Empties the caches of a sequence.
    fn clear_sequence(&mut self, sequence: Sequence);
    /// Ends a sequence; a later sequence may get its handle.
    fn drop_sequence(&mut self, sequence: Sequence);
    /// Cuts the caches of keys and values to the first `len` positions. Recurrent states
    /// stay as they are.
    fn truncate_sequence(&mut self, sequence: Sequence, len: usize);
    /// Frees keys and values of caches with a window: the positions that are seen neither by a
    /// row at one of `ends`, which ascend, nor by any row after the last of them. The sequence
    /// can be cut at each of `ends` then, at any position after the last, and nowhere else but
    /// at the beginning; positions that were freed must not be saved.
    fn forget_passed(&mut self, sequence: Sequence, ends: &[usize]);
    /// Allocates the recurrent states of a sequence ahead of their use. Returns false where
    /// there is no memory for them; this is no error of the device.
    fn reserve_states(&mut self, sequence: Sequence) -> bool;
    /// Has the ops that follow copy recurrent states in the middle of a step, as each
    /// [`StateSnapshot`] describes. Targets are [reserved](Sequences::reserve_states). An
    /// empty list ends this.
    fn snapshot_states(&mut self, snapshots: &[StateSnapshot]);
    /// Exchanges the recurrent states of two sequences with equal [`CacheSpec`]s. Keys and
    /// values stay as they are.
    fn swap_states(&mut self, one: Sequence, other: Sequence);
    /// Reads some positions of a cache back, in the layout of [`CacheSpec::saved_bytes`]. A
    /// recurrent state is read as a whole, for any `positions`.
    ///
    /// # Errors
    /// A failure of any op since the last read-back.
    fn save_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError>;
    /// Overwrites some positions of a cache, or a recurrent state, with bytes in the layout of
    /// [`CacheSpec::saved_bytes`].
    ///
    /// # Errors
    /// A failure of any op since the last read-back. Where there is no memory for the bytes,
    /// the cache has none of them.
    fn load_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), DeviceError>;
}
