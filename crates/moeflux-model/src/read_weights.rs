//! Reads resident weights on several threads, and refuses those that are no finite numbers.

use std::thread;

use moeflux_core::SourceFile;
use moeflux_core::checkpoint::{Checkpoint, Extent, FormatError, MatrixBytes, MatrixSource};
use moeflux_core::quant::Encoding;
use moeflux_core::threads::share_out;

/// From this many bytes on another thread is worth its start.
const PART_BYTES: usize = 1 << 20;

/// Threads that read one matrix: copies from the page cache are what takes time.
const MAX_THREADS: usize = 8;

/// Fills `out` from an extent of the checkpoint's files. What was read is checked while it is in
/// the processor's cache, if its encoding can hold anything but finite numbers.
///
/// # Errors
/// Where the file does not open or ends too early; [`FormatError::NotFinite`].
pub(crate) fn read_weights(
    checkpoint: &Checkpoint,
    extent: Extent,
    encoding: Option<Encoding>,
    out: &mut [u8],
) -> Result<(), FormatError> {
    let unit = encoding.map_or(1, Encoding::unit_bytes);
    let part_bytes = PART_BYTES / unit * unit;
    let n_cores = thread::available_parallelism().map_or(1, usize::from);
    let read = |(idx, part): (usize, &mut [u8])| {
        let offset = extent.offset + (idx * part_bytes) as u64;
        checkpoint.reader().read_at(extent.file, offset, part)?;
        let Some(encoding) = encoding else { return Ok(()) };
        let extent = Extent { offset, len: part.len(), ..extent };
        checkpoint.check_finite(checkpoint.files(), encoding, extent, part)
    };
    let parts: Vec<(usize, &mut [u8])> = out.chunks_mut(part_bytes).enumerate().collect();
    share_out(n_cores.min(MAX_THREADS), parts, read).into_iter().collect()
}

/// Checks the parts of a matrix that was read whole, or some of its rows, from one of `files`.
///
/// # Errors
/// [`FormatError::NotFinite`].
pub fn check_finite_matrix(
    checkpoint: &Checkpoint,
    files: &[SourceFile],
    source: &MatrixSource,
    bytes: &MatrixBytes,
) -> Result<(), FormatError> {
    let extents = [source.weight, source.scales, source.biases];
    let parts = [&bytes.weight, &bytes.scales, &bytes.biases];
    for ((encoding, extent), part) in source.format.encodings().into_iter().zip(extents).zip(parts)
    {
        if let Some(encoding) = encoding {
            checkpoint.check_finite(files, encoding, extent, part)?;
        }
    }
    Ok(())
}
