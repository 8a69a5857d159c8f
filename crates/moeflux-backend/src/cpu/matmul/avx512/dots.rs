//! Integer dots of consecutive groups, sixteen at a time, in the order of
//! memory.
//!
//! A vector of products holds one, two, four or eight groups side by side. Each
//! 32-bit lane is a partial sum; sixteen groups' lanes are added up by pairs
//! until one vector holds their sixteen sums.

use std::arch::x86_64::*;
use std::ops::Range;

use super::params::GROUPS;
use super::unpack::{look_up, unpack};
use super::vector::{load_64, store_64, store_floats};
use crate::cpu::matmul::Quantised;
use crate::cpu::matmul::integers::{largest, width};

/// A row of activations in the order that [`group_dots`] of one format likes,
/// repeated as often as it takes until both a row and a block of columns end.
#[derive(Default)]
pub(super) struct Repeated {
    /// `period` columns, then the first sixteen groups again: a block of all
    /// limbs, the one that counts 256 times first, then the next block.
    lines: Vec<Line>,
    period: usize,
    n_limbs: usize,
}

/// What vectors are loaded from: a load that crosses lines takes as long as two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

/// Columns of 64 packed bytes where shifting and masking unpacks them; the
/// others keep their natural order.
const fn block_cols(bits: usize) -> usize {
    match bits {
        2 | 4 => 64 * 8 / bits,
        _ => 64,
    }
}

/// Within a block of columns `per_byte` share a byte: first come the first of
/// every byte, then the second ones, and so on.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn repeat<const CODES: usize, const GROUP: usize>(
    x: &Quantised,
    row: usize,
    out: &mut Repeated,
) {
    let (cols, n_limbs) = (x.cols(), x.n_limbs());
    let mut period = cols;
    while !period.is_multiple_of(block_cols(width(CODES))) {
        period += cols;
    }
    (out.period, out.n_limbs) = (period, n_limbs);
    let n = (period + GROUPS * GROUP) / 64 * n_limbs;
    let lines = &mut out.lines;
    lines.clear();
    lines.reserve(n);
    let mut limbs = [0, n_limbs - 1].map(|limb| x.q(row, limb).as_chunks::<32>().0.iter().cycle());
    for _ in (0..period).step_by(block_cols(width(CODES))) {
        for halves in &mut limbs[..n_limbs] {
            for _ in 0..block_cols(width(CODES)) / 64 {
                let mut line = Line([0; 64]);
                for (to, from) in line.0.as_chunks_mut::<32>().0.iter_mut().zip(&mut *halves) {
                    *to = bytemuck::cast(*from);
                }
                lines.push(line);
            }
        }
    }
    for block in lines.chunks_exact_mut(block_cols(width(CODES)) / 64) {
        match (width(CODES), &mut *block) {
            (4, [first, second]) => {
                let (a, b) = (load_64(&first.0), load_64(&second.0));
                store_64(&mut first.0, every::<2>(a, b, 0));
                store_64(&mut second.0, every::<2>(a, b, 1));
            }
            (2, [first, second, third, fourth]) => {
                let (a, b) = (load_64(&first.0), load_64(&second.0));
                let (c, d) = (load_64(&third.0), load_64(&fourth.0));
                for (j, out) in block.iter_mut().enumerate() {
                    let low = every::<4>(a, b, j);
                    let high = _mm512_castsi512_si256(every::<4>(c, d, j));
                    store_64(&mut out.0, _mm512_inserti64x4::<1>(low, high));
                }
            }
            _ => {}
        }
    }
    while lines.len() < n {
        // Whole periods, but for the last time.
        lines.extend_from_within(..lines.len().min(n - lines.len()));
    }
}

/// Every `STEP`-th byte of 128 from `first` on, in the first bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn every<const STEP: usize>(a: __m512i, b: __m512i, first: usize) -> __m512i {
    let places = const {
        let mut it = [0; 64];
        let mut i = 0;
        while i < 64 {
            it[i] = (i * STEP % 128) as u8;
            i += 1;
        }
        it
    };
    let places = _mm512_add_epi8(load_64(&places), _mm512_set1_epi8(first as i8));
    _mm512_permutex2var_epi8(a, places, b)
}

/// Prefetches the scales and biases that the reader of a matrix needs soon.
#[derive(Clone, Copy)]
pub(super) struct ParamPrefetch<'a> {
    pub(super) scales: &'a [u8],
    pub(super) biases: &'a [u8],
    /// Bytes of the parameters of sixteen groups.
    pub(super) step: usize,
    /// Where in the parameters.
    pub(super) at: usize,
    /// Bytes from a packed byte that is read to the one that is prefetched.
    pub(super) distance: usize,
}

/// Bytes that packed weights are prefetched ahead, from memory into the second-level
/// cache: the first level has few buffers for lines in flight.
pub(super) const DISTANCE: usize = 8192;

/// Bytes that they are prefetched ahead from there into the first-level cache.
const NEAR: usize = 512;

impl ParamPrefetch<'_> {
    /// Prefetches the parameters of sixteen groups.
    #[inline]
    #[target_feature(enable = "sse")]
    fn prefetch(&mut self) {
        if self.at % 64 < self.step {
            prefetch(self.scales, self.at);
            prefetch(self.biases, self.at);
        }
        self.at += self.step;
    }
}

/// Prefetches the line that holds byte `at`, which need not exist, into the second-level
/// cache.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch(bytes: &[u8], at: usize) {
    _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(at).cast());
}

/// Prefetches the line that holds byte `at`, which need not exist, into the first-level cache.
#[inline]
#[target_feature(enable = "sse")]
fn prefetch_near(bytes: &[u8], at: usize) {
    _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast());
}

/// Prefetches all lines of `bytes` into the second-level cache.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_all(bytes: &[u8]) {
    (0..bytes.len()).step_by(64).for_each(|at| prefetch(bytes, at));
}

/// The dots of all groups in `packed`, whose first meets group `first` of `x`:
/// one limb or two.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn group_dots<const CODES: usize, const GROUP: usize>(
    packed: &[u8],
    x: &Repeated,
    first: usize,
    param_prefetch: ParamPrefetch<'_>,
    dots: &mut [f32],
) {
    match x.n_limbs {
        1 => limb_dots::<CODES, GROUP, 1>(packed, x, first, param_prefetch, dots),
        _ => limb_dots::<CODES, GROUP, 2>(packed, x, first, param_prefetch, dots),
    }
}

#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn limb_dots<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
    packed: &[u8],
    x: &Repeated,
    first: usize,
    param_prefetch: ParamPrefetch<'_>,
    dots: &mut [f32],
) {
    let mut steps = Steps::<CODES, GROUP, LIMBS>::new(x, first, param_prefetch);
    let whole = packed.chunks_exact(step_bytes(width(CODES), GROUP));
    let rest = whole.remainder();
    let (dots, last) = dots.split_at_mut(whole.len() * GROUPS);
    for (packed, dots) in whole.zip(dots.as_chunks_mut().0) {
        steps.step(packed, dots);
    }
    if !rest.is_empty() {
        let mut padded = [0u8; GROUPS * 128];
        padded[..rest.len()].copy_from_slice(rest);
        let mut out = [0f32; GROUPS];
        steps.step(&padded[..step_bytes(width(CODES), GROUP)], &mut out);
        let n = rest.len() / (GROUP * width(CODES) / 8);
        last[..n].copy_from_slice(&out[..n]);
    }
}

/// Packed bytes of sixteen groups.
pub(super) const fn step_bytes(bits: usize, group: usize) -> usize {
    GROUPS * group * bits / 8
}

/// Goes through groups in the order of memory, sixteen at a time.
pub(super) struct Steps<'a, const CODES: usize, const GROUP: usize, const LIMBS: usize> {
    lines: &'a [Line],
    /// Lines of all columns.
    period: usize,
    /// Lines of sixteen groups, without whole periods.
    step_lines: usize,
    at: usize,
    param_prefetch: ParamPrefetch<'a>,
}

impl<'a, const CODES: usize, const GROUP: usize, const LIMBS: usize>
    Steps<'a, CODES, GROUP, LIMBS>
{
    /// Begins with group `first` of `x`, which has as many limbs.
    pub(super) fn new(x: &'a Repeated, first: usize, param_prefetch: ParamPrefetch<'a>) -> Self {
        assert_eq!(x.n_limbs, LIMBS, "limbs of the activations");
        let period = x.period / 64 * LIMBS;
        let step_lines = GROUPS * GROUP / 64 * LIMBS % period;
        Steps {
            lines: &x.lines,
            period,
            step_lines,
            at: first * GROUP / 64 * LIMBS,
            param_prefetch,
        }
    }

    /// The dots of the next sixteen groups.
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    pub(super) fn step(&mut self, packed: &[u8], out: &mut [f32; GROUPS]) {
        self.param_prefetch.prefetch();
        let x = &self.lines[self.at..][..GROUPS * GROUP / 64 * LIMBS];
        sixteen_dots::<CODES, GROUP, LIMBS>(packed, x, self.param_prefetch.distance, out);
        self.at += self.step_lines;
        if self.at >= self.period {
            self.at -= self.period;
        }
    }
}

/// The dots of sixteen groups, in order.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn sixteen_dots<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
    packed: &[u8],
    x: &[Line],
    distance: usize,
    out: &mut [f32; GROUPS],
) {
    let block_cols = block_cols(width(CODES));
    // Groups side by side in one vector, and blocks that one vector adds up.
    let n_groups = (block_cols / GROUP).max(1);
    let n_blocks = GROUP.div_ceil(block_cols);
    let most = largest(CODES) * 127 * 4 * (block_cols / 64) * n_blocks;
    let most = if LIMBS == 1 { most } else { usize::MAX / 4 };
    // With lengths known here, no load below needs a check.
    let packed = &packed[..GROUPS * GROUP * width(CODES) / 8];
    let x = &x[..GROUPS * GROUP / 64 * LIMBS];
    let mut v = [_mm512_setzero_si512(); 16];
    // Not a loop: indices that are known keep `v` in registers.
    macro_rules! fill {
        ($($k:literal)*) => {$(
            if $k < 16 / n_groups {
                let blocks = $k * n_blocks..($k + 1) * n_blocks;
                v[$k] = lane_sums::<CODES, LIMBS>(packed, x, distance, blocks);
            }
        )*};
    }
    fill!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    let sums = match n_groups {
        1 => sums_of_ones(&v, most),
        2 => sums_of_twos(&v, most),
        4 => sums_of_fours(&v, most),
        _ => sums_of_eights(&v, most),
    };
    store_floats(out, _mm512_cvtepi32_ps(sums));
}

/// The products of some blocks of columns, added up lane by lane.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn lane_sums<const CODES: usize, const LIMBS: usize>(
    packed: &[u8],
    x: &[Line],
    distance: usize,
    blocks: Range<usize>,
) -> __m512i {
    let block_cols = block_cols(width(CODES));
    let mut sums = [_mm512_setzero_si512(); LIMBS];
    for block in blocks {
        let at = block * block_cols * width(CODES) / 8;
        let end = (block + 1) * block_cols * width(CODES) / 8;
        // One line at a time, between the arithmetic: a core has few places for lines under way, and
        // waits where all of them are taken.
        let line = at.next_multiple_of(64);
        if line < end {
            prefetch(packed, line + distance);
            prefetch_near(packed, line + NEAR);
        }
        let packed = &packed[at..end];
        let w = Unpacked::<CODES>::load(packed);
        for limb in 0..LIMBS {
            let x = &x[(block * LIMBS + limb) * block_cols / 64..][..block_cols / 64];
            sums[limb] = w.add_products(sums[limb], x);
        }
    }
    match sums[..] {
        [high, low] => _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low),
        _ => sums[0],
    }
}

/// One block of columns, a byte each.
struct Unpacked<const CODES: usize>([__m512i; 4]);

impl<const CODES: usize> Unpacked<CODES> {
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn load(packed: &[u8]) -> Self {
        let none = _mm512_setzero_si512();
        if !matches!(width(CODES), 2 | 4) {
            return Unpacked([unpack::<CODES>(packed), none, none, none]);
        }
        let w = load_64(packed);
        let mask = _mm512_set1_epi8(((1u32 << width(CODES)) - 1) as i8);
        let first = _mm512_and_si512(w, mask);
        if width(CODES) == 4 {
            let second = _mm512_and_si512(_mm512_srli_epi16::<4>(w), mask);
            return Unpacked([look_up::<CODES>(first), look_up::<CODES>(second), none, none]);
        }
        let second = _mm512_and_si512(_mm512_srli_epi16::<2>(w), mask);
        let third = _mm512_and_si512(_mm512_srli_epi16::<4>(w), mask);
        let fourth = _mm512_and_si512(_mm512_srli_epi16::<6>(w), mask);
        Unpacked([first, second, third, fourth])
    }

    /// Adds the products with one limb.
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn add_products(&self, sum: __m512i, x: &[Line]) -> __m512i {
        let mut sum = _mm512_dpbusd_epi32(sum, self.0[0], load_64(&x[0].0));
        if matches!(width(CODES), 2 | 4) {
            sum = _mm512_dpbusd_epi32(sum, self.0[1], load_64(&x[1].0));
        }
        if CODES == 2 {
            sum = _mm512_dpbusd_epi32(sum, self.0[2], load_64(&x[2].0));
            sum = _mm512_dpbusd_epi32(sum, self.0[3], load_64(&x[3].0));
        }
        sum
    }
}

const EVEN: i32 = 0b10_00_10_00;
const ODD: i32 = 0b11_01_11_01;

/// Sixteen vectors of one group each; no lane is larger than `largest`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn sums_of_ones(v: &[__m512i; 16], largest: usize) -> __m512i {
    let low = add_lane_pairs(four(v, 0, largest), four(v, 4, largest));
    let high = add_lane_pairs(four(v, 8, largest), four(v, 12, largest));
    add_lane_pairs(low, high)
}

/// Eight vectors of two groups each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn sums_of_twos(v: &[__m512i; 16], largest: usize) -> __m512i {
    let sums = add_lane_pairs(four(v, 0, largest), four(v, 4, largest));
    let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    _mm512_permutexvar_epi32(order, sums)
}

/// Four vectors of four groups each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn sums_of_fours(v: &[__m512i; 16], largest: usize) -> __m512i {
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, four(v, 0, largest))
}

/// Two vectors of eight groups each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn sums_of_eights(v: &[__m512i; 16], largest: usize) -> __m512i {
    let order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    _mm512_permutexvar_epi32(order, add_pairs(v[0], v[1], largest))
}

/// Each 128-bit lane of the result holds the sums of that lane of each of four
/// vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn four(v: &[__m512i; 16], at: usize, largest: usize) -> __m512i {
    let ab = add_pairs(v[at], v[at + 1], largest);
    let cd = add_pairs(v[at + 2], v[at + 3], largest);
    add_pairs(ab, cd, 2 * largest)
}

/// In each 128-bit lane: `a0 + a1, a2 + a3, b0 + b1, b2 + b3`. No element is
/// larger than `largest`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_pairs(a: __m512i, b: __m512i, largest: usize) -> __m512i {
    if largest <= i16::MAX as usize {
        // One shuffle instead of two.
        return _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1));
    }
    let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
    let even = _mm512_castps_si512(_mm512_shuffle_ps::<EVEN>(a, b));
    let odd = _mm512_castps_si512(_mm512_shuffle_ps::<ODD>(a, b));
    _mm512_add_epi32(even, odd)
}

/// 128-bit lanes: `a0 + a1, a2 + a3, b0 + b1, b2 + b3`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_lane_pairs(a: __m512i, b: __m512i) -> __m512i {
    let even = _mm512_shuffle_i32x4::<EVEN>(a, b);
    _mm512_add_epi32(even, _mm512_shuffle_i32x4::<ODD>(a, b))
}
