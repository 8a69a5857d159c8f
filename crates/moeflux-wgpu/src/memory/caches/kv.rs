//! Keys and values of a sequence: which pages hold them. Entries of pools are keys whose positions are the
//! numbers of the pools.

use std::ops::Range;

use moeflux_backend::{DeviceError, entries_in, is_seen};

use crate::commands::encoder::Encoder;
use crate::commands::read::read;
use crate::memory::caches::pages::{PAGE, Page, Pages, Plane};

/// Keys and values of one sequence and layer.
#[derive(Debug)]
pub(crate) struct Kv {
    /// Whose pages these are, of all that there are.
    pub(crate) pool: usize,
    window: Option<usize>,
    /// Positions of the sequence for each vector.
    pub(crate) size: usize,
    /// In the order of positions; absent where a window has passed them.
    pages: Vec<Option<Page>>,
}

/// Cuts positions at the ends of pages.
fn parts(positions: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let pages = positions.start / PAGE..positions.end.div_ceil(PAGE);
    pages.map(move |page| positions.start.max(page * PAGE)..positions.end.min((page + 1) * PAGE))
}

impl Kv {
    pub(super) fn new(pool: usize, window: Option<usize>, size: usize) -> Kv {
        Kv { pool, window, size, pages: Vec::new() }
    }

    /// Whether there is room for the first `len` positions of the sequence.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.pages.len() * PAGE >= len / self.size
    }

    /// The page of a position.
    pub(crate) fn page(&self, position: usize) -> Page {
        self.pages[position / PAGE].expect("positions that a window has passed are not used")
    }

    /// Has room for the first `len` positions of the sequence, or as much as before where there is no
    /// memory.
    pub(crate) fn grow(&mut self, pool: &mut Pages, encoder: &mut Encoder, len: usize) {
        let n = (len / self.size).div_ceil(PAGE).saturating_sub(self.pages.len());
        if n > 0 {
            self.pages.extend(pool.take(encoder, n).into_iter().map(Some));
        }
    }

    /// Forgets all but the first `len` positions and frees whole pages.
    pub(super) fn truncate(&mut self, pool: &mut Pages, encoder: &mut Encoder, len: usize) {
        let first = (len / self.size).div_ceil(PAGE).min(self.pages.len());
        for page in self.pages.drain(first..).flatten() {
            pool.put_back(encoder, page);
        }
    }

    /// Frees pages of positions that a window has passed.
    pub(super) fn forget_passed(
        &mut self,
        pool: &mut Pages,
        encoder: &mut Encoder,
        ends: &[usize],
    ) {
        let Some(window) = self.window else { return };
        for (i, page) in self.pages.iter_mut().enumerate() {
            if !is_seen(&(i * PAGE..(i + 1) * PAGE), window, ends)
                && let Some(page) = page.take()
            {
                pool.put_back(encoder, page);
            }
        }
    }

    /// Keys, then values, without what fills their last words.
    pub(super) fn save(
        &self,
        pool: &Pages,
        encoder: &mut Encoder,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError> {
        let positions = entries_in(&positions, self.size);
        let mut ranges = Vec::new();
        for plane in [pool.k, pool.v] {
            for part in parts(positions.clone()) {
                let page = self.page(part.start);
                let bytes = 4 * part.len() * pool.position_words(plane);
                let first = 4 * pool.word(page, plane, part.start);
                ranges.push(pool.mem(page.slab).range(first as u64, bytes as u64));
            }
        }
        let stored = read(encoder, &ranges)?;
        let mut out = Vec::with_capacity(stored.len());
        let mut rest = &stored[..];
        for plane in [pool.k, pool.v] {
            let row = pool.dtype.row_bytes(plane.dim);
            let (mine, behind) = rest.split_at(positions.len() * 4 * pool.position_words(plane));
            for vector in mine.chunks_exact((4 * plane.row_words).max(1)) {
                out.extend_from_slice(&vector[..row]);
            }
            rest = behind;
        }
        Ok(out)
    }

    /// Overwrites what [`save`](Kv::save) reads.
    pub(super) fn load(
        &mut self,
        pool: &mut Pages,
        encoder: &mut Encoder,
        positions: Range<usize>,
        bytes: &[u8],
    ) {
        let end = positions.end;
        let positions = entries_in(&positions, self.size);
        let n_passed = positions.start / PAGE;
        if self.pages.len() < n_passed {
            self.pages.resize(n_passed, None);
        }
        self.grow(pool, encoder, end);
        if !self.has_room(end) {
            return;
        }
        let mut rest = bytes;
        for plane in [pool.k, pool.v] {
            let len = positions.len() * pool.n_heads * pool.dtype.row_bytes(plane.dim);
            let (mine, behind) = rest.split_at(len);
            rest = behind;
            if len > 0 {
                self.load_plane(pool, encoder, plane, positions.clone(), mine);
            }
        }
        assert!(rest.is_empty(), "{} bytes too many of keys and values", rest.len());
    }

    fn load_plane(
        &self,
        pool: &Pages,
        encoder: &mut Encoder,
        plane: Plane,
        positions: Range<usize>,
        bytes: &[u8],
    ) {
        let row = pool.dtype.row_bytes(plane.dim);
        let position = 4 * pool.position_words(plane);
        let mut stored = vec![0; positions.len() * position];
        let vectors = stored.chunks_exact_mut(4 * plane.row_words);
        for (vector, bytes) in vectors.zip(bytes.chunks_exact(row)) {
            vector[..row].copy_from_slice(bytes);
        }
        for part in parts(positions.clone()) {
            let page = self.page(part.start);
            let at = (part.start - positions.start) * position;
            let bytes = &stored[at..at + part.len() * position];
            let first = 4 * pool.word(page, plane, part.start);
            encoder.write(pool.mem(page.slab), first as u64, bytes);
        }
    }
}
