//! The file of rates that were seen on this machine, among the caches.
//!
//! A second in which other programs computed or read says little, so that the best rate counts that was
//! ever seen. Entries name the processor and the drive: a home directory can be shared by machines.

use std::path::{Path, PathBuf};

use moeflux_core::atomic_file::{self, Access, Durability};
use moeflux_core::files::read_bounded;
use moeflux_core::private;
use serde::{Deserialize, Serialize};

/// Changes where an older program would misread the file.
const VERSION: u32 = 1;

/// Most entries of a kind; the ones that were seen longest ago go first.
const MOST_ENTRIES: usize = 64;

/// The longest file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// Rates that can be, in GB/s.
const POSSIBLE: std::ops::Range<f64> = 1e-4..1e5;

/// What was seen, and where it is kept.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    path: Option<PathBuf>,
    entries: Entries,
    has_changed: bool,
    /// Why the file was not read, where it is there.
    damage: Option<Damage>,
}

/// Why a file that is there was not read.
#[derive(Debug)]
enum Damage {
    /// What is wrong with it, in words. Another takes its place.
    Broken(String),
    /// It is of another version, whose file it stays.
    Version(u32),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Entries {
    version: u32,
    /// Of memory and of products, by what they were measured with.
    memory: Vec<Entry>,
    /// Of drives, by place and bytes of a read.
    drives: Vec<Entry>,
}

/// A rate that was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Of what.
    what: String,
    /// Bytes of a read; 0 of memory.
    #[serde(default)]
    request_bytes: u64,
    pub(crate) gb_s: f64,
    /// The day, as `2026-11-27`.
    pub(crate) seen: String,
}

/// Which rates are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Drive,
}

/// Whether a better rate that was seen before stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    Counts,
    Forgotten,
}

impl Remembered {
    /// Reads the file at `path`; without one nothing is kept.
    pub(crate) fn open(path: Option<PathBuf>) -> Remembered {
        let read = path.as_deref().map_or(Ok(None), read);
        let (entries, damage) = match read {
            Ok(entries) => (entries.unwrap_or_default(), None),
            Err(why) => (Entries::default(), Some(why)),
        };
        let has_changed = matches!(damage, Some(Damage::Broken(_)));
        Remembered { path, entries, has_changed, damage }
    }

    /// What is wrong with the file, for a line of text.
    pub(crate) fn damage(&self) -> Option<String> {
        let (path, why) = (self.path.as_ref()?.display(), self.damage.as_ref()?);
        Some(match why {
            Damage::Broken(why) => format!("{path}: {why}: rates are measured anew"),
            Damage::Version(version) => format!(
                "{path} is of version {version}, not {VERSION}: another version of moeflux wrote it, so \
                 it stays; rates are measured anew and not remembered"
            ),
        })
    }

    /// The rate of memory that was seen of `what`.
    pub(crate) fn memory(&self, what: &str) -> Option<&Entry> {
        self.entries.memory.iter().find(|entry| entry.what == what)
    }

    /// The rate of a drive in the reads that are nearest in size to `request_bytes`, and no more than
    /// four times larger or smaller: rates of reads of a megabyte and more differ little.
    pub(crate) fn drive(&self, what: &str, request_bytes: u64) -> Option<&Entry> {
        let distance = |entry: &Entry| {
            (entry.request_bytes.max(1) as f64 / request_bytes.max(1) as f64).log2().abs()
        };
        let all = self.entries.drives.iter().filter(|entry| entry.what == what);
        all.filter(|entry| distance(entry) <= 2.0)
            .min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }

    /// Notes a rate that was seen today; one that cannot be is passed over.
    pub(crate) fn see(
        &mut self,
        kind: Kind,
        what: &str,
        request_bytes: u64,
        gb_s: f64,
        before: Before,
    ) {
        if !POSSIBLE.contains(&gb_s) {
            return;
        }
        let entries = match kind {
            Kind::Memory => &mut self.entries.memory,
            Kind::Drive => &mut self.entries.drives,
        };
        let is_same = |entry: &Entry| entry.what == what && entry.request_bytes == request_bytes;
        if before == Before::Forgotten {
            // Reads of other sizes went through the same drive.
            entries.retain(|entry| entry.what != what);
        }
        let old = entries.iter().position(is_same).map(|at| entries.remove(at));
        let seen = today();
        let entry = match old {
            Some(old) if old.gb_s >= gb_s => old,
            _ => Entry { what: what.to_owned(), request_bytes, gb_s, seen },
        };
        entries.push(entry);
        let n_more = entries.len().saturating_sub(MOST_ENTRIES);
        entries.drain(..n_more);
        self.has_changed = true;
    }

    /// Writes what was noted. Where that fails it is measured again another time.
    pub(crate) fn save(&mut self) {
        let is_others = matches!(self.damage, Some(Damage::Version(_)));
        let is_due = self.has_changed && !is_others;
        let Some(path) = self.path.as_deref().filter(|_| is_due) else { return };
        self.has_changed = false;
        self.entries.version = VERSION;
        let Ok(mut text) = serde_json::to_vec_pretty(&self.entries) else { return };
        text.push(b'\n');
        let dir = atomic_file::directory_of(path);
        let _ = private::create_dir_all(dir)
            .and_then(|()| atomic_file::write(path, &text, Access::Private, Durability::Cached));
    }
}

/// The day of now, in UTC.
pub(crate) fn today() -> String {
    chrono::Utc::now().format("%Y-%m-%d").to_string()
}

/// The entries of a file; `None` where there is none.
fn read(path: &Path) -> Result<Option<Entries>, Damage> {
    let text = match read_bounded(path, MOST_BYTES) {
        Ok(text) => text,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(Damage::Broken(err.to_string())),
    };
    // The rest of another version's file may have any form.
    match serde_json::from_slice(&text) {
        Ok(Versioned { version }) if version != VERSION => return Err(Damage::Version(version)),
        _ => {}
    }
    let entries = serde_json::from_slice::<Entries>(&text).map_err(|_| String::from("damaged"));
    entries.and_then(checked).map(Some).map_err(Damage::Broken)
}

/// What files of all versions have.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The entries, where there is nothing in them that this program does not write.
fn checked(entries: Entries) -> Result<Entries, String> {
    let all = || entries.memory.iter().chain(&entries.drives);
    if let Some(entry) = all().find(|entry| !POSSIBLE.contains(&entry.gb_s)) {
        return Err(format!("damaged (a rate of {} GB/s)", entry.gb_s));
    }
    if !all().all(|entry| is_day(&entry.seen)) {
        return Err(String::from("damaged (a day that is none)"));
    }
    if entries.memory.len().max(entries.drives.len()) > MOST_ENTRIES {
        return Err(String::from("damaged (too many entries)"));
    }
    Ok(entries)
}

/// Whether a text is a day as [`today`] writes it.
fn is_day(text: &str) -> bool {
    text.len() == 10 && chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_best_rate_counts_and_lasts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/rates.json");
        let mut file = Remembered::open(Some(path.clone()));
        for gb_s in [2.0, 3.0, 1.0, f64::NAN, f64::INFINITY, -1.0, 0.0] {
            file.see(Kind::Drive, "/dev/a", 2 * MIB, gb_s, Before::Counts);
        }
        file.see(Kind::Memory, "products", 0, 50.0, Before::Counts);
        file.save();
        let mut file = Remembered::open(Some(path.clone()));
        assert_eq!(file.damage(), None);
        let drive = file.drive("/dev/a", 2 * MIB).unwrap();
        assert_eq!((drive.gb_s, drive.seen.len()), (3.0, 10));
        assert_eq!(file.memory("products").map(|entry| entry.gb_s), Some(50.0));
        assert!(file.drive("/dev/b", 2 * MIB).is_none() && file.memory("others").is_none());
        file.see(Kind::Drive, "/dev/a", 2 * MIB, 1.0, Before::Forgotten);
        assert_eq!(file.drive("/dev/a", 2 * MIB).map(|entry| entry.gb_s), Some(1.0));
    }

    #[test]
    fn reads_of_the_nearest_size_are_taken_if_they_are_near() {
        let mut file = Remembered::default();
        for (bytes, gb_s) in [(MIB, 1.0), (16 * MIB, 2.0)] {
            file.see(Kind::Drive, "a", bytes, gb_s, Before::Counts);
        }
        let of = |bytes| file.drive("a", bytes).map(|entry| entry.gb_s);
        assert_eq!(
            [of(MIB / 4), of(3 * MIB), of(5 * MIB), of(64 * MIB)],
            [1.0, 1.0, 2.0, 2.0].map(Some)
        );
        assert_eq!([of(MIB / 5), of(65 * MIB), of(0)], [None; 3]);
    }

    #[test]
    fn a_damaged_file_is_said_to_be_one_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rates.json");
        let entry = |gb_s: &str| {
            format!(
                r#"{{"version": 1, "memory": [], "drives": [{{"what": "a", "request_bytes": 1048576, "gb_s": {gb_s}, "seen": "2026-01-01"}}]}}"#
            )
        };
        for text in [
            "",
            "{",
            "[]",
            "\0\0\0",
            r#"{"version": 1, "memory": []}"#,
            &entry("-3"),
            &entry("1e300"),
            &entry("\"fast\""),
            &entry("3").replace("2026-01-01", "\\u001b[31mred\\nline 2"),
            &entry("3").replace("2026-01-01", "2026-13-01"),
            &entry("3").replace("2026-01-01", "2026-01-01 and more"),
            &" ".repeat(2 << 20),
        ] {
            std::fs::write(&path, text).unwrap();
            let mut file = Remembered::open(Some(path.clone()));
            assert!(file.damage().is_some_and(|line| line.contains("rates.json")), "{text:.40}");
            assert!(file.drive("a", MIB).is_none());
            file.save();
            let file = Remembered::open(Some(path.clone()));
            assert_eq!((file.damage(), file.entries.drives.len()), (None, 0));
        }
        std::fs::write(&path, entry("3")).unwrap();
        let file = Remembered::open(Some(path));
        assert_eq!(file.drive("a", MIB).map(|entry| entry.gb_s), Some(3.0));
    }

    #[test]
    fn a_file_of_another_version_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rates.json");
        for text in [r#"{"version": 2, "memory": [], "drives": []}"#, r#"{"version": 2, "all": 1}"#]
        {
            std::fs::write(&path, text).unwrap();
            let mut file = Remembered::open(Some(path.clone()));
            assert!(file.damage().is_some_and(|line| line.contains("version 2")), "{text}");
            file.see(Kind::Drive, "a", MIB, 1.0, Before::Counts);
            file.save();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn it_stays_short() {
        let mut file = Remembered::default();
        for i in 0..3 * MOST_ENTRIES {
            file.see(Kind::Drive, &format!("drive {i}"), MIB, 1.0, Before::Counts);
        }
        assert_eq!(file.entries.drives.len(), MOST_ENTRIES);
        assert!(file.drive("drive 191", MIB).is_some() && file.drive("drive 0", MIB).is_none());
    }
}
