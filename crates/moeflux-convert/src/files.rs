//! Large files written front to back: under a working name until they are
//! whole and on the drive, their checksum taken on the way.

#[cfg(unix)]
use std::fs::TryLockError;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use moeflux_core::WriteError;
use moeflux_core::checkpoint::{Dtype, FileChecksums};
use serde_json::{Map, Value, json};

/// Bytes that go to the system at once.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;

/// Ends the names of files that are not whole.
pub(crate) const PARTIAL: &str = ".partial";

/// A file in the making; removed where it is dropped before its end.
pub(crate) struct FileWriter {
    path: PathBuf,
    partial: PathBuf,
    file: Option<File>,
    buffer: Vec<u8>,
    checksums: FileChecksums,
}

impl FileWriter {
    pub(crate) fn create(path: &Path) -> Result<FileWriter, WriteError> {
        FileWriter::create_with_parts(path, Vec::new())
    }

    /// A file parts of which get checksums of their own: `parts` as [`FileChecksums::new`] wants
    /// them.
    pub(crate) fn create_with_parts(
        path: &Path,
        parts: Vec<Range<u64>>,
    ) -> Result<FileWriter, WriteError> {
        moeflux_core::files::check_target(path).map_err(WriteError::at(path))?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(PARTIAL);
        let partial = path.with_file_name(name);
        let file = File::create(&partial).map_err(WriteError::at(&partial))?;
        Ok(FileWriter {
            path: path.to_path_buf(),
            partial,
            file: Some(file),
            buffer: Vec::with_capacity(CHUNK_BYTES),
            checksums: FileChecksums::new(parts),
        })
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), WriteError> {
        while !bytes.is_empty() {
            let n = bytes.len().min(CHUNK_BYTES - self.buffer.len());
            self.buffer.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if self.buffer.len() == CHUNK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes zeros up to the next multiple of `alignment`.
    pub(crate) fn pad(&mut self, alignment: usize) -> Result<(), WriteError> {
        let written = self.checksums.n_bytes() as usize + self.buffer.len();
        self.write(&vec![0; written.next_multiple_of(alignment) - written])
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        let file = self.file.as_mut().expect("open until its end");
        file.write_all(&self.buffer).map_err(WriteError::at(&self.path))?;
        self.checksums.update(&self.buffer);
        self.buffer.clear();
        Ok(())
    }

    /// Puts everything on the drive, still under the working name.
    pub(crate) fn finish(mut self) -> Result<Written, WriteError> {
        self.flush()?;
        let file = self.file.as_ref().expect("open until its end");
        file.sync_all().map_err(WriteError::at(&self.path))?;
        forget_cached(file);
        self.file = None;
        Ok(Written {
            path: self.path.clone(),
            partial: self.partial.clone(),
            n_bytes: self.checksums.n_bytes(),
            checksum: self.checksums.hex(),
            parts: self.checksums.parts().to_vec(),
        })
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // Nothing to do about a second failure; the name says what it is.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// A file that is whole, but has not got its name yet.
pub(crate) struct Written {
    path: PathBuf,
    pub(crate) partial: PathBuf,
    pub(crate) n_bytes: u64,
    pub(crate) checksum: String,
    /// Checksums of the parts that it was created with.
    pub(crate) parts: Vec<u64>,
}

impl Written {
    /// Gives it its name, for good.
    pub(crate) fn publish(self) -> Result<(), WriteError> {
        fs::rename(&self.partial, &self.path).map_err(WriteError::at(&self.path))?;
        let dir = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_dir(dir.unwrap_or(Path::new(".")))
    }
}

/// Writes a small file whole or not at all.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<Written, WriteError> {
    let mut writer = FileWriter::create(path)?;
    writer.write(bytes)?;
    writer.finish()
}

/// Length and checksum of a file.
pub(crate) fn checksum_of(
    path: &Path,
    on_bytes: &mut dyn FnMut(u64),
) -> Result<(u64, String), WriteError> {
    let sums = checksums_of(path, Vec::new(), on_bytes)?;
    Ok((sums.n_bytes(), sums.hex()))
}

/// Checksums of a file and of parts of it.
pub(crate) fn checksums_of(
    path: &Path,
    parts: Vec<Range<u64>>,
    on_bytes: &mut dyn FnMut(u64),
) -> Result<FileChecksums, WriteError> {
    let mut file = File::open(path).map_err(WriteError::at(path))?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut checksums = FileChecksums::new(parts);
    loop {
        let n = match file.read(&mut buffer) {
            Ok(0) => return Ok(checksums),
            Ok(n) => n,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(WriteError::at(path)(source)),
        };
        checksums.update(&buffer[..n]);
        on_bytes(n as u64);
    }
}

/// Makes names in a directory last.
pub(crate) fn sync_dir(path: &Path) -> Result<(), WriteError> {
    #[cfg(unix)]
    File::open(path).and_then(|file| file.sync_all()).map_err(WriteError::at(path))?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// Locks a directory until the result is dropped, against other callers of this function in
/// any process; `None` where it is locked already.
#[cfg(unix)]
pub(crate) fn lock_directory(path: &Path) -> io::Result<Option<File>> {
    let dir = File::open(path)?;
    match dir.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(None),
        // Some network drives have no locks.
        Err(TryLockError::Error(err)) if err.kind() != io::ErrorKind::Unsupported => Err(err),
        _ => Ok(Some(dir)),
    }
}

/// Locks a directory until the result is dropped, against other callers of this function in
/// any process; `None` where it is locked already. Windows cannot lock a directory: the lock is
/// a file in its parent folder that is opened without sharing. The system removes the file when
/// its handle is closed.
#[cfg(windows)]
pub(crate) fn lock_directory(path: &Path) -> io::Result<Option<File>> {
    use std::os::windows::fs::OpenOptionsExt;

    /// `FILE_FLAG_DELETE_ON_CLOSE` of `CreateFileW`.
    const DELETE_ON_CLOSE: u32 = 0x0400_0000;
    /// `ERROR_SHARING_VIOLATION`.
    const IS_SHARED: Option<i32> = Some(32);
    let path = path.canonicalize()?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".moeflux-lock");
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    options.share_mode(0).custom_flags(DELETE_ON_CLOSE);
    match options.open(path.with_file_name(name)) {
        Err(err) if err.raw_os_error() == IS_SHARED => Ok(None),
        opened => opened.map(Some),
    }
}

/// Bytes that are free on a directory's drive.
pub(crate) fn available_space(path: &Path) -> Result<u64, WriteError> {
    fs4::available_space(path).map_err(WriteError::at(path))
}

/// Refuses where a directory's drive has less room than will be needed.
pub(crate) fn require_space(path: &Path, needed: u64) -> Result<(), WriteError> {
    let available = available_space(path)?;
    if available < needed {
        return Err(WriteError::TooSmall { path: path.to_path_buf(), needed, available });
    }
    Ok(())
}

/// What is read back should come from the drive. Only advice: a system that
/// does not take it reads from memory.
fn forget_cached(file: &File) {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    let _ = file;
}

/// A tensor that a safetensors file will hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
}

impl TensorEntry {
    pub(crate) fn n_bytes(&self) -> u64 {
        let element = self.dtype.bytes().expect("only known types are written");
        (element * self.shape.iter().product::<usize>()) as u64
    }
}

/// The beginning of a safetensors file that holds these tensors one after
/// another; padded, so that the data starts at a multiple of 64 bytes.
pub(crate) fn safetensors_header(tensors: &[TensorEntry]) -> Vec<u8> {
    safetensors_header_with(&[("format", "mlx".to_owned())], tensors)
}

/// A safetensors header with these notes about the file.
pub(crate) fn safetensors_header_with(
    notes: &[(&str, String)],
    tensors: &[TensorEntry],
) -> Vec<u8> {
    let mut header = Map::new();
    let notes = notes.iter().map(|(key, note)| ((*key).to_owned(), Value::String(note.clone())));
    header.insert("__metadata__".to_owned(), Value::Object(notes.collect()));
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.n_bytes();
        let entry = json!({
            "dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [start, end],
        });
        header.insert(tensor.name.clone(), entry);
    }
    let mut json = Value::Object(header).to_string().into_bytes();
    json.resize((json.len() + 8).next_multiple_of(64) - 8, b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    bytes
}

#[cfg(test)]
mod tests {
    use moeflux_core::FileIdx;
    use moeflux_core::checkpoint::parse_safetensors_header;
    use moeflux_core::quant::Float;

    use super::*;

    #[test]
    fn nothing_has_its_name_before_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        let mut writer = FileWriter::create(&path).unwrap();
        writer.write(&[1; 5000]).unwrap();
        assert!(!path.exists());
        let written = writer.finish().unwrap();
        assert!(!path.exists());
        let sum = written.checksum.clone();
        written.publish().unwrap();
        assert_eq!(checksum_of(&path, &mut |_| {}).unwrap(), (5000, sum));
    }

    #[test]
    fn leaves_nothing_behind_when_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = FileWriter::create(&dir.path().join("a.bin")).unwrap();
        writer.write(&[1; 5000]).unwrap();
        drop(writer);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn says_what_to_do_when_the_drive_is_full() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let got = WriteError::at(Path::new("x/y"))(full);
        assert_eq!(got.to_string(), "x/y: no space left on the drive; free some and run again");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_device_is_a_full_drive() {
        let mut file = File::options().write(true).open("/dev/full").unwrap();
        let got = file.write_all(&[0; 10]).map_err(WriteError::at(Path::new("x"))).unwrap_err();
        assert!(matches!(got, WriteError::NoSpace { .. }), "{got}");
    }

    #[test]
    fn refuses_what_cannot_fit() {
        assert!(require_space(Path::new("."), 1).is_ok());
        assert!(require_space(Path::new("."), u64::MAX).is_err());
    }

    #[test]
    fn headers_read_back() {
        let entry = |name: &str, dtype, shape: &[usize]| TensorEntry {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
        };
        let tensors =
            [entry("b", Dtype::U32, &[2, 3]), entry("a", Dtype::Float(Float::BF16), &[5])];
        let header = safetensors_header(&tensors);
        assert!(header.len().is_multiple_of(64));
        let got =
            parse_safetensors_header(&header[8..], FileIdx(0), header.len() as u64 + 34).unwrap();
        let names: Vec<&str> =
            got.tensors.iter().map(|tensor| tensor.stored_name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(got.tensors[1].extent.offset, header.len() as u64 + 24);
    }
}
