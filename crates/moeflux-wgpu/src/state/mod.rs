//! The backend's state: `gpu` has the struct that all ops change, the other files are the
//! parts of it that several ops share.

pub(crate) mod chain;
pub(crate) mod gpu;
pub(crate) mod mask;
pub(crate) mod prerecorded;
pub(crate) mod quantized_inputs;
pub(crate) mod rope_table;
pub(crate) mod scratch;
