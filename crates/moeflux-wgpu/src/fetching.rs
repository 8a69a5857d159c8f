//! Experts that a kernel brings from slabs to slots, as `fetch.wgsl` reads them.

use moeflux_core::quant::{Float, MatrixFormat};

use crate::buffer::Mem;
use crate::imports::Lying;
use crate::packing::Packing;

/// What `fetch.wgsl` does with a part.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// Leaves 16 bytes as they are.
    Wide,
    /// The same, four bytes at a time.
    Words,
    /// Puts a bias beside each scale, both of 16 bits.
    Halves,
    /// The same of 32 bits.
    Singles,
}

/// Threads of a workgroup of `fetch.wgsl`.
pub(crate) const FETCHING_THREADS: usize = 256;

/// Words of a source, see `fetch.wgsl`.
pub(crate) const SOURCE_WORDS: usize = 20;

/// An expert that a kernel is to bring from a slab to a slot.
#[derive(Debug)]
pub(crate) struct Coming {
    pub(crate) from: Mem,
    pub(crate) to: Mem,
    pub(crate) places: Vec<[u32; 2]>,
    pub(crate) source: [u32; SOURCE_WORDS],
}

impl Coming {
    /// Tells those that one kernel brings from others, but for their layouts.
    pub(crate) fn ways(&self) -> (u32, u32) {
        (self.from.id, self.to.id)
    }
}

/// Some bytes of a slot, and the words that they come from.
pub(crate) struct Part {
    pub(crate) way: Way,
    pub(crate) from: [u32; 2],
    pub(crate) to: usize,
    pub(crate) bytes: usize,
}

/// What has to be brought where, if a kernel can do it.
pub(crate) fn parts(lying: &Lying, packing: &Packing) -> Option<Vec<Part>> {
    let mut all = Vec::new();
    for nth in 0..packing.n_matrices() {
        let matrix = packing.matrix(nth);
        let (range, scales) = packing.part(nth);
        if packing.as_stored(nth) != scales {
            return None;
        }
        let from = lying.word(matrix.weight)?;
        let way = if from.is_multiple_of(4) { Way::Wide } else { Way::Words };
        all.push(Part { way, from: [from, 0], to: range.start, bytes: scales });
        let bytes = range.len() - scales;
        if bytes == 0 {
            continue;
        }
        let scale = lying.word(matrix.scales)?;
        let (way, bias, stored) = match matrix.format {
            MatrixFormat::Affine(it) => {
                let way = if it.params == Float::F32 { Way::Singles } else { Way::Halves };
                (way, lying.word(matrix.biases)?, 2 * matrix.scales.len)
            }
            _ => (Way::Words, 0, matrix.scales.len),
        };
        // Nothing is filled up.
        if stored != bytes {
            return None;
        }
        all.push(Part { way, from: [scale, bias], to: range.start + scales, bytes });
    }
    Some(all)
}

/// The words of an expert's parts, behind one that says where it goes, or is.
pub(crate) fn source_words(first: u32, parts: &[Part]) -> [u32; SOURCE_WORDS] {
    let mut words = [0; SOURCE_WORDS];
    words[0] = first;
    for (words, Part { way, from, .. }) in words[1..].as_chunks_mut::<3>().0.iter_mut().zip(parts) {
        *words = [*way as u32, from[0], from[1]];
    }
    words
}

/// Where parts begin in a slot, and the thread behind the last of each, in 16 bytes.
pub(crate) fn places_of(parts: &[Part]) -> Vec<[u32; 2]> {
    let mut end = 0;
    let place = |it: &Part| {
        end += it.bytes / 16;
        [it.to / 16, end].map(word)
    };
    parts.iter().map(place).collect()
}

fn word(it: usize) -> u32 {
    u32::try_from(it).expect("kernels count in 32 bits")
}
