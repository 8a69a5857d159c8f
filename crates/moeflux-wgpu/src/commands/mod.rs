//! Commands on their way to the device: `encoder` records kernels and copies in the order of the
//! ops, `submitter` encodes them on background threads and submits them, `encoded_cache` holds
//! encoded commands that are expected again.

pub(crate) mod clock;
pub(crate) mod command;
mod encode;
mod encoded_cache;
pub(crate) mod encoder;
pub(crate) mod grid;
pub(crate) mod submitter;
