//! What all tests share: the demo model, and C texts as Rust's.

use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use moeflux_c::*;

pub(crate) use moeflux_status::*;

pub(crate) const QUESTION: &str = r#"[{"role": "user", "content": "What is 23 + 45?"}]"#;
pub(crate) const LONG: &str = r#"[{"role": "user", "content": "What does `Vec::push` do?"}]"#;

pub(crate) fn demo() -> CString {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    c(path.to_str().expect("the path is UTF-8"))
}

pub(crate) fn c(text: &str) -> CString {
    CString::new(text).expect("no NUL")
}

/// The text at a pointer that the library gave out.
pub(crate) fn rust(text: *const c_char) -> String {
    assert!(!text.is_null(), "a null pointer in place of a text");
    // SAFETY: the library's texts end with a NUL and are valid until the next call.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().expect("UTF-8").to_owned()
}

/// An error object that frees itself.
pub(crate) struct Errors(pub(crate) *mut moeflux_error);

impl Errors {
    pub(crate) fn new() -> Errors {
        let mut error = null_mut();
        // SAFETY: the place is a local.
        let status = unsafe { moeflux_error_new(&raw mut error) };
        assert_eq!(status, MOEFLUX_OK);
        Errors(error)
    }

    pub(crate) fn text(&self) -> String {
        rust(moeflux_error_text(self.0))
    }

    pub(crate) fn option(&self) -> String {
        rust(moeflux_error_option(self.0))
    }

    #[track_caller]
    pub(crate) fn ok(&self, status: moeflux_status) {
        assert_eq!(status, MOEFLUX_OK, "{}", self.text());
    }

    /// That a call failed so, and said something of it in one line.
    #[track_caller]
    pub(crate) fn failed(&self, status: moeflux_status, wanted: moeflux_status) {
        let text = self.text();
        assert_eq!(status, wanted, "{text}");
        assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        assert_eq!(moeflux_error_free(self.0), MOEFLUX_OK);
    }
}

/// The demo model, open.
pub(crate) struct Demo {
    pub(crate) errors: Errors,
    pub(crate) model: *mut moeflux_model,
    /// Whether the model is freed with this.
    pub(crate) owns_model: bool,
}

impl Demo {
    /// The model of another thread.
    pub(crate) fn borrowed(model: *mut moeflux_model) -> Demo {
        Demo { errors: Errors::new(), model, owns_model: false }
    }

    pub(crate) fn open(settings: &[(&str, &str)]) -> Demo {
        let errors = Errors::new();
        let (mut options, mut model) = (null_mut(), null_mut());
        // SAFETY: the place is a local.
        errors.ok(unsafe { moeflux_options_new(&raw mut options, errors.0) });
        for (name, value) in settings {
            let (name, value) = (c(name), c(value));
            // SAFETY: the texts live on.
            let status =
                unsafe { moeflux_options_set(options, name.as_ptr(), value.as_ptr(), errors.0) };
            errors.ok(status);
        }
        let path = demo();
        // SAFETY: the path lives on, and the place is a local.
        let status = unsafe {
            moeflux_open(path.as_ptr(), options, None, null_mut(), &raw mut model, errors.0)
        };
        errors.ok(status);
        errors.ok(moeflux_options_free(options));
        Demo { errors, model, owns_model: true }
    }

    pub(crate) fn request(&self, settings: &[(&str, &str)]) -> *mut moeflux_request {
        let mut request = null_mut();
        // SAFETY: the place is a local.
        self.errors.ok(unsafe { moeflux_request_new(&raw mut request, self.errors.0) });
        for (name, value) in settings {
            let (name, value) = (c(name), c(value));
            // SAFETY: the texts live on.
            let status = unsafe {
                moeflux_request_set(request, name.as_ptr(), value.as_ptr(), self.errors.0)
            };
            self.errors.ok(status);
        }
        request
    }

    pub(crate) fn chat(&self, messages: &str, settings: &[(&str, &str)]) -> *mut moeflux_answer {
        let request = self.request(settings);
        let (messages, mut answer) = (c(messages), null_mut());
        // SAFETY: the messages live on, and the place is a local.
        let status = unsafe {
            moeflux_chat(self.model, messages.as_ptr(), request, &raw mut answer, self.errors.0)
        };
        self.errors.ok(status);
        self.errors.ok(moeflux_request_free(request));
        answer
    }

    /// The next piece of an answer; `None` at its end.
    pub(crate) fn next(&self, answer: *mut moeflux_answer) -> Option<(moeflux_piece, String)> {
        let (mut kind, mut data, mut n_bytes) = (moeflux_piece::MOEFLUX_TEXT, null(), 0);
        // SAFETY: the places are locals.
        let status = unsafe {
            moeflux_answer_next(
                answer,
                &raw mut kind,
                &raw mut data,
                &raw mut n_bytes,
                self.errors.0,
            )
        };
        if status == MOEFLUX_END {
            return None;
        }
        self.errors.ok(status);
        let text = rust(data);
        assert_eq!(text.len(), n_bytes);
        Some((kind, text))
    }

    /// All of an answer's text. Frees the answer.
    pub(crate) fn text(&self, answer: *mut moeflux_answer) -> String {
        let pieces = std::iter::from_fn(|| self.next(answer));
        let text = pieces.map(|(_, text)| text).collect();
        self.errors.ok(moeflux_answer_free(answer));
        text
    }

    /// What a text handle has. Frees it.
    pub(crate) fn take(&self, text: *mut moeflux_text) -> String {
        let (mut data, mut n_bytes) = (null(), 0);
        // SAFETY: the places are locals.
        let status =
            unsafe { moeflux_text_get(text, &raw mut data, &raw mut n_bytes, self.errors.0) };
        self.errors.ok(status);
        let found = rust(data);
        assert_eq!(found.len(), n_bytes);
        self.errors.ok(moeflux_text_free(text));
        found
    }

    /// The ids of a list of tokens. Frees it.
    pub(crate) fn ids(&self, tokens: *mut moeflux_tokens) -> Vec<u32> {
        let (mut ids, mut n) = (null(), 0);
        // SAFETY: the places are locals.
        let status = unsafe { moeflux_tokens_get(tokens, &raw mut ids, &raw mut n, self.errors.0) };
        self.errors.ok(status);
        // SAFETY: the library gave that many out, valid until the list is freed.
        let found = unsafe { std::slice::from_raw_parts(ids, n) }.to_vec();
        self.errors.ok(moeflux_tokens_free(tokens));
        found
    }

    pub(crate) fn tokenize(&self, text: &str) -> Vec<u32> {
        let mut tokens = null_mut();
        // SAFETY: the text has that many bytes, and the place is a local.
        let status = unsafe {
            moeflux_tokenize(
                self.model,
                text.as_ptr().cast(),
                text.len(),
                moeflux_markup::MOEFLUX_LITERAL as i32,
                &raw mut tokens,
                self.errors.0,
            )
        };
        self.errors.ok(status);
        self.ids(tokens)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if self.owns_model {
            assert_eq!(moeflux_model_free(self.model), MOEFLUX_OK);
        }
    }
}
