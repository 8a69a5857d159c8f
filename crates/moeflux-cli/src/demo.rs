//! The demo model inside the binary. Its files are written to the cache
//! directory once, so that its experts stream from a drive as any model's do.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::paths;

/// Every file of the model: name and content.
const FILES: &[(&str, &[u8])] = &include!("demo_files.in");

/// The model's directory, written now if it is not there.
pub(crate) fn unpacked() -> Result<PathBuf> {
    let dir = paths::cache_dir()?.join(format!("demo-{}", identity()));
    if is_whole(&dir) {
        return Ok(dir);
    }
    write(&dir).with_context(|| {
        format!("cannot write the demo model to {} (set MOEFLUX_CACHE)", dir.display())
    })?;
    Ok(dir)
}

/// Changes whenever a file does.
fn identity() -> String {
    let manifest = FILES.iter().find(|(name, _)| *name == "moeflux.json");
    // The container's own manifest holds the checksums of all other files.
    let bytes = manifest.map_or(&[][..], |(_, bytes)| bytes);
    // FNV-1a, 64 bits.
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

fn is_whole(dir: &Path) -> bool {
    let has_size = |(name, bytes): &(&str, &[u8])| {
        dir.join(name).metadata().is_ok_and(|it| it.len() == bytes.len() as u64)
    };
    FILES.iter().all(has_size)
}

/// Writes beside the place and renames, so that nobody sees half a model; one
/// process at a time, so that none removes what another has opened.
fn write(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir.parent().unwrap_or(dir))?;
    let lock = fs::File::create(dir.with_extension("lock"))?;
    // Where a file system knows no locks, whoever is alone needs none.
    let _ = lock.lock();
    // Another process may have been faster.
    if is_whole(dir) {
        return Ok(());
    }
    let partial = dir.with_extension("partial");
    remove(&partial)?;
    let written = write_files(&partial).and_then(|()| {
        remove(dir)?;
        Ok(fs::rename(&partial, dir)?)
    });
    // Gone already where the rename succeeded.
    let _ = remove(&partial);
    written
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn write_files(dir: &Path) -> Result<()> {
    for (name, bytes) in FILES {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap_or(dir))?;
        let mut file = fs::File::create(&path)?;
        file.write_all(bytes)?;
        file.sync_all()?;
    }
    Ok(())
}
