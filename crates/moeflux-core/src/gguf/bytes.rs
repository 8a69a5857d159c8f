//! Little-endian values from a stream, each checked against what is left of the file before memory
//! is taken for it.

use std::io::{self, Read};

/// Why a header could not be read.
#[derive(Debug)]
pub(super) enum HeaderError {
    /// The system refused to read the file.
    Io(io::Error),
    /// The bytes are not those of a header; the text describes the problem without the file's name.
    Malformed(String),
}

/// The bytes of a file from its start on.
pub(super) struct Bytes<R> {
    inner: R,
    /// Bytes that were read.
    at: u64,
    /// Bytes of the whole file.
    len: u64,
}

/// The number types that are read.
macro_rules! numbers {
    ($($name:ident),*) => {
        $(
            pub(super) fn $name(&mut self) -> Result<$name, HeaderError> {
                self.array().map($name::from_le_bytes)
            }
        )*
    };
}

impl<R: Read> Bytes<R> {
    pub(super) fn new(inner: R, len: u64) -> Bytes<R> {
        Bytes { inner, at: 0, len }
    }

    /// Number of bytes that were read.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Number of bytes after those that were read.
    pub(super) fn left(&self) -> u64 {
        self.len - self.at
    }

    numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

    /// The next bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        let mut out = [0; N];
        self.fill(&mut out)?;
        Ok(out)
    }

    /// A text: its length, then its bytes. `max` is the accepted length.
    pub(super) fn text(&mut self, max: u64) -> Result<Vec<u8>, HeaderError> {
        let len = self.u64()?;
        if len > self.left() {
            return malformed(format!("a text of {len} bytes, {} are left", self.left()));
        }
        if len > max {
            return malformed(format!("a text of {len} bytes, at most {max} are read"));
        }
        let mut out = vec![0; len as usize];
        self.fill(&mut out)?;
        Ok(out)
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<(), HeaderError> {
        let ends =
            || malformed("the file ends inside its header; is the download complete?".into());
        if self.left() < out.len() as u64 {
            return ends();
        }
        match self.inner.read_exact(out) {
            Ok(()) => {
                self.at += out.len() as u64;
                Ok(())
            }
            Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => ends(),
            Err(err) => Err(HeaderError::Io(err)),
        }
    }
}

/// The error for bytes that are not those of a header.
pub(super) fn malformed<T>(what: String) -> Result<T, HeaderError> {
    Err(HeaderError::Malformed(what))
}

impl HeaderError {
    /// This error with the place at which it happened.
    pub(super) fn at(self, place: &str) -> HeaderError {
        match self {
            HeaderError::Malformed(what) => HeaderError::Malformed(format!("{place}: {what}")),
            HeaderError::Io(err) => HeaderError::Io(err),
        }
    }
}
