//! Decoders, and parts of them, that several families share. A family gives its names and its shapes.

pub(crate) mod grouped;
pub(crate) mod hybrid;
pub(crate) mod indexed;
pub(crate) mod latent;
