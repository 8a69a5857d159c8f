//! GPUs: what each lacks, whether its driver computes right, and which package is missing.

use std::fs;

use moeflux_engine::{DeviceFacts, devices, test_device};
use serde_json::json;

use super::finding::{Finding, State};
use crate::bytes::show;
use crate::paths;

pub(super) fn findings() -> Vec<Finding> {
    if !cfg!(feature = "gpu") {
        let text = "this build has no GPU support";
        return vec![
            Finding::new("GPU", State::Note, text)
                .remedy("build it with its default features, or install the published program"),
        ];
    }
    let all = devices(paths::gpu_tuning().as_deref());
    let mut found: Vec<Finding> =
        all.iter().enumerate().map(|(i, facts)| device(i, facts)).collect();
    let has_real = all.iter().any(|facts| !facts.is_software);
    let makers = makers();
    if !has_real && !makers.is_empty() {
        let text =
            format!("the machine has a GPU of {}, and no driver offers it", makers.join(", "));
        found.push(Finding::new("GPU", State::Poor, text).remedy(remedy(&makers)));
    } else if all.is_empty() {
        let text = "none was found; models run on the processor";
        found.push(Finding::new("GPU", State::Good, text));
    }
    found
}

fn device(index: usize, facts: &DeviceFacts) -> Finding {
    let DeviceFacts { name, maker_name, driver, kind, memory_bytes, is_software, lacks, .. } =
        facts;
    let memory = memory_bytes.map_or(String::new(), |bytes| format!(", {}", show(bytes)));
    let text = format!("{name} {maker_name}, {kind}{memory} ({driver})");
    let with_facts = |finding: Finding, rates: Option<[f64; 2]>| {
        finding.facts(json!({
            "device": name,
            "maker_name": maker_name,
            "kind": kind,
            "driver": driver,
            "memory_bytes": memory_bytes,
            "software": is_software,
            "lacks": lacks,
            "read_gb_s": rates.map(|rates| rates[0]),
            "upload_gb_s": rates.map(|rates| rates[1]),
        }))
    };
    if let Some(lacks) = lacks {
        let finding =
            Finding::new("GPU", State::Poor, format!("{text}: cannot run models: {lacks}"));
        return with_facts(finding.remedy("a newer driver may offer it"), None);
    }
    if *is_software {
        let finding = Finding::new("GPU", State::Note, format!("{text}: a software device"));
        return with_facts(finding, None);
    }
    match test_device(index) {
        Ok(rates) => {
            let [read, upload] = rates;
            let text = format!(
                "{text}: passes its self-test; memory {read:.0} GB/s, from the processor's memory {upload:.0} \
                 GB/s"
            );
            with_facts(Finding::new("GPU", State::Good, text), Some(rates))
        }
        Err(why) => {
            let finding = Finding::new("GPU", State::Poor, format!("{text}: {why}"));
            with_facts(finding.remedy("update its driver; until then --device cpu"), None)
        }
    }
}

/// Makers of the display controllers on the PCI bus, as far as the system lists them.
fn makers() -> Vec<&'static str> {
    let mut makers = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        // Class 3 is display controllers, without a monitor too.
        if !read("class").starts_with("0x03") {
            continue;
        }
        let maker = match read("vendor").trim() {
            "0x10de" => "NVIDIA",
            "0x1002" => "AMD",
            "0x8086" => "Intel",
            // Consoles of servers and of virtual machines compute nothing.
            _ => continue,
        };
        if !makers.contains(&maker) {
            makers.push(maker);
        }
    }
    makers
}

/// What offers GPUs of these makers to Vulkan.
fn remedy(makers: &[&str]) -> String {
    let mut parts = Vec::new();
    if makers.contains(&"NVIDIA") {
        parts.push(
            "NVIDIA: its driver with Vulkan (Debian nvidia-driver and nvidia-vulkan-icd, Ubuntu \
             nvidia-driver-NNN, Fedora akmod-nvidia, Arch nvidia-utils); in a container also \
             NVIDIA_DRIVER_CAPABILITIES=all",
        );
    }
    if makers.iter().any(|maker| *maker != "NVIDIA") {
        parts.push(
            "AMD and Intel: Mesa's Vulkan drivers (Debian, Ubuntu and Fedora mesa-vulkan-drivers, Arch \
             vulkan-radeon or vulkan-intel); in a container also --device /dev/dri",
        );
    }
    parts.push(
        "the loader (Debian and Ubuntu libvulkan1, Fedora vulkan-loader, Arch vulkan-icd-loader)",
    );
    parts.join("; ")
}
