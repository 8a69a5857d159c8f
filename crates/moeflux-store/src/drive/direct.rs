//! Direct reads, which bypass the page cache.

use std::fs::File;
use std::io;
use std::path::Path;

use moeflux_core::{HostBuf, PAGE_BYTES};

/// Opens a file for reads that bypass the page cache. Also returns the block size in bytes. Reads
/// begin at multiples of it, in the file and in memory, and are whole blocks long. Only the end of
/// the file may cut a read short.
///
/// # Errors
/// If the system, the file system or the device refuses.
pub fn open_direct(path: &Path) -> io::Result<(File, usize)> {
    let file = open(path)?;
    let block = block(&file)?;
    // Some file systems accept the flag and refuse the reads.
    let buf = HostBuf::try_zeroed(block);
    let mut buf = buf.map_err(|err| io::Error::new(io::ErrorKind::OutOfMemory, err))?;
    read_at(&file, &mut buf[..block], 0)?;
    Ok((file, block))
}

#[cfg(target_os = "linux")]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

#[cfg(target_os = "macos")]
fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

#[cfg(windows)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;

    /// `FILE_FLAG_NO_BUFFERING` of `CreateFileW`.
    const NO_BUFFERING: u32 = 0x2000_0000;
    File::options().read(true).custom_flags(NO_BUFFERING).open(path)
}

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
fn open(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The block size that the file reports, in bytes; a page if it reports none.
#[cfg(target_os = "linux")]
fn block(file: &File) -> io::Result<usize> {
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

/// The block size in bytes: a page, as no sector is larger.
#[cfg(not(target_os = "linux"))]
fn block(_file: &File) -> io::Result<usize> {
    Ok(PAGE_BYTES)
}

/// Reads up to `buf.len()` bytes at `offset`. Returns their number, 0 at the end of the file.
///
/// # Errors
/// The error of the system.
pub fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_at(file, buf, offset);
    #[cfg(windows)]
    return std::os::windows::fs::FileExt::seek_read(file, buf, offset);
}
