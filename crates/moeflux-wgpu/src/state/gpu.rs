//! What the backend holds on the device.

use std::sync::Arc;

use moeflux_backend::{
    ActivationPrecision, Buf, Cache, Sequence, Span, StateSnapshot, Vector, Weight,
};
use moeflux_residency::ExpertSlots;

use crate::commands::encoder::Encoder;
use crate::device::buffer::Mem;
use crate::device::context::Context;
use crate::device::imports::host_access::HostAccess;
use crate::layouts::format::Decoder;
use crate::layouts::product::{F16Tiles, Form, Layout, Tiles};
use crate::memory::caches::cache::{CacheState, Pools};
use crate::memory::caches::state_slots::State;
use crate::memory::weights::codebooks::Codebooks;
use crate::memory::weights::host_buffers::HostBuffers;
use crate::memory::weights::matrix::Matrix;
use crate::memory::weights::slabs::Slabs;
use crate::state::chain::Chain;
use crate::state::mask::Mask;
use crate::state::quantized_inputs::{QuantizedInputs, Wanted};
use crate::state::rope_table::RopeTables;
use crate::state::scratch::Scratch;

const PART_BYTES: usize = 64 << 20;

/// Rows of `f32`.
#[derive(Clone, Debug)]
pub(crate) struct Activations {
    pub(crate) mem: Mem,
    pub(crate) width: usize,
    /// Grows with every write.
    pub(crate) version: u64,
    /// How products wanted it rounded the last time.
    pub(crate) wanted: Option<Wanted>,
}

/// Queries of all heads from which on those that attend to the same keys read these once.
pub(crate) const MANY_QUERIES: usize = 2048;

/// A GPU and everything resident on it.
#[derive(Debug)]
pub struct Wgpu {
    pub(crate) encoder: Encoder,
    pub(crate) bufs: Vec<Activations>,
    pub(crate) matrices: Vec<Matrix>,
    pub(crate) vectors: Vec<Mem>,
    pub(crate) ropes: Vec<RopeTables>,
    /// By `Sequence`; `None` where one was dropped.
    pub(crate) sequences: Vec<Option<Vec<CacheState>>>,
    pub(crate) pools: Pools,
    /// States that are kept on the way.
    pub(crate) keep: Vec<StateSnapshot>,
    pub(crate) selections: Vec<Mask>,
    pub(crate) slots: ExpertSlots<Encoder>,
    pub(crate) rounded: QuantizedInputs,
    pub(crate) scratch: Scratch,
    /// What the last kernel does, where the next op may go along.
    pub(crate) chain: Option<Chain>,
    /// Histories that a step recorded ahead exchanges.
    pub(crate) swapped: Vec<(Sequence, Cache)>,
    /// Whether kernels stand for several where they can.
    pub(crate) fuses: bool,
    /// Bytes of gates and ups that are computed together, where the device
    /// chooses experts for many rows.
    pub(crate) part_bytes: usize,
    /// Of matrix-vector products, where it was fixed.
    pub(crate) layout: Option<Layout>,
    /// The form of all layouts, where it was fixed.
    pub(crate) form: Option<Form>,
    /// By what products with many rows are computed.
    pub(crate) tiles: Tiles,
    /// How attention on cooperative matrices takes its inputs: as one half each, unless they are
    /// to stay as they are.
    pub(crate) attention_inputs: ActivationPrecision,
    /// How cooperative matrices share products out, where it was fixed.
    pub(crate) f16_tiles: Option<F16Tiles>,
    /// Queries of all heads from which on those that attend to the same keys read
    /// these once for all of them.
    pub(crate) least_shared_queries: usize,
    pub(crate) slabs: Slabs,
    /// Memory of the host for dense weights that are loaded next.
    pub(crate) spare: HostBuffers,
    pub(crate) codebooks: Codebooks,
}

impl Wgpu {
    /// A backend whose products with many rows are computed by `tiles`.
    pub(crate) fn with_tiles(context: Arc<Context>, slot_bytes: Option<u64>, tiles: Tiles) -> Wgpu {
        let mut encoder = Encoder::new(Arc::clone(&context));
        if slot_bytes != Some(0) && encoder.uploads.host_access == HostAccess::InPlace {
            encoder.uploads.host_access = HostAccess::Fetched;
        }
        Wgpu {
            tiles,
            attention_inputs: ActivationPrecision::F32,
            f16_tiles: None,
            least_shared_queries: MANY_QUERIES,
            chain: None,
            swapped: Vec::new(),
            fuses: context.has_many_bindings(),
            encoder,
            bufs: Vec::new(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            ropes: Vec::new(),
            sequences: Vec::new(),
            keep: Vec::new(),
            pools: Pools::default(),
            selections: Vec::new(),
            slots: ExpertSlots::new(slot_bytes.unwrap_or(u64::MAX)),
            rounded: QuantizedInputs::default(),
            scratch: Scratch::default(),
            part_bytes: PART_BYTES,
            layout: None,
            form: None,
            slabs: Slabs::default(),
            spare: HostBuffers::default(),
            codebooks: Codebooks::default(),
        }
    }

    /// Lays matrix-vector products out like this, as far as each allows,
    /// whatever suits them; with `None` as suits them.
    pub fn fix_layout(&mut self, layout: Option<Layout>) {
        self.layout = layout;
    }

    /// Computes matrix-vector products in this form, as far as it is exact; with
    /// `None` in the one that suits them.
    pub fn fix_form(&mut self, form: Option<Form>) {
        self.form = form;
    }

    /// Computes products with many rows by these, where the device can.
    pub fn fix_tiles(&mut self, tiles: Tiles) {
        let context = self.encoder.context();
        let can = match tiles {
            Tiles::F32 => true,
            Tiles::Emulated => context.has_f16,
            Tiles::CoopMatrix => context.has_coop_matrix,
        };
        self.tiles = if can { tiles } else { Tiles::F32 };
    }

    pub(crate) fn buf(&self, buf: Buf) -> &Activations {
        &self.bufs[buf.0 as usize]
    }

    /// The buffer, about to be written.
    pub(crate) fn written(&mut self, buf: Buf) -> Activations {
        let activations = &mut self.bufs[buf.0 as usize];
        activations.version += 1;
        activations.clone()
    }

    pub(crate) fn vector(&self, vector: Vector) -> &Mem {
        &self.vectors[vector.0 as usize]
    }

    pub(crate) fn matrix(&self, weight: Weight) -> &Matrix {
        &self.matrices[weight.0 as usize]
    }

    /// What kernels bind next to weights: their type's codebook or, as vectors of words, themselves.
    pub(crate) fn weights_or_codebook(&mut self, decoder: Decoder, weights: &Mem) -> Mem {
        match decoder.block_type().filter(|block_type| block_type.has_codebook()) {
            Some(block_type) => self.codebooks.of(&mut self.encoder, block_type),
            None => weights.clone(),
        }
    }

    pub(crate) fn cache(&mut self, sequence: Sequence, cache: Cache) -> &mut CacheState {
        let caches = self.sequences[sequence.0 as usize].as_mut();
        &mut caches.expect("the sequence exists")[cache.0 as usize]
    }

    /// Where a recurrent cache is.
    pub(crate) fn state(&self, sequence: Sequence, cache: Cache) -> State {
        let caches = self.sequences[sequence.0 as usize].as_ref();
        match &caches.expect("the sequence exists")[cache.0 as usize] {
            CacheState::Recurrent(slot) => self.pools.state_slots.state(slot),
            CacheState::Kv(_) => panic!("keys and values are no state"),
        }
    }

    /// Has room for the states of spans; false where there is no memory.
    pub(crate) fn take_state_slots(&mut self, spans: &[Span], caches: &[Cache]) -> bool {
        let Wgpu { encoder, pools, sequences, .. } = self;
        for span in spans.iter().filter(|span| !span.rows.is_empty()) {
            let all = sequences[span.sequence.0 as usize].as_mut().expect("the sequence exists");
            for cache in caches {
                let CacheState::Recurrent(slot) = &mut all[cache.0 as usize] else {
                    panic!("keys and values are no state")
                };
                if !pools.state_slots.take(encoder, slot) {
                    return false;
                }
            }
        }
        true
    }

    pub(crate) fn caches(&mut self, sequence: Sequence) -> Vec<CacheState> {
        self.sequences[sequence.0 as usize].take().unwrap_or_default()
    }
}
