//! Memory for records: page-aligned buffers and mapped files. No other file of this crate needs
//! `unsafe`.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// Alignment and granularity of every buffer in bytes, suitable for direct I/O.
pub const PAGE_BYTES: usize = 4096;

/// Size of a huge page in bytes. Memory of at least this length is aligned for huge pages.
const HUGE_BYTES: usize = 2 << 20;

/// The system gave no memory for an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {} cannot be allocated", crate::show_bytes(*bytes))]
pub struct OutOfMemory {
    /// Bytes that were requested.
    pub bytes: u64,
}

/// Runs `work`. If an allocation in it fails, returns its error: [`HostBuf::zeroed`] and
/// [`HostSlab::new`] unwind to this call, because the ops that call them return nothing. Changes
/// that `work` made may then be incomplete.
///
/// # Errors
/// [`OutOfMemory`] if an allocation in `work` failed.
///
/// # Panics
/// If `work` panics.
pub fn catch_out_of_memory<T>(work: impl FnOnce() -> T) -> Result<T, OutOfMemory> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        match payload.downcast::<OutOfMemory>() {
            Ok(err) => *err,
            Err(payload) => resume_unwind(payload),
        }
    })
}

/// Unwinds to [`catch_out_of_memory`] without reporting a panic.
fn unwind(err: OutOfMemory) -> ! {
    resume_unwind(Box::new(err))
}

/// A page-aligned byte buffer with one owner.
///
/// To start a read, the buffer is moved into the reader; after the read it is moved back. So no two
/// threads see the same bytes at once.
#[derive(Debug)]
pub struct HostBuf {
    /// Invariant: `len` bytes of `region` that belong to no other buffer.
    ptr: NonNull<u8>,
    len: usize,
    /// Keeps the bytes mapped.
    region: Arc<Region>,
}

/// Keeps the memory of a slab mapped while a device has it mapped. It gives no access to the bytes,
/// which belong to the slab's buffers.
#[derive(Clone, Debug)]
pub struct SlabGuard {
    _map: Arc<memmap2::MmapMut>,
    first: NonNull<u8>,
    len: usize,
    users: Weak<Region>,
}

// SAFETY: nothing here reads through `first`; code that does must justify it.
unsafe impl Send for SlabGuard {}
// SAFETY: nothing here reads through `first`; code that does must justify it.
unsafe impl Sync for SlabGuard {}

/// Memory of the process, unmapped when its last buffer and guard are dropped.
#[derive(Debug)]
struct Region {
    /// Never accessed as a whole: its bytes belong to the buffers.
    map: Arc<memmap2::MmapMut>,
    first: NonNull<u8>,
    len: usize,
}

// SAFETY: `first` is only where buffers begin; each of them guards its bytes.
unsafe impl Send for Region {}
// SAFETY: a shared `Region` gives out no bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates `len` zeroed bytes.
    fn new(len: usize) -> Result<Region, OutOfMemory> {
        let err = OutOfMemory { bytes: len as u64 };
        // Huge pages need memory that is aligned to their size.
        let align = if len >= HUGE_BYTES { HUGE_BYTES } else { PAGE_BYTES };
        let slack = align - PAGE_BYTES;
        let map = memmap2::MmapMut::map_anon(len.checked_add(slack).ok_or(err)?);
        let mut map = map.map_err(|_| err)?;
        let skip = map.as_ptr().align_offset(align).min(slack);
        #[cfg(target_os = "linux")]
        if len >= HUGE_BYTES {
            // Advice: without huge pages the memory has small ones.
            let _ = map.advise_range(memmap2::Advice::HugePage, skip, len);
        }
        let first =
            NonNull::new(map.as_mut_ptr().wrapping_add(skip)).expect("a map has an address");
        Ok(Region { map: Arc::new(map), first, len })
    }
}

impl HostBuf {
    /// Allocates `len` zeroed bytes, rounded up to whole pages. Pages that are
    /// never touched take no memory.
    ///
    /// # Panics
    /// Unwinds to [`catch_out_of_memory`] if the system gives no memory.
    pub fn zeroed(len: usize) -> HostBuf {
        HostBuf::try_zeroed(len).unwrap_or_else(|err| unwind(err))
    }

    /// Allocates `len` zeroed bytes, rounded up to whole pages. Pages that are never touched take
    /// no memory.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub fn try_zeroed(len: usize) -> Result<HostBuf, OutOfMemory> {
        let mut slab = HostSlab::try_new(len)?;
        Ok(slab.carve(len).expect("a slab has room for what it was made for"))
    }
}

impl HostBuf {
    /// Identifies the slab of this buffer among all that exist.
    pub fn slab_id(&self) -> usize {
        self.region.first.addr().get()
    }

    /// Returns a guard that keeps the slab of this buffer mapped.
    pub fn guard(&self) -> SlabGuard {
        let Region { map, first, len } = &*self.region;
        let users = Arc::downgrade(&self.region);
        SlabGuard { _map: Arc::clone(map), first: *first, len: *len, users }
    }

    /// Offset of this buffer in its slab, in bytes.
    pub fn offset_in_slab(&self) -> usize {
        self.ptr.addr().get() - self.region.first.addr().get()
    }

    /// Splits off the bytes from `at` on, which must be the start of a page inside the buffer.
    pub fn split_off(&mut self, at: usize) -> HostBuf {
        let is_inside = 0 < at && at < self.len && at.is_multiple_of(PAGE_BYTES);
        assert!(is_inside, "split of {} bytes at {at}", self.len);
        // SAFETY: `at` is inside the buffer's bytes.
        let ptr = unsafe { self.ptr.add(at) };
        let len = self.len - at;
        self.len = at;
        HostBuf { ptr, len, region: Arc::clone(&self.region) }
    }

    /// Joins a buffer that was split off: its bytes must follow this buffer's.
    pub fn join(&mut self, next: HostBuf) {
        let end = self.ptr.addr().get() + self.len;
        let follows = next.ptr.addr().get() == end && Arc::ptr_eq(&self.region, &next.region);
        assert!(follows, "only what was split off can be put back");
        self.len += next.len;
    }
}

impl SlabGuard {
    /// The start of the slab, which is the start of a page.
    pub fn first(&self) -> NonNull<u8> {
        self.first
    }

    /// Bytes of the slab, a multiple of the page size.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Whether the slab has no buffers left, and none can be made.
    pub fn is_unused(&self) -> bool {
        self.users.strong_count() == 0
    }
}

/// Memory for several adjacent buffers, so that small buffers share huge pages.
#[derive(Debug)]
pub struct HostSlab {
    /// Invariant: no buffer has bytes from `next` on.
    region: Arc<Region>,
    next: usize,
}

impl HostSlab {
    /// Allocates `len` zeroed bytes, rounded up to whole pages.
    ///
    /// # Panics
    /// Unwinds to [`catch_out_of_memory`] if the system gives no memory.
    pub fn new(len: usize) -> HostSlab {
        HostSlab::try_new(len).unwrap_or_else(|err| unwind(err))
    }

    /// Allocates `len` zeroed bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub fn try_new(len: usize) -> Result<HostSlab, OutOfMemory> {
        let pages = len.max(1).checked_next_multiple_of(PAGE_BYTES);
        let region = Region::new(pages.ok_or(OutOfMemory { bytes: len as u64 })?)?;
        Ok(HostSlab { region: Arc::new(region), next: 0 })
    }

    /// A buffer of the next `len` bytes, rounded up to whole pages; `None` if too few are left.
    pub fn carve(&mut self, len: usize) -> Option<HostBuf> {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        if len > self.region.len - self.next {
            return None;
        }
        // SAFETY: `next` is at most the length of the region.
        let ptr = unsafe { self.region.first.add(self.next) };
        self.next += len;
        Some(HostBuf { ptr, len, region: Arc::clone(&self.region) })
    }
}

impl Deref for HostBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        debug_assert!(self.len <= self.region.len, "a buffer lies inside its region");
        // SAFETY: these `len` initialised bytes belong to this buffer alone,
        // and `region` keeps them mapped.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for HostBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

// SAFETY: `HostBuf` owns its bytes the way `Box<[u8]>` does.
unsafe impl Send for HostBuf {}
// SAFETY: a shared `HostBuf` gives out nothing but `&[u8]`.
unsafe impl Sync for HostBuf {}

/// A whole file mapped read-only.
///
/// Just before a caller reads the bytes, it must check that the file still has the length that it
/// was mapped with: pages after the end of a file fault.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps `file` from its first byte to its present end.
    ///
    /// # Errors
    /// The error of the system: no address space, no such device, not a file.
    pub fn map(file: &File) -> io::Result<MappedFile> {
        // SAFETY: the map is read-only and private to this type. Opening a model requires of its
        // owner that no other program writes to its files while they are open.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        // Advice: huge pages, if the file system has them for this file.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(MappedFile { map })
    }

    /// Reads `len` bytes from `offset` into memory before they are accessed.
    ///
    /// # Errors
    /// If the system cannot populate the pages; they are then read when they are accessed.
    pub fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return self.map.advise_range(memmap2::Advice::PopulateRead, offset, len);
        #[cfg(all(unix, not(target_os = "linux")))]
        return self.map.advise_range(memmap2::Advice::WillNeed, offset, len);
        #[cfg(not(unix))]
        {
            let bytes = &self[offset..offset + len];
            for byte in bytes.iter().step_by(PAGE_BYTES).chain(bytes.last()) {
                std::hint::black_box(*byte);
            }
            Ok(())
        }
    }

    /// Gives the pages back to the system; they are read again when they are accessed.
    pub fn release(&self) {
        // SAFETY: the map is shared with a file and read-only: dropped pages hold nothing that
        // the file does not hold.
        #[cfg(unix)]
        let dropped = unsafe { self.map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        // Advice: if it is refused, the pages stay until memory runs short.
        #[cfg(unix)]
        let _ = dropped;
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_a_slab_are_disjoint_and_outlive_it() {
        let mut slab = HostSlab::new(3 * PAGE_BYTES);
        let mut bufs: Vec<HostBuf> = (0..3).map(|_| slab.carve(100).unwrap()).collect();
        assert!(slab.carve(1).is_none());
        drop(slab);
        for (i, buf) in bufs.iter_mut().enumerate() {
            assert!(buf.iter().all(|byte| *byte == 0));
            buf.fill(u8::try_from(i).unwrap());
        }
        for (i, buf) in bufs.iter().enumerate() {
            assert!(buf.len() == PAGE_BYTES && buf.iter().all(|byte| usize::from(*byte) == i));
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_and_no_panic() {
        for len in [1 << 60, usize::MAX] {
            let want = OutOfMemory { bytes: (len as u64).next_multiple_of(1) };
            assert!(HostBuf::try_zeroed(len).is_err());
            let got = catch_out_of_memory(|| HostBuf::zeroed(len)).map(|_| ());
            assert_eq!(got, Err(want));
        }
        assert_eq!(catch_out_of_memory(|| 3), Ok(3));
        let other = catch_unwind(|| catch_out_of_memory(|| panic!("another")));
        assert!(other.is_err());
    }

    #[test]
    fn a_guard_knows_when_the_buffers_of_its_slab_are_gone() {
        let mut slab = HostSlab::new(3 * PAGE_BYTES);
        let first = slab.carve(PAGE_BYTES).unwrap();
        let second = slab.carve(1).unwrap();
        let guard = second.guard();
        assert_eq!(guard.first().addr().get(), second.slab_id());
        assert_eq!(guard.bytes(), 3 * PAGE_BYTES);
        assert_eq!((first.offset_in_slab(), second.offset_in_slab()), (0, PAGE_BYTES));
        drop(second);
        assert!(!guard.is_unused());
        drop(first);
        // More can be carved.
        assert!(!guard.is_unused());
        drop(slab);
        assert!(guard.is_unused());
    }

    #[test]
    fn a_split_buffer_can_be_put_together_again() {
        let mut first = HostBuf::zeroed(5 * PAGE_BYTES);
        let mut third = first.split_off(3 * PAGE_BYTES);
        let mut second = first.split_off(PAGE_BYTES);
        first.fill(1);
        second.fill(2);
        third.fill(3);
        first.join(second);
        first.join(third);
        let want = [1, 2, 2, 3, 3];
        for (page, want) in first.chunks(PAGE_BYTES).zip(want) {
            assert!(page.iter().all(|byte| *byte == want));
        }
    }

    #[test]
    #[should_panic(expected = "put back")]
    fn buffers_that_do_not_follow_each_other_cannot_be_joined() {
        let mut slab = HostSlab::new(3 * PAGE_BYTES);
        let mut bufs: Vec<HostBuf> = (0..3).map(|_| slab.carve(PAGE_BYTES).unwrap()).collect();
        let last = bufs.pop().unwrap();
        bufs[0].join(last);
    }

    #[test]
    fn large_and_empty_buffers_are_whole_pages() {
        for len in [0, 1, PAGE_BYTES, HUGE_BYTES + 1, 3 * HUGE_BYTES] {
            let mut buf = HostBuf::zeroed(len);
            assert_eq!(buf.len(), len.max(1).next_multiple_of(PAGE_BYTES));
            let last = buf.len() - 1;
            buf[last] = 1;
            let align = if len < HUGE_BYTES { PAGE_BYTES } else { HUGE_BYTES };
            assert!(buf.as_ptr().addr().is_multiple_of(align));
        }
    }
}
