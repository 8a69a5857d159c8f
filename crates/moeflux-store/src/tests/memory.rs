//! Control groups as systems and containers present them.

use std::fs;
use std::time::Duration;

use tempfile::TempDir;

use crate::memory::{stalled_under, unallocated_bytes_under, usable_memory_under};
use crate::{IoChoice, IoMode, MemoryLimit, StoreError, resolve_io, usable_memory};

const MEMINFO: &str = "MemTotal:       16000 kB\nMemFree:  1000 kB\nMemAvailable:   12000 kB\n";

#[track_caller]
fn check(files: &[(&str, &str)], total: u64, available: u64) {
    let root = TempDir::new().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let cgroup = (total < 16000 * 1024).then_some(total);
    let want = MemoryLimit { total, available, cgroup };
    assert_eq!(usable_memory_under(root.path()), want, "{files:?}");
}

#[test]
fn control_groups_bound_the_machine() {
    let (physical, free) = (16000 * 1024, 12000 * 1024);
    let v2 = ("proc/self/cgroup", "0::/user.slice/job\n");
    let v1 = ("proc/self/cgroup", "5:devices:/\n4:cpu,memory:/docker/abc\n0::/\n");
    let info = ("proc/meminfo", MEMINFO);
    let own = "sys/fs/cgroup/user.slice/job/memory.max";
    let parent = "sys/fs/cgroup/user.slice/memory.max";

    check(&[info], physical, free);
    check(&[info, v2], physical, free);
    check(&[info, v2, (own, "max\n")], physical, free);
    check(&[info, v2, (own, "9000000\n")], 9_000_000, 9_000_000);
    check(&[info, v2, (own, "max\n"), (parent, "8000000\n")], 8_000_000, 8_000_000);
    check(&[info, v2, (own, "9000000\n"), (parent, "8000000\n")], 8_000_000, 8_000_000);
    check(&[info, v2, (own, "rubbish")], physical, free);
    // `memory.high`, above which the kernel slows processes down, is a limit like `memory.max`.
    let high = "sys/fs/cgroup/user.slice/job/memory.high";
    check(&[info, v2, (own, "9000000\n"), (high, "7500000\n")], 7_500_000, 7_500_000);
    check(&[info, v2, (own, "9000000\n"), (high, "max\n")], 9_000_000, 9_000_000);
    check(&[info, v2, (own, "max\n"), (high, "7500000\n")], 7_500_000, 7_500_000);
    check(&[info, v2, (own, "99000000\n")], physical, free);
    check(
        &[
            info,
            v2,
            (own, "9000000\n"),
            ("sys/fs/cgroup/user.slice/job/memory.current", "8000000\n"),
            (
                "sys/fs/cgroup/user.slice/job/memory.stat",
                "anon 5\ninactive_file 2000000\nactive_file 1000000\n",
            ),
        ],
        9_000_000,
        4_000_000,
    );
    // Inside a container: the path is the host's, the mount is the container's.
    check(
        &[info, v1, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "7000000\n")],
        7_000_000,
        7_000_000,
    );
    check(
        &[info, v1, ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "7000000")],
        7_000_000,
        7_000_000,
    );
    let none = "9223372036854771712\n";
    check(&[info, v1, ("sys/fs/cgroup/memory/memory.limit_in_bytes", none)], physical, free);
    check(&[info, v1, ("sys/fs/cgroup/unified/memory.max", "6000000")], 6_000_000, 6_000_000);
    // A path that leads out of the mount is not followed.
    let odd = ("proc/self/cgroup", "0::/../job\n");
    check(&[info, odd, ("sys/fs/cgroup/job/memory.max", "5000000")], 5_000_000, 5_000_000);
    check(&[info, odd, ("sys/fs/job/memory.max", "5000000")], physical, free);
}

#[test]
fn limits_of_the_process_say_what_it_can_still_allocate() {
    let head = "Limit                     Soft Limit           Hard Limit           Units\n";
    let line =
        |label: &str, soft: &str| format!("{label:<26}{soft:<21}unlimited            bytes\n");
    let left = |space: &str, data: &str| {
        let root = TempDir::new().unwrap();
        let dir = root.path().join("proc/self");
        fs::create_dir_all(&dir).unwrap();
        let limits =
            [head, &line("Max data size", data), &line("Max address space", space)].concat();
        fs::write(dir.join("limits"), limits).unwrap();
        fs::write(dir.join("status"), "VmSize:\t    3000 kB\nVmData:\t    1000 kB\n").unwrap();
        unallocated_bytes_under(root.path())
    };
    assert_eq!(left("unlimited", "unlimited"), None);
    assert_eq!(left("8192000", "unlimited"), Some(5000 * 1024));
    assert_eq!(left("unlimited", "8192000"), Some(7000 * 1024));
    assert_eq!(left("8192000", "8192000"), Some(5000 * 1024));
    assert_eq!(left("1000", "unlimited"), Some(0));
    assert_eq!(unallocated_bytes_under(TempDir::new().unwrap().path()), None);
}

#[test]
fn a_machine_that_tells_nothing_gets_a_guess() {
    let root = TempDir::new().unwrap();
    assert!(usable_memory_under(root.path()).total > 0);
    let here = usable_memory();
    assert!(here.available <= here.total || here.cgroup.is_none());
}

#[test]
fn pressure_is_read_where_there_is_any() {
    let root = TempDir::new().unwrap();
    assert_eq!(stalled_under(root.path()), None);
    fs::create_dir_all(root.path().join("proc/pressure")).unwrap();
    let text = "some avg10=1.00 avg60=0.00 avg300=0.09 total=5191931\nfull avg10=0.00 total=7\n";
    fs::write(root.path().join("proc/pressure/memory"), text).unwrap();
    assert_eq!(stalled_under(root.path()), Some(Duration::from_micros(5_191_931)));
    // The pressure file of the group is preferred to the machine's.
    let group = root.path().join("sys/fs/cgroup/user.slice");
    fs::create_dir_all(&group).unwrap();
    fs::create_dir_all(root.path().join("proc/self")).unwrap();
    fs::write(root.path().join("proc/self/cgroup"), "0::/user.slice\n").unwrap();
    fs::write(group.join("memory.pressure"), "some avg10=0.00 total=44\n").unwrap();
    assert_eq!(stalled_under(root.path()), Some(Duration::from_micros(44)));
}

#[test]
fn the_gate_maps_what_fits_and_reads_what_does_not() {
    let is_direct = cfg!(any(target_os = "linux", windows));
    let scarce = if is_direct { IoMode::Direct } else { IoMode::Pread };
    for (choice, expert_bytes, memory_bytes, explicit_budget, want) in [
        (IoChoice::Auto, 75, 103, false, IoMode::Mmap),
        (IoChoice::Auto, 76, 103, false, scarce),
        (IoChoice::Auto, 76, 103, true, scarce),
        (IoChoice::Auto, 75, 103, true, IoMode::Pread),
        (IoChoice::Auto, 0, 0, false, IoMode::Mmap),
        (IoChoice::Auto, 1, 1000, true, IoMode::Pread),
        (IoChoice::Mmap, u64::MAX, 1, true, IoMode::Mmap),
        (IoChoice::Pread, 0, u64::MAX, false, IoMode::Pread),
        (IoChoice::Direct, 0, u64::MAX, false, IoMode::Direct),
    ] {
        let got = resolve_io(choice, expert_bytes, memory_bytes, explicit_budget);
        assert_eq!(got, want, "{choice:?} {expert_bytes} of {memory_bytes}");
    }
}

#[test]
fn choices_are_read_from_text() {
    assert_eq!("auto".parse::<IoChoice>().unwrap(), IoChoice::Auto);
    assert_eq!("mmap".parse::<IoChoice>().unwrap(), IoChoice::Mmap);
    assert_eq!("pread".parse::<IoChoice>().unwrap(), IoChoice::Pread);
    assert_eq!("direct".parse::<IoChoice>().unwrap(), IoChoice::Direct);
    for value in ["", "Mmap", " pread", "direct "] {
        let err: StoreError = value.parse::<IoChoice>().unwrap_err();
        let want = format!("unknown expert I/O mode {value:?}: choose auto, mmap, pread or direct");
        assert_eq!(err.to_string(), want);
    }
}
