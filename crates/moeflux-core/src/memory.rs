//! Memory that records land in: page-aligned buffers and mapped files.
//! The only file of this crate that needs `unsafe`.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment and granularity of every buffer, fit for direct I/O.
pub const PAGE_BYTES: usize = 4096;

/// A page-aligned byte buffer with one owner.
///
/// A read is started by moving the buffer into the reader and finished by
/// moving it back, so no two threads ever see the same bytes at once.
#[derive(Debug)]
pub struct HostBuf {
    ptr: NonNull<u8>,
    /// Invariant: a non-zero multiple of `PAGE_BYTES`.
    len: usize,
}

impl HostBuf {
    /// Allocates `len` zeroed bytes, rounded up to whole pages. Pages that are
    /// never touched take no memory.
    pub fn zeroed(len: usize) -> HostBuf {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        let layout = Self::layout(len);
        // SAFETY: `len` is at least one page, so the layout is not empty.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        HostBuf { ptr, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, PAGE_BYTES).expect("buffer should fit the address space")
    }
}

impl Deref for HostBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` owns `len` initialised bytes for as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for HostBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for HostBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) };
    }
}

// SAFETY: `HostBuf` owns its bytes the way `Box<[u8]>` does.
unsafe impl Send for HostBuf {}
// SAFETY: a shared `HostBuf` gives out nothing but `&[u8]`.
unsafe impl Sync for HostBuf {}

/// A whole file mapped read-only.
///
/// Whoever reads the bytes must have checked just before that the file still
/// has the length that it was mapped with: pages behind a file's end fault.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps `file` from its first byte to its present end.
    ///
    /// # Errors
    /// Whatever the system says: no address space, no such device, not a file.
    pub fn map(file: &File) -> io::Result<MappedFile> {
        // SAFETY: the map is read-only and private to this type; that nobody
        // else writes to a model's files while they are open is what opening a
        // model asks of its owner.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(MappedFile { map })
    }

    /// Brings `len` bytes from `offset` into memory before anyone touches them.
    ///
    /// # Errors
    /// Where the system cannot populate; the bytes then fault in on use.
    pub fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return self.map.advise_range(memmap2::Advice::PopulateRead, offset, len);
        #[cfg(all(unix, not(target_os = "linux")))]
        return self.map.advise_range(memmap2::Advice::WillNeed, offset, len);
        #[cfg(not(unix))]
        return Ok(());
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
