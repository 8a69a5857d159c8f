//! The order of columns within a tile. A dot is exact, so any order does that
//! weights and activations share: the one in which weights unpack quickest.

/// Columns that are unpacked together.
pub(super) const COLS: usize = 64;

/// Whether columns keep their order: where shifting does not unpack them, and
/// in groups smaller than a vector.
pub(super) const fn is_natural(bits: usize, group: usize) -> bool {
    !matches!(bits, 2 | 4) || group < COLS
}

/// Which column of 64 comes at each place, or `None` where all keep theirs.
pub(super) fn order(bits: usize, group: usize) -> Option<&'static [u8; COLS]> {
    if is_natural(bits, group) {
        return None;
    }
    Some(if bits == 4 { const { &interleaved(2) } } else { const { &interleaved(4) } })
}

/// First the first column of every byte of `per_byte`, then the second ones,
/// and so on.
const fn interleaved(per_byte: usize) -> [u8; COLS] {
    let n_bytes = COLS / per_byte;
    let mut out = [0; COLS];
    let mut place = 0;
    while place < COLS {
        out[place] = (place % n_bytes * per_byte + place / n_bytes) as u8;
        place += 1;
    }
    out
}
