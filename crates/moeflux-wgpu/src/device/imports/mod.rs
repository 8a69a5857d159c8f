//! The host's memory as the device sees it: a slab imported as a buffer that kernels read, where the
//! API allows that. Nothing is copied.

#[cfg(target_vendor = "apple")]
#[expect(unsafe_code, reason = "memory of the host is shared by raw handles alone")]
mod metal;
#[cfg(not(any(
    windows,
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_vendor = "apple"
)))]
mod none;
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
#[expect(unsafe_code, reason = "memory of the host is shared by raw handles alone")]
mod vulkan;

#[cfg(target_vendor = "apple")]
use metal as interface;
#[cfg(not(any(
    windows,
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_vendor = "apple"
)))]
use none as interface;
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
use vulkan as interface;

pub(crate) mod host_access;
mod pinned_slab;

pub(crate) use interface::{alignment, free_memory, has_room, import, is_apple7, open, own_memory};
pub(crate) use pinned_slab::PinnedSlab;
