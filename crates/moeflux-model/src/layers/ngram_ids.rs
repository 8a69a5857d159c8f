//! Which rows of a table of n-gram embeddings tokens need: hashes of a token and those before it,
//! as in transformers' `modeling_qwen4_exp`.

use moeflux_core::checkpoint::Config;
use moeflux_core::{SplitMix64, TokenId};
use serde_json::Value;

use crate::load::LoadError;
use crate::rows::RowIds;

/// What the tables of a model have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NgramShape {
    /// Tokens of the longest n-gram.
    pub(crate) ngram: usize,
    /// Rows for n-grams of each length.
    pub(crate) heads: usize,
    /// The sizes of the parts of tables are the primes from here on.
    pub(crate) base: u64,
    /// Divides the rows of a table.
    pub(crate) divisor: u64,
    pub(crate) seed: u64,
    pub(crate) vocab: u64,
    /// Ends n-grams.
    pub(crate) end: TokenId,
}

impl NgramShape {
    pub(crate) fn read(config: &Config) -> Result<NgramShape, LoadError> {
        Ok(NgramShape {
            ngram: config.usize_in("ngram_size", 2..=16)?,
            heads: config.usize_in("heads_per_ngram", 1..=64)?,
            base: config.usize_in("ngram_vocab_size_base", 2..=1 << 31)? as u64,
            divisor: config.usize_in("make_ngram_vocab_size_divisible_by", 1..=1 << 20)? as u64,
            seed: config.usize_in("seed", 0..=u32::MAX as usize)? as u64,
            vocab: config.usize("vocab_size")? as u64,
            end: end_token(config)?,
        })
    }

    /// Rows of a token.
    pub(crate) fn per_token(&self) -> usize {
        (self.ngram - 1) * self.heads
    }
}

/// The token, or the first of a list, as in the reference.
fn end_token(config: &Config) -> Result<TokenId, LoadError> {
    let key = "eos_token_id";
    let first = match config.get(key) {
        Some(Value::Array(ids)) => ids.first(),
        other => other,
    };
    let id = first.and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    let rule = "be a token, or a list of tokens: the first of them ends n-grams";
    id.map(TokenId).ok_or_else(|| config.refuse(key, rule).into())
}

/// The constants of the hash of one layer, where a config has them. GGUF files do, and not what they
/// follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredHash {
    multipliers: Vec<u64>,
    sizes: Vec<u64>,
    offsets: Vec<u64>,
    n_rows: usize,
}

impl StoredHash {
    /// `None` where they follow from other keys.
    pub(crate) fn read(
        config: &Config,
        shape: &NgramShape,
    ) -> Result<Option<StoredHash>, LoadError> {
        let list = |key: &str, n: usize| {
            let all = config.usize_list(key)?.filter(|all| all.len() == n);
            let all = all.ok_or_else(|| config.refuse(key, &format!("have {n} entries")))?;
            Ok::<_, LoadError>(all.into_iter().map(|number| number as u64).collect::<Vec<_>>())
        };
        let sizes = "ple_head_vocab_sizes";
        if config.get(sizes).is_none() {
            return Ok(None);
        }
        let key = "ple_table_rows";
        let n_rows = config.usize_in(key, 1..=1 << 40)?;
        let hash = StoredHash {
            multipliers: list("ple_layer_multipliers", shape.ngram)?,
            sizes: list(sizes, shape.per_token())?,
            offsets: list("ple_head_offsets", shape.per_token())?,
            n_rows,
        };
        if hash.sizes.contains(&0) {
            return Err(config.refuse(sizes, "hold numbers above 0").into());
        }
        let ends = hash.offsets.iter().zip(&hash.sizes).map(|(at, size)| at.checked_add(*size));
        if ends.into_iter().any(|end| end.is_none_or(|end| end > n_rows as u64)) {
            let rule = format!("end within the {n_rows} rows of the table");
            return Err(config.refuse("ple_head_offsets", &rule).into());
        }
        Ok(Some(hash))
    }
}

/// The rows of one layer's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NgramIds {
    shape: NgramShape,
    /// One for each token of an n-gram, the newest first.
    pub(crate) multipliers: Vec<u64>,
    /// Rows of each part of the table.
    pub(crate) sizes: Vec<u64>,
    /// Where each part begins.
    pub(crate) offsets: Vec<u64>,
    n_rows: usize,
}

impl NgramIds {
    /// Of a layer whose constants are stored.
    pub(crate) fn stored(shape: NgramShape, hash: StoredHash) -> NgramIds {
        let StoredHash { multipliers, sizes, offsets, n_rows } = hash;
        NgramIds { shape, multipliers, sizes, offsets, n_rows }
    }

    /// Of the `nth` of the layers that have a table.
    pub(crate) fn new(shape: NgramShape, nth: usize) -> NgramIds {
        let half = (i64::MAX as u64 / shape.vocab / 2).max(1);
        let start = shape.seed.wrapping_add(10_007 * nth as u64);
        let multiplier = |i: u64| {
            let state = start.wrapping_add(SplitMix64::STEP.wrapping_mul(i + 1));
            2 * (SplitMix64::first_of(state) % half) + 1
        };
        let per_token = shape.per_token();
        let sizes: Vec<u64> = primes(shape.base).skip(nth * per_token).take(per_token).collect();
        let offsets = sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end - size)
        });
        NgramIds {
            shape,
            multipliers: (0..shape.ngram as u64).map(multiplier).collect(),
            offsets: offsets.collect(),
            n_rows: rows_of(&sizes, shape.divisor),
            sizes,
        }
    }

    /// Rows of the table.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }
}

/// Rows of a table with parts of these sizes.
fn rows_of(sizes: &[u64], divisor: u64) -> usize {
    let n: u64 = sizes.iter().sum();
    usize::try_from(n.next_multiple_of(divisor)).expect("few heads of 32 bits")
}

/// The primes from `first` on, at least 2.
fn primes(first: u64) -> impl Iterator<Item = u64> {
    let is_prime = |n: &u64| {
        let mut divisors = (2..).take_while(|divisor| divisor * divisor <= *n);
        divisors.all(|divisor| !n.is_multiple_of(divisor))
    };
    (first..).filter(is_prime)
}

impl RowIds for NgramIds {
    fn context(&self) -> usize {
        self.shape.ngram - 1
    }

    fn per_token(&self) -> usize {
        self.shape.per_token()
    }

    fn append_ids(&self, before: &[TokenId], tokens: &[TokenId], ids: &mut Vec<u64>) {
        let NgramShape { ngram, heads, end, .. } = self.shape;
        for (i, token) in tokens.iter().enumerate() {
            let earlier = tokens[..i].iter().rev().chain(before.iter().rev());
            // What is at or before an end, and before the start, counts as the end.
            let earlier = earlier.copied().take_while(|token| *token != end);
            let earlier = earlier.chain(std::iter::repeat(end)).take(ngram - 1);
            let mut hash = u64::from(token.0).wrapping_mul(self.multipliers[0]);
            for (n, token) in earlier.enumerate() {
                hash ^= u64::from(token.0).wrapping_mul(self.multipliers[n + 1]);
                let parts = n * heads..(n + 1) * heads;
                ids.extend(parts.map(|part| hash % self.sizes[part] + self.offsets[part]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: NgramShape = NgramShape {
        ngram: 3,
        heads: 8,
        base: 20_000_000,
        divisor: 128,
        seed: 1234,
        vocab: 248_320,
        end: TokenId(248_044),
    };

    fn ids(before: &[u32], tokens: &[u32]) -> Vec<u64> {
        let as_tokens = |ids: &[u32]| ids.iter().map(|id| TokenId(*id)).collect::<Vec<_>>();
        let mut ids = Vec::new();
        NgramIds::new(SHAPE, 0).append_ids(&as_tokens(before), &as_tokens(tokens), &mut ids);
        ids
    }

    #[test]
    fn published_constants_follow_from_the_config() {
        let published = NgramIds::new(SHAPE, 0);
        let multipliers = [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071];
        assert_eq!(published.multipliers, multipliers);
        let sizes = [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171];
        assert_eq!(published.sizes, sizes.map(|size| 20_000_000 + size));
        assert_eq!(published.n_rows(), 128 * 2_500_012);
    }

    #[test]
    fn rows_are_those_of_the_reference() {
        let all = ids(&[], &[100, 200, 300]);
        let some: Vec<[u64; 3]> =
            all.chunks_exact(16).map(|ids| [ids[0], ids[1], ids[8]]).collect();
        let want = [
            [5_727_835, 21_884_476, 162_363_667],
            [6_669_481, 25_231_135, 164_675_732],
            [6_129_193, 20_484_628, 172_664_702],
        ];
        assert_eq!(some, want);
    }

    #[test]
    fn rows_do_not_depend_on_where_a_step_begins() {
        let tokens = [5, 248_044, 6, 7, 8, 248_044, 248_044, 9];
        let whole = ids(&[], &tokens);
        for at in 1..tokens.len() {
            let before = &tokens[at.saturating_sub(2)..at];
            assert_eq!(ids(before, &tokens[at..]), whole[at * 16..], "from {at}");
        }
    }

    #[test]
    fn n_grams_do_not_reach_over_an_end() {
        let end = SHAPE.end.0;
        assert_eq!(ids(&[1, end], &[2]), ids(&[3, end], &[2]));
        assert_eq!(ids(&[1, end], &[2]), ids(&[], &[2]));
        assert_ne!(ids(&[1, 4], &[end]), ids(&[1, 5], &[end]));
    }
}
