//! Keys and values of a sequence, in pieces that bindings hold.

use std::ops::Range;

use moeflux_backend::{DeviceError, KvType};

use crate::encoder::{Encoder, Mem};

/// Positions of the first piece before it grows.
const FIRST_POSITIONS: usize = 256;

/// Bytes that a piece of a cache does not exceed; few in tests, so that caches
/// have several.
const PIECE_BYTES: usize = if cfg!(test) { 64 << 10 } else { 64 << 20 };

/// Keys and values of one sequence and layer.
#[derive(Debug)]
pub(crate) struct Kv {
    pub(crate) n_heads: usize,
    pub(crate) dtype: KvType,
    pub(crate) k: Plane,
    pub(crate) v: Plane,
    /// Positions of a piece, a power of two; only the last one may hold fewer.
    pub(crate) piece_len: usize,
}

/// The keys or the values: `(positions, n_heads, row_words)` words a piece.
#[derive(Debug)]
pub(crate) struct Plane {
    pub(crate) dim: usize,
    pub(crate) row_words: usize,
    pub(crate) pieces: Vec<Mem>,
}

/// Some positions of a cache, within one piece.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) piece: usize,
    /// First position of the piece.
    pub(crate) start: usize,
    /// All positions.
    pub(crate) positions: Range<usize>,
}

impl Kv {
    pub(super) fn new(n_heads: usize, k_dim: usize, v_dim: usize, dtype: KvType) -> Kv {
        let plane =
            |dim| Plane { dim, row_words: dtype.row_bytes(dim).div_ceil(4), pieces: Vec::new() };
        let (k, v) = (plane(k_dim), plane(v_dim));
        let position = (4 * n_heads * k.row_words.max(v.row_words)).max(1);
        let fit = (PIECE_BYTES / position).max(FIRST_POSITIONS);
        Kv { n_heads, dtype, k, v, piece_len: 1 << fit.ilog2() }
    }

    /// What stands in its place while it is worked with.
    pub(crate) fn empty() -> Kv {
        Kv::new(0, 0, 0, KvType::F32)
    }

    /// The constant `KV` of kernels.
    pub(crate) fn kind(&self) -> u32 {
        match self.dtype {
            KvType::F32 => 0,
            KvType::Bf16 => 1,
            KvType::Q8 => 2,
        }
    }

    /// Cuts positions at the ends of pieces.
    pub(crate) fn parts(&self, positions: Range<usize>) -> impl Iterator<Item = Part> + use<> {
        let len = self.piece_len;
        let pieces = positions.start / len..positions.end.div_ceil(len);
        pieces.map(move |piece| {
            let start = piece * len;
            let positions = positions.start.max(start)..positions.end.min(start + len);
            Part { piece, start, positions }
        })
    }

    fn position_words(&self, plane: &Plane) -> usize {
        self.n_heads * plane.row_words
    }

    /// Whether there is room for the first `len` positions.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        [&self.k, &self.v].into_iter().all(|plane| {
            let words = self.position_words(plane);
            let bytes: u64 = plane.pieces.iter().map(Mem::bytes).sum();
            bytes >= 4 * (words * len) as u64
        })
    }

    /// Has room for the first `len` positions.
    pub(crate) fn grow(&mut self, encoder: &mut Encoder, len: usize) {
        let n_heads = self.n_heads;
        let piece_len = self.piece_len;
        for plane in [&mut self.k, &mut self.v] {
            let position = 4 * n_heads * plane.row_words;
            if position == 0 {
                continue;
            }
            for piece in 0..len.div_ceil(piece_len) {
                let wanted = (len - piece * piece_len).min(piece_len);
                let has = plane.pieces.get(piece).map_or(0, |it| it.bytes() as usize / position);
                if has >= wanted {
                    continue;
                }
                let roomy = wanted.next_power_of_two().clamp(FIRST_POSITIONS, piece_len);
                let bytes = (roomy * position) as u64;
                let mem = encoder.storage(bytes, "keys or values");
                match plane.pieces.get_mut(piece) {
                    // The next step asks again.
                    Some(_) if encoder.is_stand_in(&mem) => {}
                    Some(old) => {
                        encoder.copy((old, 0), (&mem, 0), (has * position) as u64);
                        encoder.forget(old);
                        *old = mem;
                    }
                    None => plane.pieces.push(mem),
                }
            }
        }
    }

    /// Forgets all but the first `len` positions and frees whole pieces.
    pub(super) fn truncate(&mut self, encoder: &mut Encoder, len: usize) {
        for plane in [&mut self.k, &mut self.v] {
            for mem in plane.pieces.drain(len.div_ceil(self.piece_len).min(plane.pieces.len())..) {
                encoder.forget(&mem);
            }
        }
    }

    pub(super) fn save(
        &self,
        encoder: &mut Encoder,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError> {
        let mut parts = Vec::new();
        for plane in [&self.k, &self.v] {
            let bytes = 4 * self.position_words(plane);
            if bytes == 0 {
                continue;
            }
            for part in self.parts(positions.clone()) {
                let first = (part.positions.start - part.start) * bytes;
                let len = part.positions.len() * bytes;
                parts.push((&plane.pieces[part.piece], first as u64, len as u64));
            }
        }
        let stored = encoder.read(&parts)?;
        let mut out = Vec::with_capacity(stored.len());
        let mut rest = &stored[..];
        for plane in [&self.k, &self.v] {
            let row = self.dtype.row_bytes(plane.dim);
            let (mine, behind) = rest.split_at(positions.len() * 4 * self.position_words(plane));
            for vector in mine.chunks_exact((4 * plane.row_words).max(1)) {
                out.extend_from_slice(&vector[..row]);
            }
            rest = behind;
        }
        Ok(out)
    }

    pub(super) fn load(&mut self, encoder: &mut Encoder, positions: Range<usize>, bytes: &[u8]) {
        self.grow(encoder, positions.end);
        let mut rest = bytes;
        for plane in [&self.k, &self.v] {
            let row = self.dtype.row_bytes(plane.dim);
            if row == 0 {
                continue;
            }
            let (mine, behind) = rest.split_at(positions.len() * self.n_heads * row);
            rest = behind;
            let mut stored = vec![0; positions.len() * 4 * self.position_words(plane)];
            let vectors = stored.chunks_exact_mut(4 * plane.row_words);
            for (vector, row_bytes) in vectors.zip(mine.chunks_exact(row)) {
                vector[..row].copy_from_slice(row_bytes);
            }
            let position = 4 * self.position_words(plane);
            for part in self.parts(positions.clone()) {
                let at = (part.positions.start - positions.start) * position;
                let bytes = &stored[at..at + part.positions.len() * position];
                let first = (part.positions.start - part.start) * position;
                encoder.write(&plane.pieces[part.piece], first as u64, bytes);
            }
        }
        assert!(rest.is_empty(), "{} bytes too many of keys and values", rest.len());
    }
}
