//! Reproducible random numbers and a hash for names: the same on every machine and in every version.
//!
//! Nothing here is secret or unpredictable. Random weights of `synth`, random prompts of `bench` and the
//! seeds of samplers are made of these functions, so none may change its results.

/// A generator of random numbers: splitmix64 of Steele, Lea and Flood (2014).
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// What each number adds to the state: 2^64 divided by the golden ratio.
    pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// A generator whose numbers depend on the seed alone.
    pub const fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed }
    }

    /// The first number of the generator with this seed.
    #[inline]
    pub const fn first_of(state: u64) -> u64 {
        SplitMix64::mix(state.wrapping_add(SplitMix64::STEP))
    }

    /// A bijection of 64-bit words whose results look unrelated to their neighbours'.
    #[inline(always)]
    pub const fn mix(mut word: u64) -> u64 {
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// All 64 bits are random.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        let number = SplitMix64::first_of(self.state);
        self.state = self.state.wrapping_add(SplitMix64::STEP);
        number
    }

    /// In `0..end`, or 0 where that is empty. Uneven by at most `end` in 2^64.
    #[inline]
    pub const fn below(&mut self, end: usize) -> usize {
        let end = if end == 0 { 1 } else { end as u64 };
        (self.next_u64() % end) as usize
    }

    /// Uniform in `-1..1`, a multiple of 2^-23.
    #[inline]
    pub const fn float(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// The next `n` numbers of [`float`](SplitMix64::float).
    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    /// The next `n` bytes, one of each number.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next_u64() >> 56) as u8).collect()
    }
}

/// FNV-1a of 64 bits, by Fowler, Noll and Vo: a hash for names, not against people.
pub fn fnv1a_64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_reference_implementations() {
        let mut random = SplitMix64::new(1_234_567);
        let drawn = [random.next_u64(), random.next_u64(), random.next_u64()];
        assert_eq!(
            drawn,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        assert_eq!(SplitMix64::first_of(1_234_567), drawn[0]);
        assert_eq!(fnv1a_64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a_64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a_64(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn numbers_stay_in_their_ranges_and_reach_both_ends() {
        let mut random = SplitMix64::new(3);
        let units = random.floats(10_000);
        assert!(units.iter().all(|unit| (-1.0..1.0).contains(unit)));
        assert!(units.iter().any(|unit| *unit < -0.99) && units.iter().any(|unit| *unit > 0.99));
        let seen: std::collections::BTreeSet<usize> = (0..1000).map(|_| random.below(7)).collect();
        assert_eq!(seen, (0..7).collect());
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        let bytes: std::collections::BTreeSet<u8> = random.bytes(10_000).into_iter().collect();
        assert_eq!(bytes.len(), 256);
    }
}
