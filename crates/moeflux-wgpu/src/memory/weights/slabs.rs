//! Weights on the device: how their bytes are stored there, and where there is room.
//!
//! A matrix is rows of blocks of 32 columns, the last padded with zeros, and its scales, with the
//! bias next to each where there are biases; see `include/formats.wgsl`. A matrix that no binding
//! holds is cut into pieces, by rows.

use std::sync::Arc;

use moeflux_backend::ActivationPrecision;
use moeflux_core::quant::{MatrixFormat, MatrixView};
use wgpu::PollType;

use crate::commands::encoder::Encoder;
use crate::commands::upload::upload_bytes;
use crate::device::buffer::Mem;
use crate::layouts::format::{ALIGN, Decoder, Packed, place, sizes, turn_round};
use crate::memory::weights::matrix::{Matrix, Piece};

/// Buffers that weights share, so that kernels find those of a layer in one.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    last: Option<(Mem, usize)>,
    /// Bytes of the next one.
    next_bytes: usize,
    /// Bytes written since the device was last waited for.
    written: u64,
}

const FIRST_SLAB: usize = 1 << 20;
const LAST_SLAB: usize = 256 << 20;

/// From this many bytes on threads write them into mapped buffers.
const LEAST_STAGED: usize = 1 << 20;

/// Bytes on their way to the device at a time that wgpu keeps.
const IN_FLIGHT: u64 = 64 << 20;

impl Slabs {
    /// Room for some bytes: the buffer and the first byte.
    fn take(&mut self, encoder: &mut Encoder, bytes: usize) -> (Mem, usize) {
        if let Some((mem, used)) = &mut self.last
            && *used + bytes <= usize::try_from(mem.bytes()).unwrap_or(usize::MAX)
        {
            let at = *used;
            *used += bytes;
            return (mem.clone(), at);
        }
        let most = encoder.context().max_binding_bytes();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let slab = self.next_bytes.clamp(FIRST_SLAB, LAST_SLAB).min(most);
        self.next_bytes = 2 * slab;
        if bytes > slab / 2 {
            return (encoder.buffers.lasting_storage(bytes as u64, "weights"), 0);
        }
        let mem = encoder.buffers.lasting_storage(slab as u64, "weights");
        self.last = Some((mem.clone(), bytes));
        (mem, 0)
    }

    /// Writes bytes to a place that is a multiple of [`ALIGN`].
    fn write(&mut self, encoder: &mut Encoder, mem: &Mem, at: usize, bytes: &[u8]) {
        let n_staged = if bytes.len() < LEAST_STAGED { 0 } else { bytes.len() / ALIGN * ALIGN };
        let (staged, rest) = bytes.split_at(n_staged);
        if upload_bytes(encoder, staged, mem.at(at as u64)) {
            self.write_few(encoder, mem, at + n_staged, rest);
        } else {
            self.write_few(encoder, mem, at, bytes);
        }
    }

    /// Writes bytes of which wgpu keeps a copy until they are on the device.
    fn write_few(&mut self, encoder: &mut Encoder, mem: &Mem, at: usize, bytes: &[u8]) {
        if encoder.buffers.is_out_of_memory() {
            return;
        }
        let context = Arc::clone(encoder.context());
        for (i, part) in bytes.chunks(IN_FLIGHT as usize).enumerate() {
            let at = at + i * IN_FLIGHT as usize;
            // Copies are whole words; all parts but the last are.
            let whole = part.len() / 4 * 4;
            if whole > 0 {
                context.queue.write_buffer(&mem.buffer, at as u64, &part[..whole]);
            }
            if whole < part.len() {
                let mut word = [0; 4];
                word[..part.len() - whole].copy_from_slice(&part[whole..]);
                context.queue.write_buffer(&mem.buffer, (at + whole) as u64, &word);
            }
            self.written += part.len() as u64;
            if self.written >= IN_FLIGHT {
                self.written = 0;
                encoder.submit_writes();
                // What fails shows at the next read-back.
                let _ = context.device.poll(PollType::wait_indefinitely());
            }
        }
    }

    /// Takes a matrix.
    pub(crate) fn load(
        &mut self,
        encoder: &mut Encoder,
        view: &MatrixView<'_>,
        inputs: ActivationPrecision,
    ) -> Matrix {
        let turned;
        let mut view = *view;
        if let MatrixFormat::Transposed(float) = view.format {
            turned = turn_round(&view, float);
            view.format = MatrixFormat::Dense(float);
            view.weight = &turned;
        }
        let most = encoder.context().max_binding_bytes();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let (bytes, _) = sizes(&view);
        let n_pieces = bytes.div_ceil(most - most / 16).max(1);
        let rows = view.rows.div_ceil(n_pieces).next_multiple_of(64).min(view.rows.max(1));
        let mut pieces = Vec::with_capacity(n_pieces);
        for first in (0..view.rows).step_by(rows) {
            let rows = first..view.rows.min(first + rows);
            let part = view.slice_rows(first, rows.len());
            let (bytes, scales) = sizes(&part);
            let (mem, at) = self.take(encoder, bytes);
            let packed = Packed::new(&part);
            self.write(encoder, &mem, at, &packed.elements);
            self.write(encoder, &mem, at + scales, &packed.scales);
            let phase = match part.format {
                MatrixFormat::Blocks(it) => it.phase,
                _ => 0,
            };
            pieces.push(Piece { mem, rows, place: place(at, scales), phase });
        }
        let decoder = Decoder::new(view.format);
        Matrix { rows: view.rows, cols: view.cols, decoder, inputs, pieces }
    }
}
