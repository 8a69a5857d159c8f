//! Small helpers that most ops share.

use moeflux_backend::Span;

/// Threads of a workgroup whose threads have an element each.
pub(crate) const ELEMENTS: usize = 64;

/// A count or place, as kernels take it.
pub(crate) fn word(it: usize) -> u32 {
    u32::try_from(it).expect("kernels count in 32 bits")
}

/// The bytes of a read-back as floats.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
}

/// Rows of all spans together.
pub(crate) fn n_rows(spans: &[Span]) -> usize {
    spans.last().map_or(0, |it| it.rows.end)
}
