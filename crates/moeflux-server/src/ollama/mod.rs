//! Ollama's API, for clients that know no other.
//!
//! There is one model, which is always loaded: requests that load or unload it are answered, those
//! that would change which models there are, are refused.

pub(crate) mod chat;
mod format;
pub(crate) mod generate;
pub(crate) mod manage;
mod messages;
pub(crate) mod models;
mod names;
mod options;
mod reply;
mod shorten;
pub(crate) mod show;
