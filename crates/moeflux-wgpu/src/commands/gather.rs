//! Experts that a kernel gathers from slabs of the host into slots, as `moe/expert_gather.wgsl`
//! reads them.

use moeflux_core::quant::{AffineBias, Float, MatrixFormat};
use moeflux_residency::Packing;

use crate::commands::imports::ImportedRange;
use crate::device::buffer::Mem;
use crate::words::word;

/// What `moe/expert_gather.wgsl` does with a part.
#[derive(Clone, Copy)]
pub(crate) enum GatherMode {
    /// Leaves 16 bytes as they are.
    Wide,
    /// Leaves four bytes as they are.
    Words,
    /// Puts a bias next to each scale, both of 16 bits.
    PairsF16,
    /// Puts a bias next to each scale, both of 32 bits.
    PairsF32,
    /// Puts the scale of all of the matrix before the scales of groups. What follows these pads it.
    AfterGlobalScale,
}

/// Threads of a workgroup of `moe/expert_gather.wgsl`.
pub(crate) const GATHER_THREADS: usize = 256;

/// Words of a source, see `moe/expert_gather.wgsl`.
pub(crate) const SOURCE_WORDS: usize = 20;

/// An expert whose upload by a kernel is recorded before the next command.
#[derive(Debug)]
pub(crate) struct PendingUpload {
    pub(crate) from: Mem,
    pub(crate) to: Mem,
    pub(crate) places: Vec<[u32; 2]>,
    pub(crate) source: [u32; SOURCE_WORDS],
}

impl PendingUpload {
    /// The buffers of an upload: one kernel runs those of equal buffers and layouts.
    pub(crate) fn buffers(&self) -> (u32, u32) {
        (self.from.id, self.to.id)
    }
}

/// Some bytes of a slot, and the words that they come from.
pub(crate) struct Part {
    pub(crate) mode: GatherMode,
    pub(crate) from: [u32; 2],
    pub(crate) to: usize,
    pub(crate) bytes: usize,
}

/// The parts of an expert and where they go; `None` where a kernel cannot gather it.
pub(crate) fn parts(imported: &ImportedRange, packing: &Packing) -> Option<Vec<Part>> {
    let mut all = Vec::new();
    for (matrix, part) in packing.matrices() {
        let (first, scales) = (part.bytes.start, part.scales_at);
        if part.as_stored != scales {
            return None;
        }
        let from = imported.word(matrix.weight)?;
        let mode = if from.is_multiple_of(4) { GatherMode::Wide } else { GatherMode::Words };
        all.push(Part { mode, from: [from, 0], to: first, bytes: scales });
        let bytes = part.bytes.len() - scales;
        if bytes == 0 {
            continue;
        }
        let scale = imported.word(matrix.scales)?;
        let (mode, bias, stored) = match matrix.format {
            MatrixFormat::Affine(affine) if affine.bias == AffineBias::Stored => {
                let mode = if affine.params == Float::F32 {
                    GatherMode::PairsF32
                } else {
                    GatherMode::PairsF16
                };
                (mode, imported.word(matrix.biases)?, 2 * matrix.scales.len)
            }
            MatrixFormat::Micro(micro) if micro.has_global_scale => {
                (GatherMode::AfterGlobalScale, imported.word(matrix.biases)?, bytes)
            }
            _ => (GatherMode::Words, 0, matrix.scales.len),
        };
        // Kernels do not add padding.
        if stored != bytes {
            return None;
        }
        all.push(Part { mode, from: [scale, bias], to: first + scales, bytes });
    }
    Some(all)
}

/// The words of an expert's parts, after `first`: its slot, or the index of its slab.
pub(crate) fn source_words(first: u32, parts: &[Part]) -> [u32; SOURCE_WORDS] {
    let mut words = [0; SOURCE_WORDS];
    words[0] = first;
    for (words, Part { mode, from, .. }) in words[1..].as_chunks_mut::<3>().0.iter_mut().zip(parts)
    {
        *words = [*mode as u32, from[0], from[1]];
    }
    words
}

/// Where parts begin in a slot, and the thread after the last of each, in 16 bytes.
pub(crate) fn places_of(parts: &[Part]) -> Vec<[u32; 2]> {
    let mut end = 0;
    let place = |part: &Part| {
        end += part.bytes / 16;
        [part.to / 16, end].map(word)
    };
    parts.iter().map(place).collect()
}
