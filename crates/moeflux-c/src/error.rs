//! Versions, names of statuses, and the error object.

use std::ffi::{CStr, c_char};

use crate::failure::{ErrorObject, call, moeflux_error};
use crate::handles::{issue, look_up, n_live, retire};
use crate::pointers::Out;
use crate::status::moeflux_status;

/// The version of this interface. Libraries with the same number take the same calls; later ones of that
/// number may have more functions, options and statuses.
pub const MOEFLUX_ABI_VERSION: u32 = 1;

/// A length that means: up to the first NUL.
///
/// cbindgen:ignore
pub const MOEFLUX_TO_NUL: usize = usize::MAX;

/// The `MOEFLUX_ABI_VERSION` of the library that runs. A program compares it with that of its header.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_abi_version() -> u32 {
    MOEFLUX_ABI_VERSION
}

/// The version of the library, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// The name of a status, such as `MOEFLUX_ERROR_OPTION`; a text for other numbers, too.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_status_name(status: i32) -> *const c_char {
    moeflux_status::name_of(status).as_ptr()
}

/// How many handles of the process are not freed. For tests of a program: checkers of leaks do not report
/// objects of handles, since the library's table holds them.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_live_handles() -> usize {
    n_live()
}

/// Makes an object for texts of failures. Calls that fail write to the one that they get; a thread makes
/// one and uses it for all of its calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_error_new(error: *mut *mut moeflux_error) -> moeflux_status {
    call(std::ptr::null_mut(), || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("error", error, std::ptr::null_mut()) }?;
        out.set(issue(ErrorObject::default())?);
        Ok(())
    })
}

/// What the last failed call said that got this object: one line that names the file or the value, and
/// a remedy where there is one; empty where none failed. Valid until the next call that gets the object.
/// Never null, not even for a wrong handle.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_error_text(error: *mut moeflux_error) -> *const c_char {
    match look_up(error) {
        Ok(object) => object.recorded().text.as_ptr(),
        Err(_) => c"no text: the moeflux_error is null, was freed, or is a handle of another type"
            .as_ptr(),
    }
}

/// The option at fault, or one of which another value helps, by the name that a setter takes; empty where
/// there is none. Valid as the text is, and never null.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_error_option(error: *mut moeflux_error) -> *const c_char {
    match look_up(error) {
        Ok(object) => object.recorded().option.as_ptr(),
        Err(_) => c"".as_ptr(),
    }
}

/// Frees an error object.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_error_free(error: *mut moeflux_error) -> moeflux_status {
    call(std::ptr::null_mut(), || retire(error))
}
