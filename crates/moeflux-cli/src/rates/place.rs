//! Which drive a directory is on.

use std::path::{Path, PathBuf};

/// A name of the drive under a directory, the same from one start of the machine to the next as far
/// as the system has such a name: where it is mounted and what is mounted there.
pub(crate) fn drive_of(dir: &Path) -> String {
    let dir = std::path::absolute(existing(dir)).unwrap_or_else(|_| dir.to_path_buf());
    let dir = dir.canonicalize().unwrap_or(dir);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mount_of(&mounts, &dir).unwrap_or_else(|| device_of(&dir))
}

/// The directory, or the nearest above it that exists.
pub(crate) fn existing(dir: &Path) -> &Path {
    let found = dir.ancestors().find(|dir| dir.is_dir());
    found.filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Of the mounts of Linux the one that `dir` is in.
fn mount_of(mounts: &str, dir: &Path) -> Option<String> {
    let of_line = |line: &str| {
        // id parent major:minor root POINT options [tags] - TYPE SOURCE options
        let (head, tail) = line.split_once(" - ")?;
        let point = PathBuf::from(unescaped(head.split(' ').nth(4)?));
        let mut tail = tail.split(' ');
        let (kind, source) = (tail.next()?, unescaped(tail.next()?));
        let depth = dir.starts_with(&point).then(|| point.components().count())?;
        Some((depth, format!("{source} ({kind}) at {}", point.display())))
    };
    // Of mounts at one place the last is seen.
    mounts.lines().filter_map(of_line).max_by_key(|(depth, _)| *depth).map(|(_, name)| name)
}

/// A name in which blanks and the like are three octal digits.
fn unescaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find('\\') {
        let digits = rest.get(at + 1..at + 4);
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push_str(&rest[..at]);
        match code.filter(u8::is_ascii) {
            Some(code) => {
                out.push(char::from(code));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

#[cfg(unix)]
fn device_of(dir: &Path) -> String {
    use std::os::unix::fs::MetadataExt;

    dir.metadata().map_or_else(|_| String::from("/"), |facts| format!("device {}", facts.dev()))
}

#[cfg(not(unix))]
fn device_of(dir: &Path) -> String {
    let prefix = dir.components().next();
    prefix.map_or_else(String::new, |part| part.as_os_str().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_last_mount_is_taken() {
        let mounts = "\
20 1 254:0 / / rw - ext4 /dev/root rw
21 20 0:5 / /home rw shared:1 - btrfs /dev/nvme0n1p2 rw
22 20 0:6 / /mnt/my\\040drive rw master:2 - xfs /dev/sdb1 rw
23 20 0:7 / /home rw - nfs4 server:/home rw
nonsense
24 20 0:8 / /homes rw - ext4 /dev/sdc rw
";
        for (dir, want) in [
            ("/home/a/.cache", "server:/home (nfs4) at /home"),
            ("/home", "server:/home (nfs4) at /home"),
            ("/homes/a", "/dev/sdc (ext4) at /homes"),
            ("/mnt/my drive/models", "/dev/sdb1 (xfs) at /mnt/my drive"),
            ("/mnt", "/dev/root (ext4) at /"),
        ] {
            assert_eq!(mount_of(mounts, Path::new(dir)).as_deref(), Some(want), "{dir}");
        }
        assert_eq!(mount_of("", Path::new("/a")), None);
        assert_eq!(unescaped(r"a\040b\x\134"), r"a b\x\");
    }

    #[test]
    fn a_place_that_is_still_to_be_made_is_on_the_drive_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        assert_eq!(existing(&below), dir.path());
        assert_eq!(drive_of(&below), drive_of(dir.path()));
        assert!(!drive_of(Path::new("no/such")).is_empty());
    }
}
