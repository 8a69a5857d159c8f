//! Packed integers whose words go from output to output, as words that go along a row.

/// Rows and columns of the blocks in which words are transposed, so that the lines of both sides
/// stay in the first cache.
const BLOCK: usize = 16;

/// Shifts of the eight outputs of a word of AWQ.
pub(super) const AWQ_SHIFTS: [u32; 8] = [0, 16, 4, 20, 8, 24, 12, 28];

/// Word `idx` of little-endian bytes.
pub(super) fn word(bytes: &[u8], idx: usize) -> u32 {
    let bytes = &bytes[idx * 4..idx * 4 + 4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The words of a matrix of `rows` rows as the rows of its transpose.
pub(super) fn transpose_words(words: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let (words, _) = words.as_chunks::<4>();
    let mut out = vec![[0; 4]; rows * cols];
    for first_row in (0..rows).step_by(BLOCK) {
        for first_col in (0..cols).step_by(BLOCK) {
            for row in first_row..rows.min(first_row + BLOCK) {
                for col in first_col..cols.min(first_col + BLOCK) {
                    out[col * rows + row] = words[row * cols + col];
                }
            }
        }
    }
    out.into_flattened()
}

/// AWQ's words, each with eight outputs of an input, as words that have eight inputs of an output.
pub(super) fn transpose_awq(words: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let (words, _) = words.as_chunks::<4>();
    let (row_words, out_words) = (rows / 8, cols / 8);
    let mut out = vec![[0; 4]; rows * out_words];
    for first in (0..row_words).step_by(BLOCK) {
        for eighth in 0..out_words {
            for c in first..row_words.min(first + BLOCK) {
                let inputs: [u32; 8] = std::array::from_fn(|k| {
                    u32::from_le_bytes(words[(8 * eighth + k) * row_words + c])
                });
                for (j, shift) in AWQ_SHIFTS.into_iter().enumerate() {
                    let codes = inputs.iter().enumerate();
                    let packed = codes
                        .fold(0, |packed, (k, word)| packed | ((word >> shift) & 15) << (4 * k));
                    out[(8 * c + j) * out_words + eighth] = packed.to_le_bytes();
                }
            }
        }
    }
    out.into_flattened()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_change_places_and_nothing_else() {
        let (rows, cols) = (35, 18);
        let words: Vec<u8> = (0..(rows * cols) as u32).flat_map(u32::to_le_bytes).collect();
        let turned = transpose_words(&words, rows, cols);
        for row in 0..rows {
            for col in 0..cols {
                assert_eq!(word(&turned, col * rows + row), (row * cols + col) as u32);
            }
        }
    }

    #[test]
    fn every_nibble_of_awq_finds_its_row() {
        let (rows, cols) = (24, 40);
        let code = |row: usize, col: usize| ((row * 7 + col * 3) % 16) as u32;
        let mut words = Vec::new();
        for col in 0..cols {
            for c in 0..rows / 8 {
                let outputs = AWQ_SHIFTS.into_iter().enumerate();
                let packed: u32 = outputs.map(|(j, shift)| code(8 * c + j, col) << shift).sum();
                words.extend_from_slice(&packed.to_le_bytes());
            }
        }
        let turned = transpose_awq(&words, rows, cols);
        for row in 0..rows {
            for col in 0..cols {
                let packed = word(&turned, (row * cols + col) / 8);
                assert_eq!((packed >> (4 * (col % 8))) & 15, code(row, col), "{row} {col}");
            }
        }
    }
}
