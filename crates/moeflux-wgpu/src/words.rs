//! Small helpers that most ops share.

use moeflux_backend::Span;

/// Threads of a workgroup whose threads have an element each.
pub(crate) const ELEMENTS: usize = 64;

/// Threads of a workgroup of `include/main_per_element.wgsl`.
pub(crate) const PER_ELEMENT: usize = 256;

/// From this many elements on, norms of heads have more threads.
const WIDE: usize = 512;

/// Threads of the norm of a head of this many elements.
pub(crate) fn norm_threads(head_dim: usize) -> usize {
    if head_dim >= WIDE { 256 } else { ELEMENTS }
}

/// A count or place, as kernels take it.
pub(crate) fn word(n: usize) -> u32 {
    u32::try_from(n).expect("kernels count in 32 bits")
}

/// The bytes of a read-back as integers.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// The bytes of a read-back as floats.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Rows of all spans together.
pub(crate) fn n_rows(spans: &[Span]) -> usize {
    spans.last().map_or(0, |span| span.rows.end)
}
