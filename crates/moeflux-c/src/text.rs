//! Results that have a length: texts and lists of tokens.

use std::ffi::c_char;
use std::ptr;

use moeflux_engine::TokenId;
use serde_json::Value;

use crate::failure::{call, moeflux_error};
use crate::handles::{Handle, issue, look_up, retire};
use crate::pointers::Out;
use crate::status::{Fault, moeflux_status};

/// A text that the library made. It does not change.
#[expect(non_camel_case_types, reason = "the name in C")]
#[derive(Debug)]
pub struct moeflux_text {
    _private: (),
}

/// A list of tokens that the library made. It does not change.
#[expect(non_camel_case_types, reason = "the name in C")]
#[derive(Debug)]
pub struct moeflux_tokens {
    _private: (),
}

impl Handle for moeflux_text {
    const NAME: &'static str = "moeflux_text";
    type Object = TextBytes;
}

impl Handle for moeflux_tokens {
    const NAME: &'static str = "moeflux_tokens";
    type Object = Vec<u32>;
}

/// A text with a NUL after it.
#[derive(Debug, Default)]
pub(crate) struct TextBytes(Vec<u8>);

impl TextBytes {
    pub(crate) fn new(text: String) -> TextBytes {
        let mut bytes = text.into_bytes();
        bytes.push(0);
        TextBytes(bytes)
    }

    pub(crate) fn data(&self) -> *const c_char {
        if self.0.is_empty() { c"".as_ptr() } else { self.0.as_ptr().cast() }
    }

    /// Without the NUL.
    pub(crate) fn n_bytes(&self) -> usize {
        self.0.len().saturating_sub(1)
    }
}

/// A handle of a text.
pub(crate) fn issue_text(text: String) -> Result<*mut moeflux_text, Fault> {
    issue(TextBytes::new(text))
}

/// A handle of JSON.
pub(crate) fn issue_json(value: &Value) -> Result<*mut moeflux_text, Fault> {
    issue_text(value.to_string())
}

/// A handle of a list of tokens.
pub(crate) fn issue_tokens(tokens: &[TokenId]) -> Result<*mut moeflux_tokens, Fault> {
    issue(tokens.iter().map(|token| token.0).collect())
}

/// The bytes of a text: UTF-8, with a NUL after them that `n_bytes` does not count. Valid until the text
/// is freed. `n_bytes` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_text_get(
    text: *mut moeflux_text,
    data: *mut *const c_char,
    n_bytes: *mut usize,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut data = unsafe { Out::new("data", data, ptr::null()) }?;
        // SAFETY: the caller names a place for a length, or null.
        let n_bytes = unsafe { Out::optional("n_bytes", n_bytes, 0) }?;
        let text = look_up(text)?;
        data.set(text.data());
        n_bytes.into_iter().for_each(|mut n_bytes| n_bytes.set(text.n_bytes()));
        Ok(())
    })
}

/// Frees a text.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_text_free(text: *mut moeflux_text) -> moeflux_status {
    call(ptr::null_mut(), || retire(text))
}

/// The ids of a list of tokens. Valid until the list is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_tokens_get(
    tokens: *mut moeflux_tokens,
    ids: *mut *const u32,
    n_tokens: *mut usize,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut ids = unsafe { Out::new("ids", ids, ptr::null()) }?;
        // SAFETY: the caller names a place for a length, or null.
        let mut n_tokens = unsafe { Out::new("n_tokens", n_tokens, 0) }?;
        let tokens = look_up(tokens)?;
        ids.set(tokens.as_ptr());
        n_tokens.set(tokens.len());
        Ok(())
    })
}

/// Frees a list of tokens.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_tokens_free(tokens: *mut moeflux_tokens) -> moeflux_status {
    call(ptr::null_mut(), || retire(tokens))
}
