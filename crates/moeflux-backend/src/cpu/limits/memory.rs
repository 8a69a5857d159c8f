//! A loop that reads and does nothing else.

use std::hint::black_box;

use crate::cpu::isa::for_every_isa;
use crate::cpu::{Isa, Pool};

/// Bytes that a thread takes at a time.
const PIECE: usize = 1 << 20;

/// Reads every byte once.
pub(super) fn read(pool: &Pool, isa: Isa, bytes: &[u8]) {
    pool.run(bytes.len().div_ceil(PIECE), &|i| {
        let mut sum = 0;
        read_piece(isa, &bytes[i * PIECE..bytes.len().min((i + 1) * PIECE)], &mut sum);
        black_box(sum);
    });
}

for_every_isa! {
    fn read_piece(bytes: &[u8], sum: &mut u64) {
        // One plain sum: with several, compilers gather words of different lines.
        let words = bytes.as_chunks::<8>().0.iter();
        *sum = words.fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    }
}
