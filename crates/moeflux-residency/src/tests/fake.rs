//! A device whose memory is a table: which expert was copied into which slot.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use moeflux_core::quant::{Float, MatrixFormat};
use moeflux_core::{
    Expert, ExpertId, ExpertKey, ExpertLayout, ExpertMemory, GateUp, HostBuf, LayerIdx,
    MatrixLayout, PartSpan,
};

use crate::{LayerMemory, MatrixBytes, Packing, ResidentLayer, Slot, SlotMemory};

/// A buffer of the device, by its number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FakeBuffer(u32);

/// What a layer's slots held when its tables were made.
#[derive(Debug)]
pub(super) struct FakeTables(pub(super) Vec<Option<Slot<FakeBuffer>>>);

/// The device.
#[derive(Debug, Default)]
pub(super) struct FakeDevice {
    /// Bytes that it has.
    pub(super) memory: Cell<u64>,
    /// Bytes of each buffer that is allocated.
    buffers: RefCell<BTreeMap<u32, u64>>,
    n_allocated: Cell<u32>,
    /// By buffer and byte, what was copied there.
    contents: BTreeMap<(u32, usize), Content>,
    pub(super) max_buffer_bytes: u64,
    pub(super) fetches_missing: bool,
    pub(super) refuses_uploads: bool,
    pub(super) refuses_tables: bool,
    /// Allocations that failed and that the next read-back reports.
    pub(super) n_reported: usize,
    pub(super) n_uploads: usize,
    pub(super) retained: Vec<ExpertKey>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    Expert(ExpertKey, usize),
    Shared(usize),
}

impl FakeDevice {
    pub(super) fn with_memory(bytes: u64) -> FakeDevice {
        FakeDevice {
            memory: Cell::new(bytes),
            max_buffer_bytes: u64::MAX,
            fetches_missing: true,
            ..FakeDevice::default()
        }
    }

    /// Bytes of all buffers.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.buffers.borrow().values().sum()
    }

    pub(super) fn n_buffers(&self) -> usize {
        self.buffers.borrow().len()
    }

    /// The expert in a slot.
    pub(super) fn expert_in(&self, slot: &Slot<FakeBuffer>) -> Option<ExpertKey> {
        match self.contents.get(&(slot.buffer.0, slot.at)) {
            Some(Content::Expert(key, _)) => Some(*key),
            _ => None,
        }
    }

    /// Whether a slot has a copy of the shared expert.
    pub(super) fn has_shared(&self, slot: &Slot<FakeBuffer>) -> bool {
        matches!(self.contents.get(&(slot.buffer.0, slot.at)), Some(Content::Shared(_)))
    }

    /// Has the device exchange what is in a slot, as it does where it routes by itself.
    pub(super) fn replace(&mut self, slot: &Slot<FakeBuffer>, key: ExpertKey, bytes: usize) {
        self.put(slot, Content::Expert(key, bytes));
    }

    /// Copies into a slot, which must be inside its buffer and cover no part of another.
    fn put(&mut self, slot: &Slot<FakeBuffer>, content: Content) {
        let len = |content: Content| match content {
            Content::Expert(_, bytes) | Content::Shared(bytes) => bytes,
        };
        let end = slot.at + len(content);
        let bytes = self.buffers.borrow()[&slot.buffer.0];
        assert!(end as u64 <= bytes, "byte {end} of a buffer of {bytes}");
        for ((buffer, at), other) in &self.contents {
            let is_apart = *buffer != slot.buffer.0 || *at == slot.at;
            assert!(is_apart || *at >= end || at + len(*other) <= slot.at, "slots overlap");
        }
        self.contents.insert((slot.buffer.0, slot.at), content);
    }
}

impl SlotMemory for FakeDevice {
    type Buffer = FakeBuffer;

    fn max_buffer_bytes(&self) -> u64 {
        self.max_buffer_bytes
    }

    fn try_allocate(&self, bytes: u64) -> Option<FakeBuffer> {
        assert!(bytes > 0 && bytes <= self.max_buffer_bytes, "a buffer of {bytes} bytes");
        if self.allocated_bytes() + bytes > self.memory.get() {
            return None;
        }
        let number = self.n_allocated.get();
        self.n_allocated.set(number + 1);
        self.buffers.borrow_mut().insert(number, bytes);
        Some(FakeBuffer(number))
    }

    fn allocate_or_report(&mut self, bytes: u64) -> Option<FakeBuffer> {
        let buffer = self.try_allocate(bytes);
        self.n_reported += usize::from(buffer.is_none());
        buffer
    }

    fn free_unused(&self, buffer: FakeBuffer) {
        assert!(self.contents.keys().all(|(used, _)| *used != buffer.0), "the buffer is used");
        assert!(self.buffers.borrow_mut().remove(&buffer.0).is_some(), "freed twice");
    }

    fn free_after_use(&mut self, buffer: &FakeBuffer) {
        self.contents.retain(|(used, _), _| *used != buffer.0);
        assert!(self.buffers.borrow_mut().remove(&buffer.0).is_some(), "freed twice");
    }

    fn pack(&self, layout: &Arc<ExpertLayout>) -> Packing {
        pack(layout)
    }

    fn upload(
        &mut self,
        expert: &Arc<Expert>,
        packing: &Arc<Packing>,
        slot: &Slot<FakeBuffer>,
    ) -> bool {
        if self.refuses_uploads {
            return false;
        }
        self.n_uploads += 1;
        self.put(slot, Content::Expert(expert.key, packing.bytes()));
        true
    }

    fn retain(&mut self, expert: &Arc<Expert>) {
        self.retained.push(expert.key);
    }
}

impl LayerMemory for FakeDevice {
    type SharedExpert = usize;
    type Tables = FakeTables;

    fn fetches_missing(&self) -> bool {
        self.fetches_missing
    }

    fn is_stored_alike(&self, shared_bytes: &usize, packing: &Packing) -> bool {
        *shared_bytes == packing.bytes()
    }

    fn copy_shared(&mut self, shared_bytes: &usize, _: &Packing, slot: &Slot<FakeBuffer>) {
        self.put(slot, Content::Shared(*shared_bytes));
    }

    fn build_tables(
        &mut self,
        layer: &ResidentLayer<FakeBuffer, FakeTables>,
    ) -> Option<FakeTables> {
        (!self.refuses_tables).then(|| FakeTables(layer.slots().to_vec()))
    }

    fn free_tables(&mut self, _: &FakeTables) {}
}

/// Rows and columns of the square matrices of a layer's experts: layers 0 and 2 are alike, 1 and 3 are
/// larger.
fn width(layer: u16) -> usize {
    [32, 48, 32, 96][usize::from(layer)]
}

/// The layout of the experts of a layer: floats, stored as in the record.
pub(super) fn layout(layer: u16) -> Arc<ExpertLayout> {
    let width = width(layer);
    let len = 4 * width * width;
    let nothing = PartSpan { extent: 0, offset: 0, len: 0 };
    let matrix = |nth: usize| MatrixLayout {
        rows: width,
        cols: width,
        format: MatrixFormat::Dense(Float::F32),
        weight: PartSpan { extent: 0, offset: nth * len, len },
        scales: nothing,
        biases: nothing,
    };
    let gate_up = GateUp::Split { gate: matrix(0), up: matrix(1) };
    Arc::new(ExpertLayout { extents: vec![3 * len], gate_up, down: matrix(2) })
}

/// Slots store matrices as their records do, and padding after each.
pub(super) fn pack(layout: &Arc<ExpertLayout>) -> Packing {
    Packing::new(layout, 1000, |matrix| {
        let len = matrix.weight.len;
        MatrixBytes { len: len + PADDING, scales_at: len, as_stored: len }
    })
}

/// Bytes after a matrix in a slot.
const PADDING: usize = 256;

pub(super) fn key(layer: u16, expert: u16) -> ExpertKey {
    ExpertKey { layer: LayerIdx(layer), expert: ExpertId(expert) }
}

/// An expert whose bytes tell it from others.
pub(super) fn expert(layer: u16, expert: u16) -> Arc<Expert> {
    let layout = layout(layer);
    let mut buf = HostBuf::zeroed(layout.record_bytes());
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = (i as u8).wrapping_mul(31).wrapping_add(expert as u8).wrapping_add(7 * layer as u8);
    }
    let memory = ExpertMemory::Owned { buf, starts: vec![0] };
    Arc::new(Expert { key: key(layer, expert), layout, memory })
}

/// Bytes of a slot for experts of a layer.
pub(super) fn slot_bytes(layer: u16) -> usize {
    pack(&layout(layer)).bytes()
}
