//! Which experts the device holds, and in which slots.
//!
//! A slot has the three matrices of an expert as kernels read them. Slots are
//! made while memory lasts and the budget allows, then the one that was used
//! longest ago is given away. Overwriting it waits for no kernel: commands run
//! in order, and whatever was recorded but not submitted is submitted first,
//! because a slot is written before all kernels of the next submission.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use moeflux_core::quant::MatrixView;
use moeflux_core::{Expert, ExpertKey, ExpertLayout, MatrixLayout};
use wgpu::BufferSize;

use crate::arena::{Place, place, sizes, write_packed};
use crate::encoder::{Encoder, Mem};

/// Where the matrices of an expert lie: gate and up, or both in one, then down.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) mem: Mem,
    /// First byte.
    at: usize,
    pub(crate) places: [Place; 3],
}

/// How the experts of a layer lie in slots.
#[derive(Debug)]
struct Layout {
    of: Arc<ExpertLayout>,
    bytes: usize,
    /// First byte of each matrix, and of its scales behind that.
    parts: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct Entry {
    slot: Slot,
    /// When it was used, counted in uses.
    used: u64,
}

/// Slots of one size.
#[derive(Debug, Default)]
struct Pool {
    free: Vec<Slot>,
    by_key: HashMap<ExpertKey, Entry>,
    /// Who used its slot when.
    by_use: BTreeMap<u64, ExpertKey>,
    /// Bytes of the next slab.
    next_bytes: usize,
    n_slots: usize,
}

/// All slots of a backend.
#[derive(Debug)]
pub(crate) struct Slots {
    layouts: Vec<Layout>,
    pools: HashMap<usize, Pool>,
    budget: u64,
    taken: u64,
    clock: u64,
    is_full: bool,
}

const FIRST_SLAB: usize = 1 << 20;
const LAST_SLAB: usize = 1 << 30;

impl Slots {
    /// Slots of at most so many bytes together, but for one of each size.
    pub(crate) fn new(budget: u64) -> Slots {
        Slots {
            layouts: Vec::new(),
            pools: HashMap::new(),
            budget,
            taken: 0,
            clock: 0,
            is_full: false,
        }
    }

    /// Marks the time: what is used from now on stays until the next call.
    pub(crate) fn begin(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The slot of an expert, filled where it was not; `None` where all slots
    /// were used since `since`.
    pub(crate) fn get(
        &mut self,
        encoder: &mut Encoder,
        expert: &Expert,
        since: u64,
    ) -> Option<Slot> {
        let layout = self.layout(&expert.layout);
        let bytes = self.layouts[layout].bytes;
        self.clock += 1;
        let now = self.clock;
        let pool = self.pools.entry(bytes).or_default();
        if let Some(entry) = pool.by_key.get_mut(&expert.key) {
            pool.by_use.remove(&entry.used);
            pool.by_use.insert(now, expert.key);
            entry.used = now;
            return Some(entry.slot.clone());
        }
        if pool.free.is_empty() {
            self.grow(encoder, layout);
        }
        let pool = self.pools.entry(bytes).or_default();
        let mut slot = match pool.free.pop() {
            Some(slot) => slot,
            None => {
                let (used, key) = pool.by_use.first_key_value().map(|it| (*it.0, *it.1))?;
                if used >= since {
                    return None;
                }
                pool.by_use.remove(&used);
                encoder.flush();
                pool.by_key.remove(&key)?.slot
            }
        };
        let layout = &self.layouts[layout];
        slot.places = layout.places(slot.at);
        fill(encoder, &slot, layout, expert);
        let entry = Entry { slot: slot.clone(), used: now };
        pool.by_use.insert(now, expert.key);
        pool.by_key.insert(expert.key, entry);
        Some(slot)
    }

    fn layout(&mut self, of: &Arc<ExpertLayout>) -> usize {
        let known = self.layouts.iter().position(|it| Arc::ptr_eq(&it.of, of) || it.of == *of);
        known.unwrap_or_else(|| {
            let mut bytes = 0;
            let parts = of.matrices().map(|it| {
                let (len, scales) = sizes(&empty_view(it));
                let first = bytes;
                bytes += len;
                (first, scales)
            });
            let parts = parts.collect();
            self.layouts.push(Layout { of: Arc::clone(of), bytes: bytes.max(16), parts });
            self.layouts.len() - 1
        })
    }

    /// Makes slots, as many as a slab holds.
    fn grow(&mut self, encoder: &Encoder, layout: usize) {
        let bytes = self.layouts[layout].bytes;
        let pool = self.pools.entry(bytes).or_default();
        let context = encoder.context();
        let most = usize::try_from(context.max_binding_bytes()).unwrap_or(usize::MAX);
        let left = usize::try_from(self.budget.saturating_sub(self.taken)).unwrap_or(usize::MAX);
        let slab = pool.next_bytes.clamp(FIRST_SLAB, LAST_SLAB).min(most).min(left);
        let n = (slab / bytes).max(usize::from(pool.n_slots == 0 || left >= bytes));
        if n == 0 || (self.is_full && pool.n_slots > 0) {
            return;
        }
        let len = (n * bytes) as u64;
        let buffer = if pool.n_slots == 0 {
            context.storage(len, "experts")
        } else {
            match context.try_storage(len, "experts") {
                Some(buffer) => buffer,
                None => {
                    self.is_full = true;
                    return;
                }
            }
        };
        let mem = Mem::new(buffer);
        self.taken += len;
        pool.next_bytes = 2 * slab.max(FIRST_SLAB);
        pool.n_slots += n;
        let places = [place(0, 0); 3];
        let slots = (0..n).map(|i| Slot { mem: mem.clone(), at: i * bytes, places });
        pool.free.extend(slots.rev());
    }
}

/// The shape of a matrix whose bytes are of no interest.
fn empty_view(it: &MatrixLayout) -> MatrixView<'static> {
    let MatrixLayout { rows, cols, format, .. } = *it;
    MatrixView { rows, cols, format, weight: &[], scales: &[], biases: &[] }
}

impl Layout {
    fn places(&self, at: usize) -> [Place; 3] {
        let place_of = |i: usize| {
            let (first, scales) = self.parts[i.min(self.parts.len() - 1)];
            place(at + first, scales)
        };
        [place_of(0), place_of(1), place_of(2)]
    }
}

/// Copies an expert's bytes into its slot.
fn fill(encoder: &mut Encoder, slot: &Slot, layout: &Layout, expert: &Expert) {
    let len = layout.bytes as u64;
    let queue = &encoder.context().queue;
    let Some(size) = BufferSize::new(len) else { return };
    let mut bytes = vec![0; layout.bytes];
    for (matrix, (first, scales)) in layout.of.matrices().zip(&layout.parts) {
        write_packed(&expert.matrix(matrix), *scales, &mut bytes[*first..]);
    }
    // Without memory for the copy the device has already said so.
    if let Some(mut view) = queue.write_buffer_with(&slot.mem.buffer, slot.at as u64, size) {
        view.copy_from_slice(&bytes);
    }
}
