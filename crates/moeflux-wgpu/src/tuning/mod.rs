//! Layouts of matrix products (`layouts`), chosen by measurement (`trial`, `tune`) and stored in a
//! file (`file`); `measure` times kernels and memory.

pub(crate) mod file;
pub(crate) mod measure;
#[cfg(test)]
mod tests;
pub(crate) mod trial;
pub(crate) mod tune;
