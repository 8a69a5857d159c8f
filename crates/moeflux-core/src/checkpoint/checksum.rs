//! The checksums of containers: XXH3-128 of files, XXH3-64 of their parts.

use std::ops::Range;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// A checksum of bytes that are passed in pieces.
#[derive(Clone, Default)]
pub struct Checksum(Xxh3Default);

impl Checksum {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The 64-bit sum of all bytes so far, as [`part_checksum`] returns it.
    fn short(&self) -> u64 {
        self.0.digest()
    }

    /// The sum of all bytes so far, as 32 hexadecimal digits.
    pub fn hex(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Checksum").field(&self.hex()).finish()
    }
}

/// XXH3-64 of the bytes of an expert's record or of a resident tensor.
pub fn part_checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Checksums of a file and of its parts, computed while the file is written or read from start to
/// end.
#[derive(Clone, Debug, Default)]
pub struct FileChecksums {
    whole: Checksum,
    n_bytes: u64,
    parts: Vec<Range<u64>>,
    /// The sums of the parts that have ended, in order.
    sums: Vec<u64>,
    /// The sum of the first part that is not in `sums`.
    current: Checksum,
}

impl FileChecksums {
    /// `parts` are byte ranges, ascending and without overlaps. Bytes between them count only for
    /// the file.
    pub fn new(parts: Vec<Range<u64>>) -> FileChecksums {
        FileChecksums { parts, ..FileChecksums::default() }
    }

    /// Adds the next bytes of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        self.whole.update(bytes);
        let start = self.n_bytes;
        self.n_bytes += bytes.len() as u64;
        while let Some(part) = self.parts.get(self.sums.len()) {
            let clip = |at: u64| (at.clamp(start, self.n_bytes) - start) as usize;
            self.current.update(&bytes[clip(part.start)..clip(part.end)]);
            if self.n_bytes < part.end {
                break;
            }
            self.sums.push(self.current.short());
            self.current = Checksum::default();
        }
    }

    /// Number of bytes so far.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// XXH3-128 of all bytes so far, as 32 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.whole.hex()
    }

    /// The [`part_checksum`] of each part that has ended.
    pub fn parts(&self) -> &[u64] {
        &self.sums
    }
}

/// A part's checksum as containers store it.
pub fn part_checksum_hex(sum: u64) -> String {
    format!("{sum:016x}")
}

/// Parses the text that [`part_checksum_hex`] returns.
pub(super) fn part_checksum_of_hex(hex: &str) -> Option<u64> {
    let is_plain = hex.len() == 16 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_plain.then(|| u64::from_str_radix(hex, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_parts_do_not_depend_on_how_bytes_come() {
        let bytes: Vec<u8> = (0..10_000u32).map(|byte| (byte * 7) as u8).collect();
        let parts = [0..100u64, 100..100, 130..5000, 5000..9990];
        let want: Vec<u64> = parts
            .iter()
            .map(|part| part_checksum(&bytes[part.start as usize..part.end as usize]))
            .collect();
        for n in [1, 7, 130, 4096, 10_000] {
            let mut sums = FileChecksums::new(parts.to_vec());
            bytes.chunks(n).for_each(|chunk| sums.update(chunk));
            assert_eq!(sums.parts(), want, "{n}");
            assert_eq!(sums.n_bytes(), 10_000);
        }
        let mut cut = FileChecksums::new(parts.to_vec());
        cut.update(&bytes[..4999]);
        assert_eq!(cut.parts(), &want[..2]);
    }

    #[test]
    fn sums_of_parts_read_back() {
        for sum in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(part_checksum_of_hex(&part_checksum_hex(sum)), Some(sum));
        }
        for odd in ["", "123", "+123456789abcdef", "0123456789abcdeg", "00123456789abcdef"] {
            assert_eq!(part_checksum_of_hex(odd), None, "{odd}");
        }
    }

    #[test]
    fn does_not_depend_on_the_pieces() {
        let bytes: Vec<u8> = (0..10_000u32).map(|value| value as u8).collect();
        let mut whole = Checksum::default();
        whole.update(&bytes);
        let mut pieces = Checksum::default();
        bytes.chunks(7).for_each(|piece| pieces.update(piece));
        assert_eq!(whole.hex(), pieces.hex());
        assert_eq!(Checksum::default().hex(), "99aa06d3014798d86001c324468d497f");
    }
}
