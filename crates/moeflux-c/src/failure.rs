//! Where a call's failure goes: its status to the caller, its text and option to the error object. No
//! panic comes past here.

use std::any::Any;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::handles::{Handle, look_up};
use crate::status::{Fault, MOEFLUX_ERROR_INTERNAL, MOEFLUX_OK, moeflux_status};

/// What the last failed call said that got this object.
#[expect(non_camel_case_types, reason = "the name in C")]
#[derive(Debug)]
pub struct moeflux_error {
    _private: (),
}

/// A failure in texts of C.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) text: CString,
    pub(crate) option: CString,
}

/// The object of a [`moeflux_error`].
#[derive(Debug, Default)]
pub(crate) struct ErrorObject(Mutex<Recorded>);

impl ErrorObject {
    pub(crate) fn recorded(&self) -> MutexGuard<'_, Recorded> {
        // A failure is written whole, or not at all.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle for moeflux_error {
    const NAME: &'static str = "moeflux_error";
    type Object = ErrorObject;
}

/// Runs a call that ends with success or a failure.
pub(crate) fn call(
    error: *mut moeflux_error,
    body: impl FnOnce() -> Result<(), Fault>,
) -> moeflux_status {
    call_for_status(error, || body().map(|()| MOEFLUX_OK))
}

/// Runs a call that has several kinds of success.
pub(crate) fn call_for_status(
    error: *mut moeflux_error,
    body: impl FnOnce() -> Result<moeflux_status, Fault>,
) -> moeflux_status {
    // What a panic leaves half done is behind a lock that it poisons, and is refused afterwards.
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(fault_of(panic)));
    match outcome {
        Ok(status) => status,
        Err(fault) => record(error, fault),
    }
}

/// Writes a failure to the error object, where the caller has one.
fn record(error: *mut moeflux_error, fault: Fault) -> moeflux_status {
    if let Ok(object) = look_up(error) {
        let option = fault.option.unwrap_or_default();
        *object.recorded() = Recorded { text: c_text(fault.text), option: c_text(option) };
    }
    fault.status
}

fn fault_of(panic: Box<dyn Any + Send>) -> Fault {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
    let line = text.lines().next().unwrap_or_default();
    // A payload whose destructor panics is left alone.
    let fault =
        Fault::new(MOEFLUX_ERROR_INTERNAL, format!("a fault of moeflux, report it: {line}"));
    std::mem::forget(panic);
    fault
}

/// `text`, with U+FFFD for every NUL.
fn c_text(text: String) -> CString {
    CString::new(text)
        .or_else(|err| {
            CString::new(String::from_utf8_lossy(&err.into_vec()).replace('\0', "\u{fffd}"))
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;
    use std::sync::Mutex;

    use super::*;
    use crate::handles::{exclusive, issue, retire};
    use crate::status::MOEFLUX_ERROR_HANDLE;

    #[test]
    fn a_panic_becomes_a_status_with_its_text() {
        let error = issue::<moeflux_error>(ErrorObject::default()).unwrap();
        let status = call(error, || {
            let nth = "first";
            panic!("the {nth} line\nand another")
        });
        assert_eq!(status, MOEFLUX_ERROR_INTERNAL);
        let text = look_up(error).unwrap().recorded().text.clone().into_string().unwrap();
        assert!(text.ends_with(": the first line"), "{text}");
        assert_eq!(call(null_mut(), || std::panic::panic_any(7)), MOEFLUX_ERROR_INTERNAL);
        retire(error).unwrap();
        assert_eq!(call(null_mut(), || retire(error)), MOEFLUX_ERROR_HANDLE);
    }

    #[test]
    fn what_a_panic_left_half_done_is_not_used_again() {
        let state = Mutex::new(0);
        let use_it = || exclusive(null_mut::<moeflux_error>(), &state).map(|mut state| *state += 1);
        assert_eq!(call(null_mut(), use_it), MOEFLUX_OK);
        let status = call(null_mut(), || {
            let _state = exclusive(null_mut::<moeflux_error>(), &state)?;
            panic!("half done")
        });
        assert_eq!(status, MOEFLUX_ERROR_INTERNAL);
        assert_eq!(call(null_mut(), use_it), MOEFLUX_ERROR_INTERNAL);
    }

    #[test]
    fn texts_have_no_nul_in_them() {
        let error = issue::<moeflux_error>(ErrorObject::default()).unwrap();
        assert_eq!(call(error, || Err(Fault::argument("a\0b"))) as i32, -1);
        let text = look_up(error).unwrap().recorded().text.clone();
        assert_eq!(text.to_str(), Ok("a\u{fffd}b"));
        retire(error).unwrap();
    }
}
