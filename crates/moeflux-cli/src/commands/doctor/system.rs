//! The processor, memory and the limits of this process.

use std::fs;

use moeflux_core::system::{kib_in_bytes, load_average, processor_name};
use moeflux_engine::isa_names;
use moeflux_store::{MemoryLimit, usable_memory};
use serde_json::json;

use super::finding::{Finding, State};
use crate::bytes::show;

pub(super) fn findings() -> Vec<Finding> {
    let mut all = vec![processor(), load()];
    all.extend(governor());
    let memory = usable_memory();
    all.push(self::memory(&memory));
    let meminfo = fs::read_to_string("/proc/meminfo").ok();
    all.push(page_cache(meminfo.as_deref()));
    all.push(swap(meminfo.as_deref()));
    all.push(huge_pages());
    all.extend(limits());
    all
}

fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn processor() -> Finding {
    let (name, n_cores, isas) = (processor_name(), n_cores(), isa_names());
    let fastest = isas.last().copied().unwrap_or("scalar");
    let plural = if n_cores == 1 { "core" } else { "cores" };
    let state = if fastest == "scalar" { State::Poor } else { State::Good };
    let finding =
        Finding::new("processor", state, format!("{name}, {n_cores} {plural}, kernels: {fastest}"))
            .facts(json!({ "name": name, "cores": n_cores, "isa": fastest, "isas": isas }));
    match (fastest, cfg!(target_arch = "x86_64")) {
        ("scalar", true) => finding.remedy(
            "the processor, or what this virtual machine shows of it, has no AVX2: expose the host's \
             processor to the machine (QEMU: -cpu host), or choose another one",
        ),
        _ => finding,
    }
}

fn load() -> Finding {
    let (Some(load), n_cores) = (load_average(), n_cores()) else {
        return Finding::unknown("load", "this system does not say how busy its cores are");
    };
    let text = format!("{load:.1} threads ran or waited in the last minute");
    let finding =
        |state| Finding::new("load", state, text.clone()).facts(json!({ "average": load }));
    if load > n_cores as f64 / 2.0 {
        finding(State::Note).remedy(
            "other programs keep cores busy: measurements now are lower than what the machine gives",
        )
    } else {
        finding(State::Good)
    }
}

/// How clocks of cores follow their work, where the system lets one choose.
fn governor() -> Option<Finding> {
    let dir = "/sys/devices/system/cpu/cpu0/cpufreq";
    let read = |name: &str| fs::read_to_string(format!("{dir}/{name}")).ok();
    let governor = read("scaling_governor")?.trim().to_owned();
    let driver = read("scaling_driver").unwrap_or_default().trim().to_owned();
    // Drivers that leave clocks to the processor call that `powersave`, and lose nothing by it.
    let is_slow = governor == "powersave" && !driver.contains("pstate");
    let state = if is_slow { State::Poor } else { State::Good };
    let finding = Finding::new("clocks", state, format!("governor {governor} of {driver}"))
        .facts(json!({ "governor": governor, "driver": driver }));
    Some(if is_slow {
        finding.remedy(
            "cores stay at their lowest clock: sudo cpupower frequency-set -g schedutil (or performance)",
        )
    } else {
        finding
    })
}

/// Less than this is too little for any model, and less than that for most.
const LEAST_BYTES: u64 = 128 << 20;
const FEW_BYTES: u64 = 4 << 30;

fn memory(memory: &MemoryLimit) -> Finding {
    let MemoryLimit { total, available, cgroup } = *memory;
    let group = match cgroup {
        Some(limit) => format!("; a control group limits it to {}", show(limit)),
        None => String::new(),
    };
    let text = format!("{} of {} are free{group}", show(available), show(total));
    let state = match available {
        bytes if bytes < LEAST_BYTES => State::Fail,
        bytes if bytes < FEW_BYTES => State::Poor,
        _ => State::Good,
    };
    let finding = Finding::new("memory", state, text).facts(json!({
        "total_bytes": total, "available_bytes": available, "cgroup_bytes": cgroup,
    }));
    match (state, cgroup) {
        (State::Good, _) => finding,
        (_, Some(_)) => finding.remedy(
            "raise the limit of the container or service (docker run --memory, MemoryMax= of systemd), \
             or end other programs in it",
        ),
        _ => finding.remedy("end other programs: what is free becomes the expert cache"),
    }
}

fn page_cache(meminfo: Option<&str>) -> Finding {
    match meminfo.and_then(|text| kib_in_bytes(text, "Cached:")) {
        Some(bytes) => Finding::new(
            "page cache",
            State::Good,
            format!("{} of files; the system gives that back when a model needs it", show(bytes)),
        )
        .facts(json!({ "bytes": bytes })),
        None => Finding::unknown("page cache", "this system does not say how large it is"),
    }
}

fn swap(meminfo: Option<&str>) -> Finding {
    let entry = |label| meminfo.and_then(|text| kib_in_bytes(text, label));
    let (Some(total), Some(free)) = (entry("SwapTotal:"), entry("SwapFree:")) else {
        return Finding::unknown("swap", "this system does not say how much there is");
    };
    let used = total.saturating_sub(free);
    let facts = json!({ "total_bytes": total, "used_bytes": used });
    let text = match total {
        0 => String::from("none: nothing that a model needs is ever swapped out"),
        _ => format!("{} of {} are used", show(used), show(total)),
    };
    // A little is left behind by programs that sleep.
    if used > total / 2 && used > 1 << 30 {
        Finding::new("swap", State::Note, text).facts(facts).remedy(
            "memory has been short: end other programs, or bound the cache with --expert-cache",
        )
    } else {
        Finding::new("swap", State::Good, text).facts(facts)
    }
}

fn huge_pages() -> Finding {
    let name = "huge pages";
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Ok(text) = fs::read_to_string(path) else {
        return Finding::unknown(name, "this system does not say whether it gives any");
    };
    let chosen = text.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    let facts = json!({ "transparent": chosen });
    match chosen.as_str() {
        "never" => {
            Finding::new(name, State::Poor, "transparent huge pages are off").facts(facts).remedy(
                "reads into small pages are slower: echo madvise | sudo tee \
             /sys/kernel/mm/transparent_hugepage/enabled",
            )
        }
        _ => Finding::new(name, State::Good, format!("transparent, {chosen}")).facts(facts),
    }
}

/// Fewer open files than this may not do for a model of many shards and its clients.
#[cfg(unix)]
const FEW_FILES: u64 = 512;

#[cfg(unix)]
fn limits() -> Vec<Finding> {
    use rustix::process::{Resource, getrlimit};

    let current = |resource| getrlimit(resource).current;
    let shown = |bytes: Option<u64>| bytes.map_or(String::from("unlimited"), show);
    let mut all = Vec::new();
    let address_space = current(Resource::As);
    let finding = |state| {
        Finding::new("ulimit -v", state, format!("address space: {}", shown(address_space)))
            .facts(json!({ "bytes": address_space }))
    };
    all.push(match address_space {
        Some(_) => finding(State::Poor).remedy(
            "the address space is limited: mapped files and the expert cache count; ulimit -v unlimited",
        ),
        None => finding(State::Good),
    });
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
    {
        let locked = current(Resource::Memlock);
        let text = format!("locked memory: {}; nothing is locked", shown(locked));
        all.push(Finding::new("ulimit -l", State::Good, text).facts(json!({ "bytes": locked })));
    }
    let files = current(Resource::Nofile);
    let text = files.map_or(String::from("unlimited"), |n| n.to_string());
    let finding = |state| {
        Finding::new("ulimit -n", state, format!("open files: {text}")).facts(json!({ "n": files }))
    };
    all.push(match files {
        Some(n) if n < FEW_FILES => finding(State::Poor).remedy(
            "a server has a file for each client and each shard of the model: ulimit -n 4096",
        ),
        _ => finding(State::Good),
    });
    all
}

#[cfg(not(unix))]
fn limits() -> Vec<Finding> {
    Vec::new()
}
