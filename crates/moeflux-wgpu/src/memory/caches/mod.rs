//! What sequences hold between steps: keys and values in pages (`kv`, `pages`), and recurrent
//! states in slots of shared buffers (`state_slots`).

pub(crate) mod cache;
pub(crate) mod kv;
pub(crate) mod pages;
pub(crate) mod state_slots;
