//! Reads past the page cache: how files are switched to them.

use std::fs::File;
use std::io;

/// Lets `file` be read past the page cache. Returns the block size: reads
/// begin at multiples of it, in the file and in memory, and are whole blocks
/// long, but for the file's end.
///
/// # Errors
/// Where the system, the file system or the device refuses.
#[cfg(target_os = "linux")]
pub(crate) fn enable(file: &File) -> io::Result<usize> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    let block = linux_block(file)?;
    fcntl_setfl(file, fcntl_getfl(file)? | OFlags::DIRECT)?;
    // Some file systems accept the flag and refuse the reads.
    let mut first = moeflux_core::HostBuf::zeroed(block);
    std::os::unix::fs::FileExt::read_at(file, &mut first[..block], 0)?;
    Ok(block)
}

/// What the file asks for, where it tells.
#[cfg(target_os = "linux")]
fn linux_block(file: &File) -> io::Result<usize> {
    use moeflux_core::PAGE_BYTES;
    use rustix::fs::{AtFlags, StatxFlags, statx};

    let Ok(found) = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Ok(PAGE_BYTES);
    };
    if found.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(PAGE_BYTES);
    }
    let block = found.stx_dio_offset_align.max(found.stx_dio_mem_align) as usize;
    let fits = found.stx_dio_offset_align > 0 && block <= PAGE_BYTES && block.is_power_of_two();
    if fits { Ok(block) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// As on Linux.
#[cfg(target_os = "macos")]
pub(crate) fn enable(file: &File) -> io::Result<usize> {
    rustix::fs::fcntl_nocache(file, true)?;
    Ok(moeflux_core::PAGE_BYTES)
}

/// As on Linux.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn enable(_file: &File) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Undoes [`enable`], also one that failed half-way.
pub(crate) fn disable(file: &File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        fcntl_setfl(file, fcntl_getfl(file)? - OFlags::DIRECT)?;
    }
    #[cfg(target_os = "macos")]
    rustix::fs::fcntl_nocache(file, false)?;
    let _ = file;
    Ok(())
}
