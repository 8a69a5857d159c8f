//! How matrix products are laid out on a device (`layout`), chosen by measurement (`trial`) and
//! stored in a file (`file`); `measure` times kernels and memory.

pub(crate) mod file;
pub(crate) mod layout;
pub(crate) mod measure;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod trial;
pub(crate) mod tune;
