//! The C interface of moeflux. The head of `include/moeflux.h` has its rules.
//!
//! All memory of the caller is read and written in `pointers.rs`, all callbacks are called in
//! `progress.rs` and `answer.rs`. The rest is safe: handles are numbers, see `handles.rs`.

#![warn(missing_docs)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the head of the header has the rules of all functions"
)]

mod answer;
mod error;
mod facts;
mod failure;
mod handles;
mod messages;
mod model;
mod options;
mod pointers;
mod progress;
mod request;
mod session;
mod settings;
mod status;
mod text;
mod values;

pub use answer::*;
pub use error::*;
pub use failure::moeflux_error;
pub use model::*;
pub use options::*;
pub use progress::moeflux_progress;
pub use request::*;
pub use session::*;
pub use status::moeflux_status;
pub use text::*;
