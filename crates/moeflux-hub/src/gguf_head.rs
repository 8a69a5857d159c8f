//! How far the header of a GGUF file reaches.
//!
//! The header says nowhere how long it is: it ends behind the last key and the last tensor. It is
//! read here for its end alone; what its values mean is for who opens the file.

use std::io::{self, Read};

/// Longer headers are none; those with the largest vocabularies have 30 MB.
pub(super) const MAX_BYTES: u64 = 256 << 20;

/// Bytes that are passed over at a time.
const CHUNK: usize = 64 << 10;

/// Dimensions of a tensor at most.
const MAX_DIMS: u32 = 8;

/// Reads a file from its start up to the end of its header. What is no header is read up to where
/// that shows.
///
/// # Errors
/// Those of `source`, which has one where a header is cut off.
pub(super) fn pass_over(source: &mut impl Read) -> io::Result<()> {
    let mut header = Header { source };
    let [magic, version] = [header.u32()?, header.u32()?];
    if magic.to_le_bytes() != *b"GGUF" || !(2..=3).contains(&version) {
        return Ok(());
    }
    let [n_tensors, n_keys] = [header.u64()?, header.u64()?];
    for _ in 0..n_keys {
        header.text()?;
        let kind = header.u32()?;
        if !header.value(kind)? {
            return Ok(());
        }
    }
    for _ in 0..n_tensors {
        header.text()?;
        let n_dims = header.u32()?;
        if n_dims > MAX_DIMS {
            return Ok(());
        }
        // Of each dimension, of the type, of the offset.
        header.skip(8 * u64::from(n_dims) + 4 + 8)?;
    }
    Ok(())
}

struct Header<'a, R> {
    source: &'a mut R,
}

impl<R: Read> Header<'_, R> {
    fn u32(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.source.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.source.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn skip(&mut self, n_bytes: u64) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        let mut left = n_bytes;
        while left > 0 {
            let n = left.min(CHUNK as u64) as usize;
            self.source.read_exact(&mut chunk[..n])?;
            left -= n as u64;
        }
        Ok(())
    }

    fn text(&mut self) -> io::Result<()> {
        let n_bytes = self.u64()?;
        self.skip(n_bytes)
    }

    /// Passes over a value; whether its type is one that there is.
    fn value(&mut self, kind: u32) -> io::Result<bool> {
        match (size_of(kind), kind) {
            (Some(n_bytes), _) => self.skip(n_bytes)?,
            (None, 8) => self.text()?,
            (None, 9) => {
                let kind = self.u32()?;
                let n = self.u64()?;
                match (size_of(kind), kind) {
                    (Some(n_bytes), _) => self.skip(n_bytes.saturating_mul(n))?,
                    (None, 8) => {
                        for _ in 0..n {
                            self.text()?;
                        }
                    }
                    _ => return Ok(false),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Bytes of a value of a type of fixed size.
fn size_of(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn header(n_tensors: u64, keys: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(n_tensors.to_le_bytes());
        bytes.extend((keys.len() as u64).to_le_bytes());
        bytes.extend(keys.concat());
        for _ in 0..n_tensors {
            bytes.extend(text("blk.0.x"));
            bytes.extend([2, 0, 0, 0]);
            bytes.extend([7; 16 + 4 + 8]);
        }
        bytes
    }

    fn key(kind: u32, value: &[u8]) -> Vec<u8> {
        [&text("k")[..], &kind.to_le_bytes(), value].concat()
    }

    fn array(kind: u32, n: u64, values: &[u8]) -> Vec<u8> {
        key(9, &[&kind.to_le_bytes()[..], &n.to_le_bytes(), values].concat())
    }

    /// Bytes that are read of a file.
    fn reach(bytes: &[u8]) -> Option<usize> {
        let mut source = bytes;
        pass_over(&mut source).ok()?;
        Some(bytes.len() - source.len())
    }

    #[test]
    fn a_header_is_read_to_its_end_and_no_further() {
        let mut keys: Vec<Vec<u8>> = [
            (0, 1),
            (1, 1),
            (2, 2),
            (3, 2),
            (4, 4),
            (5, 4),
            (6, 4),
            (7, 1),
            (10, 8),
            (11, 8),
            (12, 8),
        ]
        .iter()
        .map(|(kind, n)| key(*kind, &vec![9; *n]))
        .collect();
        keys.push(key(8, &text("a text")));
        keys.push(array(8, 2, &[text("a"), text("")].concat()));
        keys.push(array(4, 3, &[1; 12]));
        keys.push(array(7, 100_000, &[1; 100_000]));
        let whole = header(5, &keys);
        let file = [&whole[..], &[0; 1000]].concat();
        assert_eq!(reach(&file), Some(whole.len()));
        for cut in [3, 20, 40, whole.len() - 1] {
            assert_eq!(reach(&whole[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn what_is_no_header_is_left_soon() {
        let odd = [0; 100];
        for start in [&b"version https://git-lfs"[..], b"GGUF\x01\0\0\0", b"GGUF\0\0\0\x03"] {
            assert_eq!(reach(&[start, &odd].concat()), Some(8));
        }
        for damage in [key(13, &odd), array(9, 1, &odd), array(40, 1, &odd)] {
            let bytes = [header(0, &[damage]), odd.to_vec()].concat();
            assert!(reach(&bytes).is_some_and(|n| n < 60));
        }
        for endless in [key(8, &[0xff; 8]), array(0, u64::MAX, &odd), array(12, u64::MAX, &odd)] {
            assert_eq!(reach(&header(0, &[endless])), None);
        }
    }
}
