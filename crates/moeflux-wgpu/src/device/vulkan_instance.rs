//! An instance of Vulkan that opens no connection to a window system.
//!
//! With extensions of a window system in the instance, Mesa's layers connect to Wayland or X11 while
//! devices are listed, and print what they miss there to standard error. Nothing here draws.

use std::ffi::CStr;

use ash::{ext, khr};
use wgpu::hal;
use wgpu::hal::api::Vulkan;
use wgpu::hal::vulkan::CreateInstanceCallbackArgs;
use wgpu::{BackendOptions, Instance, InstanceFlags, MemoryBudgetThresholds};

/// Extensions that lead to a window system or to a display. `VK_KHR_surface`, which leads to none, is
/// not among them: the device's `VK_KHR_swapchain` depends on it.
const OF_WINDOW_SYSTEMS: [&CStr; 6] = [
    khr::wayland_surface::NAME,
    khr::xlib_surface::NAME,
    khr::xcb_surface::NAME,
    khr::display::NAME,
    ext::direct_mode_display::NAME,
    ext::acquire_drm_display::NAME,
];

/// An instance; `None` where there is no loader of Vulkan, or it refuses.
pub(super) fn without_window_system(thresholds: MemoryBudgetThresholds) -> Option<Instance> {
    let descriptor = hal::InstanceDescriptor {
        name: "moeflux",
        flags: InstanceFlags::default(),
        memory_budget_thresholds: thresholds,
        backend_options: BackendOptions::default(),
        telemetry: None,
        display: None,
    };
    let leave_out = |args: CreateInstanceCallbackArgs<'_, '_, '_>| {
        let needs_display = |name: &CStr| OF_WINDOW_SYSTEMS.contains(&name);
        // The last depends on `VK_KHR_display`.
        args.extensions
            .retain(|name| !needs_display(name) && *name != khr::get_display_properties2::NAME);
    };
    // SAFETY: wgpu asks callbacks to remove nothing, since it looks names up in the list before it
    // calls what they stand for. Those removed here stand for surfaces and displays, which are never
    // created, and the list is then that of a loader on a machine without any window system.
    let instance = unsafe {
        hal::vulkan::Instance::init_with_callback(&descriptor, Some(Box::new(leave_out)))
    };
    // SAFETY: the instance was made by wgpu itself, is valid and has no other owner.
    instance.ok().map(|instance| unsafe { Instance::from_hal::<Vulkan>(instance) })
}
