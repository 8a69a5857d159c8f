//! The C interface, called as C calls it.

mod answers;
mod header;
mod hostile;
mod sessions;
mod support;
mod texts;
