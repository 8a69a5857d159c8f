//! The beginning of a snapshot file: whose state it is, and how much of it.

use std::ops::Range;
use std::path::Path;
use std::sync::Weak;

use moeflux_backend::{CacheSpec, KvType, StateShape};
use moeflux_core::{OptionId, PictureRows, TokenId, hex};
use moeflux_model::ModelShape;
use serde::{Deserialize, Serialize};

use super::host::Facts;
use crate::error::SnapshotError;
use crate::options::Activations;
use crate::positions::pictures::{Pictures, PlacedPicture};
use crate::positions::windows::seen_by;

/// First bytes of every snapshot.
pub(super) const MAGIC: [u8; 8] = *b"MOEFLUXS";

/// The version that is written and read.
pub(super) const VERSION: u32 = 1;

/// Magic, version and length of the header.
pub(super) const PRELUDE_BYTES: usize = 16;

/// Longest header that is read; that of a hundred layers has 20 KB.
pub(super) const MAX_HEADER_BYTES: u32 = 1 << 20;

/// XXH3-128 of all bytes before it, in hexadecimal digits.
pub(super) const CHECKSUM_BYTES: usize = 32;

/// Positions of keys and values in one block.
pub(super) const BLOCK_POSITIONS: usize = 1024;

/// The header of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) family: String,
    /// See [`identity`](super::identity).
    pub(super) model: String,
    /// How products rounded their inputs.
    pub(super) activations: String,
    /// In the model's order.
    pub(super) caches: Vec<StoredCache>,
    /// Positions that the caches hold.
    pub(super) positions: u64,
    /// How many of the first of them have no known token.
    pub(super) unknown: u64,
    /// Positions that a session can be read up to, ascending; the last is the end. Their recurrent
    /// states follow. Without recurrent layers it can be read up to any where there are none.
    pub(super) states: Vec<u64>,
    /// Pictures whose rows are among the tokens, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) pictures: Vec<StoredPicture>,
}

/// A picture as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredPicture {
    /// The position of its first row.
    start: usize,
    /// How many rows it has.
    rows: usize,
    /// Rows by height and width, where positions have three parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<[usize; 2]>,
    /// The token that stands for each of its rows.
    placeholder: u32,
    /// The hash of what the model saw, in hexadecimal digits.
    id: String,
}

impl StoredPicture {
    pub(super) fn of(picture: &PlacedPicture) -> StoredPicture {
        StoredPicture {
            start: picture.start,
            rows: picture.rows.n_rows,
            shape: picture.shape,
            placeholder: picture.placeholder.0,
            id: hex(&picture.rows.id),
        }
    }

    /// The picture, in a session of a model. `None` where it says what no picture can be.
    fn placed(&self, shape: &ModelShape) -> Option<PlacedPicture> {
        let n_rows = self.rows;
        let is_of_shape = match self.shape {
            Some([height, width]) => height.checked_mul(width) == Some(n_rows),
            None => true,
        };
        let has_parts = self.shape.is_some() == shape.has_position_parts;
        let is_known = (self.placeholder as usize) < shape.vocab;
        (n_rows > 0 && is_of_shape && has_parts && is_known).then_some(())?;
        Some(PlacedPicture {
            start: self.start,
            rows: PictureRows { id: unhex(&self.id)?, n_rows },
            placeholder: TokenId(self.placeholder),
            shape: self.shape,
            is_whole: shape.sees_pictures_whole,
            seen: Weak::new(),
        })
    }
}

fn unhex(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    (pairs.len() == bytes.len() && rest.is_empty()).then_some(())?;
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
    }
    Some(bytes)
}

/// A cache as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum StoredCache {
    Kv {
        heads: usize,
        k_dim: usize,
        v_dim: usize,
        dtype: String,
        /// Where there are `states`, only positions that a row at one of them sees are stored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<usize>,
    },
    Entries {
        pool: usize,
        dim: usize,
        dtype: String,
    },
    Conv {
        channels: usize,
        kernel: usize,
    },
    Delta {
        heads: usize,
        k_dim: usize,
        v_dim: usize,
    },
}

impl From<&CacheSpec> for StoredCache {
    fn from(spec: &CacheSpec) -> StoredCache {
        match *spec {
            CacheSpec::Pages { n_heads: heads, k_dim, v_dim, dtype, window } => {
                StoredCache::Kv { heads, k_dim, v_dim, dtype: kv_name(dtype).to_owned(), window }
            }
            CacheSpec::Entries { pool, dim, dtype } => {
                StoredCache::Entries { pool, dim, dtype: kv_name(dtype).to_owned() }
            }
            CacheSpec::State(StateShape::Rows { n, cols: channels }) => {
                StoredCache::Conv { channels, kernel: n + 1 }
            }
            CacheSpec::State(StateShape::Matrices { n: heads, rows: v_dim, cols: k_dim }) => {
                StoredCache::Delta { heads, k_dim, v_dim }
            }
        }
    }
}

fn kv_name(dtype: KvType) -> &'static str {
    match dtype {
        KvType::F32 => "f32",
        KvType::Bf16 => "bf16",
        KvType::Q8 => "q8",
    }
}

fn activations_name(activations: Activations) -> &'static str {
    match activations {
        Activations::Full => "full",
        Activations::Int16 => "int16",
        Activations::Int8 => "int8",
    }
}

impl Header {
    /// The header of a state of this engine's model.
    pub(super) fn new(
        host: &dyn Facts,
        positions: usize,
        n_unknown: usize,
        states: impl Iterator<Item = usize>,
        pictures: &Pictures,
    ) -> Header {
        Header {
            family: host.family().to_owned(),
            model: host.identity().to_owned(),
            activations: activations_name(host.activations()).to_owned(),
            caches: host.shape().caches.iter().map(StoredCache::from).collect(),
            positions: positions as u64,
            unknown: n_unknown as u64,
            states: states.map(|state| state as u64).collect(),
            pictures: pictures.iter().map(StoredPicture::of).collect(),
        }
    }

    /// Parses a header and checks its fields against each other.
    pub(super) fn from_slice(path: &Path, json: &[u8]) -> Result<Header, SnapshotError> {
        let damaged = |what: String| SnapshotError::Damaged { path: path.to_path_buf(), what };
        let header: Header = serde_json::from_slice(json)
            .map_err(|err| damaged(format!("its header: {}", moeflux_core::json_problem(&err))))?;
        let is_ascending = header.states.is_sorted_by(|a, b| a < b);
        let ends_there = header.states.last().is_none_or(|state| *state == header.positions);
        if !is_ascending || !ends_there || header.states.first() == Some(&0) {
            return Err(damaged(String::from("its checkpoints are in disorder")));
        }
        if header.unknown > header.positions {
            return Err(damaged(String::from("more tokens are unknown than there are")));
        }
        Ok(header)
    }

    /// Checks that the state is one of this engine's model, as it runs now.
    pub(super) fn check(&self, path: &Path, host: &dyn Facts) -> Result<(), SnapshotError> {
        let want = Header::new(host, 0, 0, std::iter::empty(), &Pictures::default());
        let other_option = |option, got: &str, want: &str| SnapshotError::OtherOption {
            path: path.to_path_buf(),
            option,
            got: got.to_owned(),
            want: want.to_owned(),
        };
        if self.family != want.family || self.model != want.model {
            return Err(SnapshotError::OtherModel {
                path: path.to_path_buf(),
                family: self.family.clone(),
                got: self.model.clone(),
                want: want.model,
            });
        }
        if self.activations != want.activations {
            return Err(other_option(OptionId::Activations, &self.activations, &want.activations));
        }
        if let Some((got, want)) = self.other_dtype(&want) {
            return Err(other_option(OptionId::KvType, got, want));
        }
        let damaged = |what: &str| {
            Err(SnapshotError::Damaged { path: path.to_path_buf(), what: what.to_owned() })
        };
        if self.caches != want.caches {
            return damaged("its caches are not the model's");
        }
        let may_lack = !host.shape().is_recurrent() || self.positions == 0;
        let may_have = host.shape().has_cut_points() && self.positions > 0;
        if self.states.is_empty() && !may_lack || !self.states.is_empty() && !may_have {
            return damaged("its recurrent states are not the model's");
        }
        let (positions, limit) = (self.n_positions(), host.max_positions());
        if positions > limit {
            return Err(SnapshotError::TooLong { path: path.to_path_buf(), positions, limit });
        }
        Ok(())
    }

    /// The pictures whose rows are among `tokens`, which are all of the file.
    ///
    /// # Errors
    /// Where one is not there, or tokens are outside of the vocabulary and no picture's.
    pub(super) fn pictures(
        &self,
        path: &Path,
        shape: &ModelShape,
        tokens: &[TokenId],
    ) -> Result<Pictures, SnapshotError> {
        let damaged = |what: String| SnapshotError::Damaged { path: path.to_path_buf(), what };
        let n_unknown = usize::try_from(self.unknown).unwrap_or(usize::MAX);
        let mut end = n_unknown;
        let mut pictures = Vec::with_capacity(self.pictures.len());
        for (nth, stored) in self.pictures.iter().enumerate() {
            let wrong = || damaged(format!("its picture {nth} is none of the model's"));
            let picture = stored.placed(shape).ok_or_else(wrong)?;
            let known = picture
                .start
                .checked_sub(end)
                .and_then(|_| tokens.get(picture.start - n_unknown..));
            // The last one may be cut where the file ends.
            let known = known.filter(|known| !known.is_empty()).ok_or_else(wrong)?;
            if !picture.rows.tokens().zip(known).all(|(row, known)| row == *known) {
                return Err(wrong());
            }
            end = picture.start.checked_add(picture.rows.n_rows).ok_or_else(wrong)?;
            pictures.push(picture);
        }
        let pictures = Pictures::new(pictures);
        let mut wrong =
            (n_unknown..).zip(tokens).filter(|(_, token)| token.0 as usize >= shape.vocab);
        match wrong.find(|(position, token)| !pictures.has(**token, *position)) {
            Some((_, token)) => {
                Err(damaged(format!("token {} is outside the vocabulary", token.0)))
            }
            None => Ok(pictures),
        }
    }

    /// The first cache that is stored in another type.
    fn other_dtype<'a>(&'a self, want: &'a Header) -> Option<(&'a str, &'a str)> {
        self.caches.iter().zip(&want.caches).find_map(|pair| match pair {
            (StoredCache::Kv { dtype: got, .. }, StoredCache::Kv { dtype: want, .. })
            | (StoredCache::Entries { dtype: got, .. }, StoredCache::Entries { dtype: want, .. })
                if got != want =>
            {
                Some((got.as_str(), want.as_str()))
            }
            _ => None,
        })
    }

    /// The positions of a cache that the file has, ascending.
    pub(super) fn stored_positions(&self, cache: &CacheSpec) -> Vec<Range<usize>> {
        let cuts: Vec<usize> = self.states.iter().map(|cut| *cut as usize).collect();
        match cache.window() {
            Some(_) if !cuts.is_empty() => seen_by(&cuts, |cut| cache.seen_before(cut)),
            _ => std::iter::once(0..self.n_positions()).collect(),
        }
    }

    /// Positions, as far as they can be counted.
    pub(super) fn n_positions(&self) -> usize {
        usize::try_from(self.positions).unwrap_or(usize::MAX)
    }

    /// Tokens that follow the header.
    pub(super) fn n_tokens(&self) -> u64 {
        self.positions - self.unknown
    }

    /// Bytes of the file whose header has `header_bytes`. Only of a header that
    /// was checked, so that nothing overflows.
    pub(super) fn file_bytes(&self, header_bytes: usize, caches: &[CacheSpec]) -> u64 {
        let rows = |cache: &CacheSpec| {
            let stored = self.stored_positions(cache);
            let bytes = stored.iter().map(|range| cache.saved_bytes(range) - cache.fixed_bytes());
            bytes.map(|bytes| bytes as u64).sum::<u64>()
        };
        let rows: u64 = caches.iter().map(rows).sum();
        let state: u64 = caches.iter().map(|cache| cache.fixed_bytes() as u64).sum();
        (PRELUDE_BYTES + header_bytes + CHECKSUM_BYTES) as u64
            + 4 * self.n_tokens()
            + rows
            + state * self.states.len() as u64
    }
}
