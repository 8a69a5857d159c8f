//! What a session knows of its positions: their rows, and where its caches can be cut.

pub(crate) mod checkpoints;
pub(crate) mod input;
pub(crate) mod pictures;
pub(crate) mod timeline;
pub(crate) mod windows;
