//! The host's memory as the device sees it: slabs in which the store keeps
//! experts, each as a buffer that kernels read, where the interface allows that.
//! Nothing is copied for it. A slab is imported when an expert of it is first
//! wanted, and given back when the store has given it up.
//!
//! Invariant: who records a kernel that reads an expert there keeps the expert
//! until the device has done so; nobody else writes to its bytes meanwhile.

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

mod pin;
mod reach;
mod slabs;

pub(crate) use interface::{alignment, open, own_memory};
pub(crate) use reach::Reach;
pub(crate) use slabs::{Imports, Lying};
