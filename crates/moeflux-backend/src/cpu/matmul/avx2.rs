//! The integer product with AVX2.
//!
//! Eight rows of the matrix are unpacked to bytes piece by piece, and each
//! piece multiplies all rows of the activations, with the eight rows as lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use super::IntegerProduct;
use super::floats::decode_floats;
use super::jobs::OutPart;

/// Rows of the matrix that are the lanes of a vector.
const ROWS: usize = 8;
/// Columns that are unpacked together: eight rows of them take a quarter of
/// the first cache. A multiple of every group size.
const COLS: usize = 1024;
/// Groups of a piece, where they are smallest.
const GROUPS: usize = COLS / 32;
/// Rows of the activations whose accumulators are kept together.
const X_ROWS: usize = 64;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn integer_rows(product: IntegerProduct<'_>, rows: Range<usize>, mut out: OutPart<'_>) {
    let n = product.x_rows.len();
    let mut piece = Piece::default();
    for row in rows.clone().step_by(ROWS) {
        let block = row..rows.end.min(row + ROWS);
        for first in (0..n).step_by(X_ROWS) {
            let x_rows = first..n.min(first + X_ROWS);
            let mut sums = [Sums::zero(); X_ROWS];
            for col in (0..product.weight.cols).step_by(COLS) {
                piece.load(&product, block.clone(), col);
                for (i, sums) in x_rows.clone().zip(&mut sums) {
                    piece.multiply(&product, product.x_rows.at(i), sums);
                }
            }
            for (i, sums) in x_rows.zip(&sums) {
                out.put(i, row, &sums.total()[..block.len()]);
            }
        }
    }
}

/// The accumulators of eight outputs.
#[derive(Clone, Copy)]
struct Sums {
    acc: __m256,
    off: __m256,
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero() -> Sums {
        Sums { acc: _mm256_setzero_ps(), off: _mm256_setzero_ps() }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn total(&self) -> [f32; ROWS] {
        let mut out = [0.0; ROWS];
        let total = _mm256_add_ps(self.acc, self.off);
        // SAFETY: eight elements are writable, and the store needs no alignment.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), total) };
        out
    }
}

/// Some columns of eight rows; rows beyond the last keep what was there.
struct Piece {
    q: [[u8; COLS]; ROWS],
    /// Of each group, all rows.
    scale: [[f32; ROWS]; GROUPS],
    bias: [[f32; ROWS]; GROUPS],
    groups: Range<usize>,
}

impl Default for Piece {
    fn default() -> Piece {
        let params = [[0.0; ROWS]; GROUPS];
        Piece { q: [[0; COLS]; ROWS], scale: params, bias: params, groups: 0..0 }
    }
}

impl Piece {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn load(&mut self, product: &IntegerProduct<'_>, rows: Range<usize>, col: usize) {
        let IntegerProduct { weight, affine, .. } = product;
        let end = weight.cols.min(col + COLS);
        self.groups = affine.n_groups(col)..affine.n_groups(end);
        let packed_bytes = weight.format.row_bytes(col)..weight.format.row_bytes(end);
        let next_block = rows.end * weight.format.row_bytes(weight.cols);
        for (r, row) in rows.enumerate() {
            let ahead = next_block + packed_bytes.start * ROWS + r * packed_bytes.len();
            ask_for(weight.weight, ahead..ahead + packed_bytes.len());
            let packed = &product.weight_rows(row..row + 1)[packed_bytes.clone()];
            unpack_row(affine.bits, packed, &mut self.q[r][..end - col]);
            let first = row * product.n_groups();
            let size = affine.params.bytes();
            let bytes = (first + self.groups.start) * size..(first + self.groups.end) * size;
            for (out, stored) in [(&mut self.scale, weight.scales), (&mut self.bias, weight.biases)]
            {
                let mut params = [0.0; GROUPS];
                let params = &mut params[..self.groups.len()];
                decode_floats(affine.params, &stored[bytes.clone()], params);
                out.iter_mut().zip(params).for_each(|(out, it)| out[r] = *it);
            }
        }
    }

    /// Adds the products with one row of the activations.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn multiply(&self, product: &IntegerProduct<'_>, x_row: usize, sums: &mut Sums) {
        match (product.affine.group_size, product.affine.bits) {
            (32, 8) => self.multiply_groups::<32, false>(product, x_row, sums),
            (64, 8) => self.multiply_groups::<64, false>(product, x_row, sums),
            (_, 8) => self.multiply_groups::<128, false>(product, x_row, sums),
            (32, _) => self.multiply_groups::<32, true>(product, x_row, sums),
            (64, _) => self.multiply_groups::<64, true>(product, x_row, sums),
            _ => self.multiply_groups::<128, true>(product, x_row, sums),
        }
    }

    /// `SMALL`: all weights are below 64.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn multiply_groups<const GROUP: usize, const SMALL: bool>(
        &self,
        product: &IntegerProduct<'_>,
        x_row: usize,
        sums: &mut Sums,
    ) {
        let (s, st) = (product.x.s(x_row), product.x.st(x_row));
        let (s, st) = (&s[self.groups.clone()], &st[self.groups.clone()]);
        let x: &[u8] = bytemuck::cast_slice(product.x.q(x_row));
        let x = &x[self.groups.start * GROUP..self.groups.end * GROUP];
        let params = self.scale.iter().zip(&self.bias);
        let inputs = x.as_chunks::<GROUP>().0.iter().zip(s).zip(st);
        let Sums { mut acc, mut off } = *sums;
        for (g, (((x, s), st), (scale, bias))) in inputs.zip(params).enumerate() {
            let mut v = [_mm256_setzero_si256(); ROWS];
            for (q, it) in self.q.iter().zip(&mut v) {
                *it = group_products::<SMALL>(&q.as_chunks::<GROUP>().0[g], x);
            }
            let dots = _mm256_cvtepi32_ps(add_lanes(&v));
            let scale = _mm256_mul_ps(load_floats(scale), _mm256_set1_ps(*s));
            acc = _mm256_fmadd_ps(dots, scale, acc);
            off = _mm256_fmadd_ps(load_floats(bias), _mm256_set1_ps(*st), off);
        }
        *sums = Sums { acc, off };
    }
}

/// Eight partial sums of one group's products.
#[inline]
#[target_feature(enable = "avx2")]
fn group_products<const SMALL: bool>(q: &[u8], x: &[u8]) -> __m256i {
    let mut sum = _mm256_setzero_si256();
    for (q, x) in q.chunks(64).zip(x.chunks(64)) {
        let products = if SMALL {
            // Sums of four products of 63 * 127 stay below 2^15.
            let mut pairs = _mm256_maddubs_epi16(load_32(q), load_32(x));
            if q.len() > 32 {
                let more = _mm256_maddubs_epi16(load_32(&q[32..]), load_32(&x[32..]));
                pairs = _mm256_add_epi16(pairs, more);
            }
            _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
        } else {
            let mut products = wide_products(q, x);
            if q.len() > 32 {
                products = _mm256_add_epi32(products, wide_products(&q[32..], &x[32..]));
            }
            products
        };
        sum = _mm256_add_epi32(sum, products);
    }
    sum
}

/// The products of 32 columns, any byte with any byte.
#[inline]
#[target_feature(enable = "avx2")]
fn wide_products(q: &[u8], x: &[u8]) -> __m256i {
    let low = _mm256_madd_epi16(_mm256_cvtepu8_epi16(load_16(q)), _mm256_cvtepi8_epi16(load_16(x)));
    let high = _mm256_madd_epi16(
        _mm256_cvtepu8_epi16(load_16(&q[16..])),
        _mm256_cvtepi8_epi16(load_16(&x[16..])),
    );
    _mm256_add_epi32(low, high)
}

/// Lane `i` of the result is the sum of all lanes of `v[i]`.
#[inline]
#[target_feature(enable = "avx2")]
fn add_lanes(v: &[__m256i; 8]) -> __m256i {
    let low = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    let high = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

/// The integers of the `bits`-wide stream `packed`, a multiple of 32 of them.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_row(bits: u8, packed: &[u8], out: &mut [u8]) {
    match bits {
        2 => unpack::<2>(packed, out),
        3 => unpack::<3>(packed, out),
        4 => unpack::<4>(packed, out),
        5 => unpack::<5>(packed, out),
        6 => unpack::<6>(packed, out),
        _ => out.copy_from_slice(packed),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn unpack<const BITS: usize>(packed: &[u8], out: &mut [u8]) {
    let (blocks, rest) = out.as_chunks_mut::<32>();
    assert!(rest.is_empty() && packed.len() == blocks.len() * 4 * BITS, "32 columns at a time");
    for (i, block) in blocks.iter_mut().enumerate() {
        let packed = &packed[i * 4 * BITS..];
        let unpacked = match BITS {
            2 => unpack_2(packed),
            4 => unpack_4(packed),
            _ if packed.len() >= 2 * BITS + 16 => unpack_odd::<BITS>(packed),
            _ => {
                let mut padded = [0u8; 32];
                padded[..4 * BITS].copy_from_slice(&packed[..4 * BITS]);
                unpack_odd::<BITS>(&padded)
            }
        };
        // SAFETY: the block is 32 writable bytes, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(block.as_mut_ptr().cast(), unpacked) };
    }
}

/// 32 columns of eight bytes: a byte becomes four.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack_2(packed: &[u8]) -> __m256i {
    let bytes = i64::from_le_bytes(packed[..8].try_into().expect("eight bytes"));
    let w = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes));
    let w = _mm256_or_si256(w, _mm256_slli_epi32::<6>(w));
    let w = _mm256_or_si256(w, _mm256_slli_epi32::<12>(w));
    _mm256_and_si256(w, _mm256_set1_epi8(3))
}

/// 32 columns of sixteen bytes: a byte becomes two.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack_4(packed: &[u8]) -> __m256i {
    let w = _mm256_cvtepu8_epi16(load_16(packed));
    let w = _mm256_or_si256(w, _mm256_slli_epi16::<4>(w));
    _mm256_and_si256(w, _mm256_set1_epi8(15))
}

/// 32 columns of `4 * BITS` bytes, at most 6 bits each. Every column gets the
/// two bytes that it may lie in; a multiplication shifts it to bit 8.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack_odd<const BITS: usize>(packed: &[u8]) -> __m256i {
    let columns = _mm256_set_m128i(load_16(&packed[2 * BITS..]), load_16(packed));
    let factors = const { &shift_factors(BITS) };
    let factors = load_32(bytemuck::cast_slice(factors));
    let first = _mm256_shuffle_epi8(columns, load_32(const { &byte_places(BITS, 0) }));
    let second = _mm256_shuffle_epi8(columns, load_32(const { &byte_places(BITS, 8) }));
    let first = _mm256_srli_epi16::<8>(_mm256_mullo_epi16(first, factors));
    let second = _mm256_srli_epi16::<8>(_mm256_mullo_epi16(second, factors));
    let mask = _mm256_set1_epi8(((1u32 << BITS) - 1) as i8);
    _mm256_and_si256(_mm256_packus_epi16(first, second), mask)
}

/// In both halves: the bytes of columns `from .. from + 8` of sixteen.
const fn byte_places(bits: usize, from: usize) -> [u8; 32] {
    let mut out = [0; 32];
    let mut i = 0;
    while i < 32 {
        let col = from + i % 16 / 2;
        out[i] = (col * bits / 8 + i % 2) as u8;
        i += 1;
    }
    out
}

/// Column `i` begins at bit `i * bits`: what shifts that to bit 8.
const fn shift_factors(bits: usize) -> [u16; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = 1 << (8 - i * bits % 8);
        i += 1;
    }
    out
}

/// Has lines fetched that will be wanted soon; they need not exist. Eight rows
/// are eight short streams, which the processor does not foresee: as much of
/// the next eight rows is asked for, in the order of memory.
#[inline]
#[target_feature(enable = "sse")]
fn ask_for(bytes: &[u8], range: Range<usize>) {
    for at in range.step_by(64) {
        _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(at).cast());
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_floats(floats: &[f32; 8]) -> __m256 {
    // SAFETY: eight elements are readable, and the load needs no alignment.
    unsafe { _mm256_loadu_ps(floats.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_32(bytes: &[u8]) -> __m256i {
    assert!(bytes.len() >= 32);
    // SAFETY: 32 bytes are readable, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_16(bytes: &[u8]) -> __m128i {
    assert!(bytes.len() >= 16);
    // SAFETY: 16 bytes are readable, and the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
