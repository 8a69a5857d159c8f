//! What the system reports about this process, and what it can be asked to forget.

use std::fs::{self, File};
use std::path::Path;

use moeflux_core::system::labelled_number;

/// The most memory that this process had since it began, or since
/// [`reset_peak_memory`], in bytes; `None` where the system does not report it.
pub fn peak_memory() -> Option<u64> {
    moeflux_core::system::peak_memory_bytes()
}

/// Lets [`peak_memory`] begin anew. False where the system does not know how.
pub fn reset_peak_memory() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Bytes that this process had the drive read; `None` where the system does not
/// report it.
pub(super) fn storage_bytes() -> Option<u64> {
    labelled_number(&fs::read_to_string("/proc/self/io").ok()?, "read_bytes:")
}

/// Asks the system to forget the pages of a file that it keeps in memory.
#[cfg(target_os = "linux")]
pub(super) fn drop_cached(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    // Pages that were never written to the drive are kept.
    let _ = file.sync_data();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).is_ok()
}

/// Asks the system to forget the pages of a file that it keeps in memory.
#[cfg(not(target_os = "linux"))]
pub(super) fn drop_cached(_path: &Path) -> bool {
    false
}

/// Whether a file has any byte of a range on its drive, as far as the system says: holes are read
/// without it.
#[cfg(target_os = "linux")]
pub(super) fn has_data(file: &File, offset: u64, len: usize) -> bool {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(next) => next < offset + len as u64,
        // All that follows is a hole.
        Err(rustix::io::Errno::NXIO) => false,
        Err(_) => true,
    }
}

/// Whether a file has any byte of a range on its drive, as far as the system says.
#[cfg(not(target_os = "linux"))]
pub(super) fn has_data(_file: &File, _offset: u64, _len: usize) -> bool {
    true
}
