//! What comes through pointers of the caller, and what goes out through them: the only memory of C that
//! is read or written.

use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::slice;

use crate::status::Fault;

/// Most bytes of a text, and of an array: more is a length gone wrong.
const MAX_BYTES: usize = 1 << 30;

/// The place of a result. Constructed first of all, so that nothing is computed for a place that is
/// missing.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes what the result is until the call succeeds.
    ///
    /// # Safety
    /// Until the `Out` is dropped, `place` is null, or a place for a `T` that nothing else uses.
    pub(crate) unsafe fn new(name: &str, place: *mut T, unset: T) -> Result<Out<T>, Fault> {
        if place.is_null() {
            return Err(Fault::argument(format!("{name} is null: name a place for the result")));
        }
        if !place.is_aligned() {
            return Err(Fault::argument(format!("{name} is {place:p}, which is not aligned")));
        }
        let mut out = Out(place);
        out.set(unset);
        Ok(out)
    }

    /// As [`Out::new`], for a result that the caller may leave out by a null pointer.
    ///
    /// # Safety
    /// As [`Out::new`].
    pub(crate) unsafe fn optional(
        name: &str,
        place: *mut T,
        unset: T,
    ) -> Result<Option<Out<T>>, Fault> {
        if place.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller keeps the promise of `Out::new`.
        unsafe { Out::new(name, place, unset) }.map(Some)
    }

    /// Writes the result.
    pub(crate) fn set(&mut self, value: T) {
        // SAFETY: `new` found the place aligned and not null, and its caller promised it to this `Out`.
        unsafe { self.0.write(value) }
    }
}

/// A text that ends with a NUL.
///
/// # Safety
/// For `'a`, `text` is null or points to bytes that nothing writes, with a NUL.
pub(crate) unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str, Fault> {
    // SAFETY: the caller keeps the promise.
    utf8(name, unsafe { bytes_to_nul(name, text) }?)
}

/// A text of `n_bytes` bytes, or one that ends with a NUL where that is the greatest number.
///
/// # Safety
/// For `'a`, `text` is null or points to bytes that nothing writes: `n_bytes` of them, or as many as come
/// before a NUL.
pub(crate) unsafe fn sized_text<'a>(
    name: &str,
    text: *const c_char,
    n_bytes: usize,
) -> Result<&'a str, Fault> {
    let bytes = if n_bytes == usize::MAX {
        // SAFETY: the caller promises a NUL.
        unsafe { bytes_to_nul(name, text) }?
    } else {
        // SAFETY: the caller promises that number of bytes.
        unsafe { array(name, text.cast::<u8>(), n_bytes) }?
    };
    utf8(name, bytes)
}

/// A path: bytes as the system has them on Unix, else UTF-8.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path(name: &str, path: *const c_char) -> Result<PathBuf, Fault> {
    // SAFETY: the caller keeps the promise.
    let bytes = unsafe { bytes_to_nul(name, path) }?;
    if bytes.is_empty() {
        return Err(Fault::argument(format!("{name} is empty: name a file or a folder")));
    }
    path_of(name, bytes)
}

#[cfg(unix)]
fn path_of(_: &str, bytes: &[u8]) -> Result<PathBuf, Fault> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    Ok(PathBuf::from(OsStr::from_bytes(bytes)))
}

#[cfg(not(unix))]
fn path_of(name: &str, bytes: &[u8]) -> Result<PathBuf, Fault> {
    utf8(name, bytes).map(PathBuf::from)
}

/// `n` values.
///
/// # Safety
/// For `'a`, `first` is null or points to `n` values that nothing writes.
pub(crate) unsafe fn array<'a, T: Copy>(
    name: &str,
    first: *const T,
    n: usize,
) -> Result<&'a [T], Fault> {
    if n == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(Fault::argument(format!("{name} is null, and its length is {n}")));
    }
    if !first.is_aligned() {
        return Err(Fault::argument(format!("{name} is {first:p}, which is not aligned")));
    }
    if n > MAX_BYTES / size_of::<T>() {
        let most = MAX_BYTES / size_of::<T>();
        return Err(Fault::argument(format!("{name} has the length {n}, at most {most} will do")));
    }
    // SAFETY: the pointer is aligned and not null, the length is below that of the address space, and
    // the caller promises that many values.
    Ok(unsafe { slice::from_raw_parts(first, n) })
}

unsafe fn bytes_to_nul<'a>(name: &str, text: *const c_char) -> Result<&'a [u8], Fault> {
    if text.is_null() {
        return Err(Fault::argument(format!("{name} is null")));
    }
    // SAFETY: it is not null, and the callers promise a NUL.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    if bytes.len() > MAX_BYTES {
        let n = bytes.len();
        return Err(Fault::argument(format!("{name} has {n} bytes, at most {MAX_BYTES} will do")));
    }
    Ok(bytes)
}

fn utf8<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, Fault> {
    str::from_utf8(bytes).map_err(|err| {
        Fault::argument(format!("{name} is not UTF-8 from byte {} on", err.valid_up_to()))
    })
}
