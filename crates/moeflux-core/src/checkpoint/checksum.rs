//! The checksum of containers: XXH3 with 128 bits.

use xxhash_rust::xxh3::Xxh3Default;

/// A checksum of bytes that come in pieces.
#[derive(Clone, Default)]
pub struct Checksum(Xxh3Default);

impl Checksum {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_not_depend_on_the_pieces() {
        let bytes: Vec<u8> = (0..10_000u32).map(|it| it as u8).collect();
        let mut whole = Checksum::default();
        whole.update(&bytes);
        let mut pieces = Checksum::default();
        bytes.chunks(7).for_each(|it| pieces.update(it));
        assert_eq!(whole.hex(), pieces.hex());
        assert_eq!(Checksum::default().hex(), "99aa06d3014798d86001c324468d497f");
    }
}
