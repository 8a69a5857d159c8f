//! Staging buffers of a simulated device: fences are counts of submissions, which pass when a test
//! says so or the host waits.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use moeflux_core::Expert;

use crate::{Packing, Piece, Returned, StagingBuffer, StagingMemory};

/// Experts from this number on are slow to write.
pub(super) const FIRST_SLOW: u16 = 200;

/// How long the first piece of a slow expert takes.
const SLOW: Duration = Duration::from_millis(20);

/// A buffer; clones share it.
#[derive(Clone, Debug)]
pub(super) struct FakeStagingBuffer(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    number: usize,
    bytes: Vec<u8>,
    is_hosts: bool,
}

/// The buffers.
#[derive(Debug)]
pub(super) struct FakeStagingMemory {
    pub(super) shared: Arc<Shared>,
    /// With the fences after which they return, in order.
    in_flight: VecDeque<(u64, FakeStagingBuffer)>,
}

/// What a test sees and sets.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) memory: Cell<u64>,
    pub(super) allocated: Cell<u64>,
    /// The last fence that is passed.
    pub(super) passed: Cell<u64>,
    pub(super) is_lost: Cell<bool>,
    pub(super) reports: RefCell<Vec<String>>,
    pub(super) n_waits: Cell<usize>,
    n_made: Cell<usize>,
}

impl FakeStagingMemory {
    pub(super) fn new(shared: &Arc<Shared>) -> FakeStagingMemory {
        FakeStagingMemory { shared: Arc::clone(shared), in_flight: VecDeque::new() }
    }

    fn take_back(&mut self) -> Option<Returned<FakeStagingBuffer>> {
        let (_, buffer) = self.in_flight.pop_front()?;
        let is_writable = !self.shared.is_lost.get();
        let mut state = buffer.0.lock().unwrap();
        state.is_hosts = is_writable;
        state.bytes.fill(0xdd);
        drop(state);
        Some(Returned { buffer, is_writable })
    }
}

impl FakeStagingBuffer {
    pub(super) fn number(&self) -> usize {
        self.0.lock().unwrap().number
    }

    pub(super) fn is_hosts(&self) -> bool {
        self.0.lock().unwrap().is_hosts
    }

    /// What a command of the device copies.
    pub(super) fn copy(&self, at: u64, len: usize) -> Vec<u8> {
        let state = self.0.lock().unwrap();
        assert!(!state.is_hosts, "the device copies from a buffer of the host");
        state.bytes[at as usize..at as usize + len].to_vec()
    }
}

impl StagingBuffer for FakeStagingBuffer {
    fn bytes(&self) -> u64 {
        self.0.lock().unwrap().bytes.len() as u64
    }

    fn write(
        &self,
        at: u64,
        expert: &Expert,
        packing: &Packing,
        piece: &Piece,
    ) -> Result<(), String> {
        if expert.key.expert.0 >= FIRST_SLOW && piece.matrix == 0 && piece.bytes.start == 0 {
            thread::sleep(SLOW);
        }
        let mut state = self.0.lock().unwrap();
        if !state.is_hosts {
            return Err(String::from("a buffer of the device is written"));
        }
        let packed = packed_matrix(expert, packing, piece.matrix);
        let first = at as usize + packing.parts()[piece.matrix].bytes.start;
        let to = first + piece.bytes.start..first + piece.bytes.end;
        state.bytes[to].copy_from_slice(&packed[piece.bytes.clone()]);
        Ok(())
    }
}

/// A matrix as a slot stores it: the record's bytes, then padding.
fn packed_matrix(expert: &Expert, packing: &Packing, matrix: usize) -> Vec<u8> {
    let mut packed = expert.part(packing.matrix(matrix).weight).to_vec();
    packed.resize(packing.parts()[matrix].bytes.len(), 0xee);
    packed
}

/// An expert as a slot stores it.
pub(super) fn packed_expert(expert: &Expert, packing: &Packing) -> Vec<u8> {
    (0..packing.parts().len()).flat_map(|nth| packed_matrix(expert, packing, nth)).collect()
}

impl StagingMemory for FakeStagingMemory {
    type Buffer = FakeStagingBuffer;
    type Fence = u64;

    fn try_allocate(&self, bytes: u64) -> Option<FakeStagingBuffer> {
        let allocated = self.shared.allocated.get() + bytes;
        if allocated > self.shared.memory.get() {
            return None;
        }
        self.shared.allocated.set(allocated);
        let number = self.shared.n_made.replace(self.shared.n_made.get() + 1);
        let len = usize::try_from(bytes).unwrap();
        let state = State { number, bytes: vec![0xdd; len], is_hosts: true };
        Some(FakeStagingBuffer(Arc::new(Mutex::new(state))))
    }

    fn free(&self, buffer: FakeStagingBuffer) {
        assert!(buffer.is_hosts(), "a buffer of the device is freed");
        self.shared.allocated.set(self.shared.allocated.get() - buffer.bytes());
    }

    fn pass_to_device(&self, buffer: &FakeStagingBuffer) {
        let mut state = buffer.0.lock().unwrap();
        assert!(state.is_hosts, "passed twice");
        state.is_hosts = false;
    }

    fn return_after(&mut self, buffer: &FakeStagingBuffer, fence: &u64) {
        self.in_flight.push_back((*fence, buffer.clone()));
    }

    fn poll_returned(&mut self) -> Option<Returned<FakeStagingBuffer>> {
        let (fence, _) = self.in_flight.front()?;
        if *fence > self.shared.passed.get() { None } else { self.take_back() }
    }

    fn wait_returned(&mut self, fence: &u64) -> Result<Returned<FakeStagingBuffer>, String> {
        self.shared.n_waits.set(self.shared.n_waits.get() + 1);
        if self.shared.is_lost.get() {
            return Err(String::from("the device is gone"));
        }
        self.shared.passed.set(self.shared.passed.get().max(*fence));
        self.take_back().ok_or_else(|| String::from("no buffer is to return"))
    }

    fn report_lost(&self, reason: String) {
        self.shared.reports.borrow_mut().push(reason);
    }
}
