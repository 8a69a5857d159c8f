//! Reads a tokenizer while weights are loaded: some take as long as the weights.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use moeflux_text::{TextError, TextSource, Tokenizer};

/// A tokenizer that is read on a thread, for who asks first.
pub(crate) struct TokenizerAhead {
    thread: Mutex<Option<JoinHandle<Result<Tokenizer, TextError>>>>,
}

impl TokenizerAhead {
    /// Begins to read; `None` where the system starts no thread.
    pub(crate) fn begin(source: TextSource) -> Option<TokenizerAhead> {
        let thread = thread::Builder::new().name(String::from("tokenizer"));
        let read = move || Tokenizer::open(&source, moeflux_model::dialects());
        let thread = Mutex::new(Some(thread.spawn(read).ok()?));
        Some(TokenizerAhead { thread })
    }

    /// The tokenizer, or what is wrong with it; `None` where another caller has it, or the thread
    /// panicked.
    pub(crate) fn take(&self) -> Option<Result<Tokenizer, TextError>> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.and_then(|thread| thread.join().ok())
    }
}

impl Drop for TokenizerAhead {
    fn drop(&mut self) {
        self.take();
    }
}
