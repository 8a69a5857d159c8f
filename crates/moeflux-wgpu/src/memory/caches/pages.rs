//! Memory for keys and values in pages, which the sequences of a cache share: a kernel attends
//! for all of them whose pages are in one buffer.

use std::collections::BTreeSet;

use moeflux_backend::KvType;

use crate::commands::encoder::Encoder;
use crate::device::buffer::Mem;

/// Positions of a page: whole tiles of attention.
pub(crate) const PAGE: usize = if cfg!(test) { 128 } else { 256 };

/// Bytes that a slab of several pages does not exceed; few in tests, so that there
/// are several slabs.
const SLAB_BYTES: usize = if cfg!(test) { 192 << 10 } else { 64 << 20 };

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
        let most = (SLAB_BYTES / (4 * self.page_words()).max(1)).max(1);
        let bytes = 4 * self.page_words() as u64;
        for idx in 0.. {
            if pages.len() == n {
                break;
            }
            if idx == self.slabs.len() {
                self.slabs.push(Slab::default());
            }
            let slab = &mut self.slabs[idx];
            if !slab.grow(encoder, (n - pages.len()).min(most), most, bytes) {
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

impl Slab {
    /// Has `wanted` free pages of `bytes` bytes each, but at most `most` pages in all; false where there
    /// is no memory for them.
    fn grow(&mut self, encoder: &mut Encoder, wanted: usize, most: usize, bytes: u64) -> bool {
        let n_pages = (self.n_pages - self.free.len() + wanted).next_power_of_two().min(most);
        if n_pages <= self.n_pages {
            return true;
        }
        let mem = encoder.buffers.storage(n_pages as u64 * bytes, "keys and values");
        if encoder.buffers.is_stand_in(&mem) {
            return false;
        }
        if let Some(old) = self.mem.replace(mem.clone()) {
            encoder.copy(old.at(0), mem.at(0), self.n_pages as u64 * bytes);
            encoder.forget(&old);
        }
        self.free.extend(self.n_pages..n_pages);
        self.n_pages = n_pages;
        true
    }
}
