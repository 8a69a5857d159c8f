//! The device: `adapter` lists the GPUs of the machine, `context` opens one as `profile` says,
//! `allocated_ahead` has a thread allocate memory for experts, `imports` makes the host's memory readable
//! to its kernels, `work` bounds submissions where a system gives up long ones.

pub(crate) mod adapter;
pub(crate) mod allocated_ahead;
pub(crate) mod buffer;
pub(crate) mod context;
mod experimental;
mod faults;
pub(crate) mod imports;
mod lanes;
pub(crate) mod profile;
#[cfg(any(target_os = "linux", target_os = "freebsd"))]
#[expect(unsafe_code, reason = "only wgpu's own interface to Vulkan takes a list of extensions")]
mod vulkan_instance;
pub(crate) mod work;
