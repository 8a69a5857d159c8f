//! Files that a user names: read whole, but never without end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Longest file that is read whole.
const MAX_BYTES: u64 = 256 << 20;

/// The bytes of a file; pipes will do, endless devices are refused.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {} MiB, shorten it", MAX_BYTES >> 20),
        ));
    }
    Ok(bytes)
}
