//! A device that is closed leaves nothing after in the process.
#![cfg(target_os = "linux")]

use std::fs;

use moeflux_backend::{Cols, Ops};
use moeflux_wgpu::{Context, OpenError, new_backend};

/// Descriptors, threads, and resident bytes of this process.
fn usage() -> [usize; 3] {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<usize>().unwrap()
    };
    let n_fds = fs::read_dir("/proc/self/fd").unwrap().count();
    [n_fds, field("Threads:"), field("VmRSS:") << 10]
}

/// Opens a device, runs a kernel on it, and closes it.
fn round() -> Result<(), OpenError> {
    let context = Context::open(None)?;
    let mut backend = new_backend(context, None);
    let buf = backend.alloc(1, 64);
    backend.write(buf, &[1.0; 64]);
    let other = backend.alloc(1, 64);
    backend.write(other, &[2.0; 64]);
    let all = |buf| Cols { buf, start: 0, len: 64 };
    backend.add(1, all(buf), all(other));
    assert_eq!(backend.read(buf, 1).unwrap(), [3.0; 64]);
    Ok(())
}

#[test]
#[expect(clippy::print_stdout, reason = "a test that did not run says so, as do its figures")]
fn two_hundred_devices_opened_and_closed_leave_nothing_behind() {
    match round() {
        Ok(()) => {}
        Err(err) if std::env::var_os("MOEFLUX_EXPECTED_GPU").is_some() => panic!("{err}"),
        Err(err) => return println!("SKIP: {err}"),
    }
    for _ in 0..20 {
        round().unwrap();
    }
    let before = usage();
    for _ in 0..180 {
        round().unwrap();
    }
    let after = usage();
    println!("descriptors, threads, resident bytes: {before:?}, then {after:?}");
    assert!(after[0] <= before[0] + 4, "descriptors: {before:?}, then {after:?}");
    assert!(after[1] <= before[1] + 4, "threads: {before:?}, then {after:?}");
    assert!(after[2] <= before[2] + (48 << 20), "resident bytes: {before:?}, then {after:?}");
}
