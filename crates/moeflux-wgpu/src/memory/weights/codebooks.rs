//! The codebooks of ggml's types on the device.

use std::collections::HashMap;

use moeflux_core::quant::BlockType;

use crate::commands::encoder::Encoder;
use crate::device::buffer::Mem;

/// A buffer for each type that a product has read.
#[derive(Debug, Default)]
pub(crate) struct Codebooks(HashMap<BlockType, Mem>);

impl Codebooks {
    /// The codebook of a type, as `shaders/blocks/` reads it.
    pub(crate) fn of(&mut self, encoder: &mut Encoder, block_type: BlockType) -> Mem {
        if let Some(mem) = self.0.get(&block_type) {
            return mem.clone();
        }
        let bytes = block_type.codebook();
        let mem = encoder.buffers.lasting_storage(bytes.len() as u64, "codebook");
        if !encoder.buffers.is_stand_in(&mem) {
            encoder.context().queue.write_buffer(&mem.buffer, 0, &bytes);
            self.0.insert(block_type, mem.clone());
        }
        mem
    }
}
