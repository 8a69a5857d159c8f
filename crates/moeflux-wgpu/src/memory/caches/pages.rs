//! Memory for keys and values in pages, which the sequences of a cache share: a kernel attends
//! for all of them whose pages are in one buffer.

use std::collections::BTreeSet;

use moeflux_backend::KvType;

use crate::commands::encoder::Encoder;
use crate::device::buffer::Mem;

/// Positions of a page: whole tiles of attention.
pub(crate) const PAGE: usize = if cfg!(test) { 128 } else { 256 };

/// Bytes by which a slab of several pages grows at most, and bytes that it does not exceed; few in
/// tests, so that there are several slabs. Attention has a dispatch for every slab of a sequence.
const GROWTH_BYTES: usize = if cfg!(test) { 96 << 10 } else { 64 << 20 };
const SLAB_BYTES: usize = if cfg!(test) { 192 << 10 } else { 1 << 30 };

const LABEL: &str = "keys and values";

/// The keys or the values of a page: `(PAGE, n_heads, row_words)` words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plane {
    /// Floats of a vector.
    pub(crate) dim: usize,
    /// Words of a vector.
    pub(crate) row_words: usize,
    /// Words of the page before it.
    start: usize,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// The buffer.
    pub(crate) slab: usize,
    nth: usize,
}

/// All pages of one cache.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) n_heads: usize,
    pub(crate) dtype: KvType,
    pub(crate) k: Plane,
    pub(crate) v: Plane,
    slabs: Vec<Slab>,
}

/// A buffer that grows to its largest size.
#[derive(Debug, Default)]
struct Slab {
    mem: Option<Mem>,
    n_pages: usize,
    free: BTreeSet<usize>,
}

impl Pages {
    pub(super) fn new(n_heads: usize, k_dim: usize, v_dim: usize, dtype: KvType) -> Pages {
        let words = |dim| dtype.row_bytes(dim).div_ceil(4);
        let k = Plane { dim: k_dim, row_words: words(k_dim), start: 0 };
        let start = PAGE * n_heads * k.row_words;
        let v = Plane { dim: v_dim, row_words: words(v_dim), start };
        Pages { n_heads, dtype, k, v, slabs: Vec::new() }
    }

    /// The constant `KV` of kernels.
    pub(crate) fn kind(&self) -> u32 {
        match self.dtype {
            KvType::F32 => 0,
            KvType::Bf16 => 1,
            KvType::Q8 => 2,
        }
    }

    /// Words of a position's keys or values.
    pub(crate) fn position_words(&self, plane: Plane) -> usize {
        self.n_heads * plane.row_words
    }

    fn page_words(&self) -> usize {
        self.v.start + PAGE * self.position_words(self.v)
    }

    /// The word of its slab where a position of a page begins.
    pub(crate) fn word(&self, page: Page, plane: Plane, position: usize) -> usize {
        let in_page = position % PAGE * self.position_words(plane);
        page.nth * self.page_words() + plane.start + in_page
    }

    /// The buffer of a page that was taken.
    pub(crate) fn mem(&self, slab: usize) -> &Mem {
        self.slabs[slab].mem.as_ref().expect("pages are in memory")
    }

    #[cfg(test)]
    pub(super) fn n_slabs(&self) -> usize {
        self.slabs.iter().filter(|slab| slab.mem.is_some()).count()
    }

    /// Takes this many pages, or none where there is no memory for all.
    pub(super) fn take(&mut self, encoder: &mut Encoder, n: usize) -> Vec<Page> {
        let mut pages = Vec::with_capacity(n);
        let bytes = 4 * self.page_words();
        let of = |all: usize| (all / bytes.max(1)).max(1);
        let binding = usize::try_from(encoder.context().max_binding_bytes()).unwrap_or(usize::MAX);
        let sizes = Sizes { bytes, growth: of(GROWTH_BYTES), most: of(SLAB_BYTES.min(binding)) };
        for idx in 0.. {
            if pages.len() == n {
                break;
            }
            if idx == self.slabs.len() {
                self.slabs.push(Slab::default());
            }
            let slab = &mut self.slabs[idx];
            if !slab.grow(encoder, n - pages.len(), sizes) {
                pages.drain(..).for_each(|page| self.put_back(encoder, page));
                break;
            }
            let taken = std::iter::from_fn(|| slab.free.pop_first());
            pages.extend(taken.take(n - pages.len()).map(|nth| Page { slab: idx, nth }));
        }
        pages
    }

    /// Frees a page, and a slab that has no others.
    pub(super) fn put_back(&mut self, encoder: &mut Encoder, page: Page) {
        let slab = &mut self.slabs[page.slab];
        slab.free.insert(page.nth);
        if slab.free.len() == slab.n_pages
            && let Some(mem) = std::mem::take(slab).mem
        {
            encoder.forget(&mem);
        }
    }
}

/// Bytes of a page, pages by which a slab grows at most, and pages that it does not exceed.
#[derive(Clone, Copy)]
struct Sizes {
    bytes: usize,
    growth: usize,
    most: usize,
}

impl Slab {
    /// Has `wanted` free pages if it may and there is memory for them; false where it has none at
    /// all and there is no memory.
    fn grow(&mut self, encoder: &mut Encoder, wanted: usize, sizes: Sizes) -> bool {
        let n_pages = sizes.enough_for(self.n_pages - self.free.len() + wanted);
        if n_pages <= self.n_pages {
            return true;
        }
        let bytes = (n_pages * sizes.bytes) as u64;
        let Some(old) = self.mem.clone() else {
            let mem = encoder.buffers.storage(bytes, LABEL);
            let is_there = !encoder.buffers.is_stand_in(&mem);
            if is_there {
                self.replace(mem, n_pages);
            }
            return is_there;
        };
        // Without memory for both, what is wanted goes into another slab.
        if let Some(mem) = encoder.buffers.storage_if_free(bytes, LABEL) {
            encoder.copy(old.at(0), mem.at(0), (self.n_pages * sizes.bytes) as u64);
            encoder.forget(&old);
            self.replace(mem, n_pages);
        }
        true
    }

    fn replace(&mut self, mem: Mem, n_pages: usize) {
        self.mem = Some(mem);
        self.free.extend(self.n_pages..n_pages);
        self.n_pages = n_pages;
    }
}

impl Sizes {
    /// Pages of a slab that has at least `n_pages`, as far as it may: a power of two as long as that
    /// is little.
    fn enough_for(self, n_pages: usize) -> usize {
        let few = n_pages.next_power_of_two();
        let enough = if few <= self.growth { few } else { n_pages.next_multiple_of(self.growth) };
        enough.min(self.most)
    }
}
