//! Ollama's API, for clients that know no other.
//!
//! Its requests load and unload models, and download and remove them where the server lets clients do
//! so.

pub(crate) mod chat;
mod format;
pub(crate) mod generate;
pub(crate) mod keep_alive;
pub(crate) mod manage;
mod messages;
pub(crate) mod models;
mod names;
mod options;
pub(crate) mod reply;
mod shorten;
pub(crate) mod show;
