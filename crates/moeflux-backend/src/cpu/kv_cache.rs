//! Keys and values of one sequence and layer, by pages. Entries of pools are keys whose positions are the
//! numbers of the pools.

use std::ops::Range;

use super::Isa;
use super::floats::Floats;
use super::isa::for_every_isa;
use super::pool::SharedMut;
use crate::{CacheSpec, KvType, entries_in, is_seen};

/// Positions of a page.
pub(super) const PAGE_POSITIONS: usize = 256;

/// Keys and values of one sequence and layer; grows by pages.
#[derive(Debug)]
pub(super) struct KvCache {
    n_heads: usize,
    dtype: KvType,
    window: Option<usize>,
    /// Positions of a sequence for each vector.
    pool: usize,
    k: Plane,
    v: Plane,
}

/// The keys or the values: pages of `(n_heads, PAGE_POSITIONS, dim)`.
#[derive(Debug)]
struct Plane {
    dim: usize,
    pages: Vec<Page>,
}

#[derive(Debug)]
enum Page {
    /// [`KvType::F32`], read in place.
    Floats(Floats),
    /// Everything else, as [`KvType::encode_row`] writes it.
    Bytes(Vec<u8>),
    /// No row sees these positions any more.
    Forgotten,
}

/// What is wrong where such a page is used.
const FORGOTTEN: &str = "positions that a window has passed are not used";

/// Vectors of one head, `stride` floats apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) floats: &'a [f32],
    pub(super) stride: usize,
}

impl<'a> Rows<'a> {
    /// How many there are.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.floats.len() / self.stride
    }

    /// The first `dim` floats of one.
    #[inline(always)]
    pub(super) fn row(&self, i: usize, dim: usize) -> &'a [f32] {
        &self.floats[i * self.stride..][..dim]
    }

    /// Some of them.
    pub(super) fn slice(&self, range: Range<usize>) -> Rows<'a> {
        let floats = &self.floats[range.start * self.stride..range.end * self.stride];
        Rows { floats, stride: self.stride }
    }
}

impl KvCache {
    /// # Panics
    /// Where the spec is that of another kind of cache.
    pub(super) fn new(spec: CacheSpec) -> Self {
        let plane = |dim| Plane { dim, pages: Vec::new() };
        match spec {
            CacheSpec::Pages { n_heads, k_dim, v_dim, dtype, window } => {
                KvCache { n_heads, dtype, window, pool: 1, k: plane(k_dim), v: plane(v_dim) }
            }
            CacheSpec::Entries { pool, dim, dtype } => {
                KvCache { n_heads: 1, dtype, window: None, pool, k: plane(dim), v: plane(0) }
            }
            CacheSpec::State(_) => panic!("keys and values"),
        }
    }

    /// Positions of a sequence for each vector.
    pub(super) fn pool(&self) -> usize {
        self.pool
    }

    /// Key heads.
    pub(super) fn n_heads(&self) -> usize {
        self.n_heads
    }

    /// Floats of a key.
    pub(super) fn k_dim(&self) -> usize {
        self.k.dim
    }

    /// Floats of a value; 0 where values are parts of keys.
    pub(super) fn v_dim(&self) -> usize {
        self.v.dim
    }

    /// Whether there are pages for the first `len` positions.
    pub(super) fn holds(&self, len: usize) -> bool {
        self.k.pages.len() * PAGE_POSITIONS >= len
    }

    /// Forgets all but the first `len` positions and frees whole pages.
    pub(super) fn truncate(&mut self, len: usize) {
        let n = len / self.pool;
        for plane in [&mut self.k, &mut self.v] {
            plane.pages.truncate(n.div_ceil(PAGE_POSITIONS));
        }
    }

    /// Frees pages of positions that a window has passed.
    pub(super) fn forget_passed(&mut self, ends: &[usize]) {
        let Some(window) = self.window else { return };
        for plane in [&mut self.k, &mut self.v] {
            for (i, page) in plane.pages.iter_mut().enumerate() {
                let positions = i * PAGE_POSITIONS..(i + 1) * PAGE_POSITIONS;
                if !is_seen(&positions, window, ends) {
                    *page = Page::Forgotten;
                }
            }
        }
    }

    /// Stores the key and the value of one head at `position`.
    pub(super) fn store(&mut self, head: usize, position: usize, k: &[f32], v: &[f32]) {
        let shared = self.share(position..position + 1);
        // SAFETY: no other code has a part of this cache.
        unsafe { shared.store(head, position, k, v) };
    }

    /// Has pages for `positions`, which tasks may fill at the same time.
    pub(super) fn share(&mut self, positions: Range<usize>) -> SharedKv<'_> {
        let KvCache { n_heads, dtype, k, v, .. } = self;
        let first_page = positions.start / PAGE_POSITIONS;
        let planes = [k, v].map(|plane| {
            plane.grow(positions.end, *n_heads, *dtype);
            let dim = plane.dim;
            let mut pages = plane.pages[first_page..].iter_mut().map(|page| match page {
                Page::Floats(page) => SharedPage::Floats(SharedMut::new(page)),
                Page::Bytes(page) => SharedPage::Bytes(SharedMut::new(page)),
                Page::Forgotten => panic!("{FORGOTTEN}"),
            });
            SharedPlane { dim, first: pages.next(), others: pages.collect() }
        });
        SharedKv { dtype: *dtype, first_page, planes }
    }

    /// The stored bytes: keys, then values, each by position and head.
    pub(super) fn save(&self, positions: Range<usize>) -> Vec<u8> {
        let positions = entries_in(&positions, self.pool);
        let row_bytes = self.dtype.row_bytes(self.k.dim) + self.dtype.row_bytes(self.v.dim);
        let mut bytes = Vec::with_capacity(positions.len() * self.n_heads * row_bytes);
        for plane in [&self.k, &self.v] {
            let n = self.dtype.row_bytes(plane.dim);
            for (position, head) in cells(positions.clone(), self.n_heads) {
                match &plane.pages[position / PAGE_POSITIONS] {
                    Page::Floats(page) => {
                        let row = &page[slot(head, position) * plane.dim..][..plane.dim];
                        bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
                    }
                    Page::Bytes(page) => {
                        bytes.extend_from_slice(&page[slot(head, position) * n..][..n]);
                    }
                    Page::Forgotten => panic!("{FORGOTTEN}"),
                }
            }
        }
        bytes
    }

    /// Overwrites what [`save`](KvCache::save) reads.
    pub(super) fn load(&mut self, positions: Range<usize>, bytes: &[u8]) {
        let positions = entries_in(&positions, self.pool);
        let mut rest = bytes;
        for plane in [&mut self.k, &mut self.v] {
            let n = self.dtype.row_bytes(plane.dim);
            plane.skip(positions.start);
            plane.grow(positions.end, self.n_heads, self.dtype);
            for (position, head) in cells(positions.clone(), self.n_heads) {
                let row;
                (row, rest) = rest.split_at(n);
                let dim = plane.dim;
                match plane.place(head, position) {
                    (Page::Floats(page), at) => {
                        KvType::F32.decode_row(row, &mut page[at * dim..][..dim]);
                    }
                    (Page::Bytes(page), at) => page[at * n..][..n].copy_from_slice(row),
                    (Page::Forgotten, _) => panic!("{FORGOTTEN}"),
                }
            }
        }
        assert!(rest.is_empty(), "{} bytes too many of keys and values", rest.len());
    }

    /// The keys.
    pub(super) fn keys(&self) -> Reader<'_> {
        Reader { plane: &self.k, dtype: self.dtype }
    }

    /// The values; the keys where values are parts of these.
    pub(super) fn values(&self) -> Reader<'_> {
        let plane = if self.v.dim > 0 { &self.v } else { &self.k };
        Reader { plane, dtype: self.dtype }
    }
}

/// Keys and values whose positions belong to different tasks.
pub(super) struct SharedKv<'a> {
    dtype: KvType,
    first_page: usize,
    /// Keys and values, from the first page on.
    planes: [SharedPlane<'a>; 2],
}

struct SharedPlane<'a> {
    dim: usize,
    /// Apart, so that one row's page needs no list.
    first: Option<SharedPage<'a>>,
    others: Vec<SharedPage<'a>>,
}

impl<'a> SharedPlane<'a> {
    fn page(&self, i: usize) -> &SharedPage<'a> {
        match i.checked_sub(1) {
            Some(i) => &self.others[i],
            None => self.first.as_ref().expect("positions have a page"),
        }
    }
}

enum SharedPage<'a> {
    Floats(SharedMut<'a, f32>),
    Bytes(SharedMut<'a, u8>),
}

impl SharedKv<'_> {
    /// Stores the key and the value of one head at `position`.
    ///
    /// # Safety
    /// Meanwhile no other code stores at this position and head.
    pub(super) unsafe fn store(&self, head: usize, position: usize, k: &[f32], v: &[f32]) {
        for (plane, values) in self.planes.iter().zip([k, v]) {
            assert_eq!(values.len(), plane.dim, "floats of a stored vector");
            let at = slot(head, position);
            match plane.page(position / PAGE_POSITIONS - self.first_page) {
                SharedPage::Floats(page) => {
                    let n = plane.dim;
                    // SAFETY: the caller promises that no other code uses this vector.
                    let out = unsafe { page.slice(at * n..(at + 1) * n) };
                    out.copy_from_slice(values);
                }
                SharedPage::Bytes(page) => {
                    let n = self.dtype.row_bytes(plane.dim);
                    // SAFETY: the caller promises that no other code uses this vector.
                    let out = unsafe { page.slice(at * n..(at + 1) * n) };
                    self.dtype.encode_row(values, out);
                }
            }
        }
    }
}

/// Every position with every head, heads fastest.
fn cells(positions: Range<usize>, n_heads: usize) -> impl Iterator<Item = (usize, usize)> {
    positions.flat_map(move |position| (0..n_heads).map(move |head| (position, head)))
}

/// Which vector of its page belongs to `head` at `position`.
fn slot(head: usize, position: usize) -> usize {
    head * PAGE_POSITIONS + position % PAGE_POSITIONS
}

impl Plane {
    /// Passes over whole pages before `position` that there are not.
    fn skip(&mut self, position: usize) {
        while (self.pages.len() + 1) * PAGE_POSITIONS <= position {
            self.pages.push(Page::Forgotten);
        }
    }

    /// Has pages for `len` positions.
    fn grow(&mut self, len: usize, n_heads: usize, dtype: KvType) {
        let n = n_heads * PAGE_POSITIONS;
        while self.pages.len() * PAGE_POSITIONS < len {
            self.pages.push(match dtype {
                KvType::F32 => Page::Floats(Floats::zeroed(n * self.dim)),
                KvType::Bf16 | KvType::Q8 => Page::Bytes(vec![0; n * dtype.row_bytes(self.dim)]),
            });
        }
    }

    /// The page and the vector in it.
    fn place(&mut self, head: usize, position: usize) -> (&mut Page, usize) {
        (&mut self.pages[position / PAGE_POSITIONS], slot(head, position))
    }
}

/// Reads keys or values as floats.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    plane: &'a Plane,
    dtype: KvType,
}

impl<'a> Reader<'a> {
    /// The first `dim` floats of one head at `positions`, which share a page:
    /// in place where they are floats, else in `scratch`.
    pub(super) fn run<'s>(
        &self,
        isa: Isa,
        head: usize,
        positions: Range<usize>,
        dim: usize,
        scratch: &'s mut Floats,
    ) -> Rows<'s>
    where
        'a: 's,
    {
        let first = slot(head, positions.start);
        match &self.plane.pages[positions.start / PAGE_POSITIONS] {
            Page::Floats(page) => {
                let stride = self.plane.dim;
                Rows { floats: &page[first * stride..][..positions.len() * stride], stride }
            }
            Page::Bytes(page) => {
                let n = self.dtype.row_bytes(self.plane.dim);
                let floats = scratch.first(positions.len() * dim);
                let rows = &page[first * n..][..positions.len() * n];
                decode(isa, self.dtype, rows, n, floats, dim);
                Rows { floats, stride: dim }
            }
            Page::Forgotten => panic!("{FORGOTTEN}"),
        }
    }

    /// What is stored of one head at `positions`, which share a page.
    pub(super) fn stored(&self, head: usize, positions: Range<usize>) -> &'a [u8] {
        let first = slot(head, positions.start);
        match &self.plane.pages[positions.start / PAGE_POSITIONS] {
            Page::Floats(page) => {
                let n = self.plane.dim;
                bytemuck::cast_slice(&page[first * n..][..positions.len() * n])
            }
            Page::Bytes(page) => {
                let n = self.dtype.row_bytes(self.plane.dim);
                &page[first * n..][..positions.len() * n]
            }
            Page::Forgotten => panic!("{FORGOTTEN}"),
        }
    }

    /// The first `dim` floats of one head at each of `positions`, in `scratch`.
    pub(super) fn gather<'s>(
        &self,
        isa: Isa,
        head: usize,
        positions: &[u32],
        dim: usize,
        scratch: &'s mut Floats,
    ) -> Rows<'s>
    where
        'a: 's,
    {
        let floats = scratch.first(positions.len() * dim);
        for (position, row) in positions.iter().zip(floats.chunks_exact_mut(dim)) {
            let position = *position as usize;
            let at = slot(head, position);
            match &self.plane.pages[position / PAGE_POSITIONS] {
                Page::Floats(page) => row.copy_from_slice(&page[at * self.plane.dim..][..dim]),
                Page::Bytes(page) => {
                    let n = self.dtype.row_bytes(self.plane.dim);
                    decode(isa, self.dtype, &page[at * n..][..n], n, row, dim);
                }
                Page::Forgotten => panic!("{FORGOTTEN}"),
            }
        }
        Rows { floats, stride: dim }
    }
}

for_every_isa! {
    /// Decodes vectors of `row_bytes` bytes into the first `dim` floats of each.
    fn decode(dtype: KvType, bytes: &[u8], row_bytes: usize, out: &mut [f32], dim: usize) {
        for (bytes, out) in bytes.chunks_exact(row_bytes).zip(out.chunks_exact_mut(dim)) {
            dtype.decode_row(bytes, out);
        }
    }
}
