//! The original system's format of a session's state: version 1 for attention
//! and delta nets, version 2 with multi-head latent attention.

use moeflux_backend::{Backend, Cache, CacheSpec, DeviceError, KvType, Sequence, StateShape};
use moeflux_core::checkpoint::Config;

use crate::error::{EngineError, StateError};
use crate::positions::checkpoints::States;

/// Stands at the beginning.
const MAGIC: u32 = 0x4D46_4C58;

const VERSION: u32 = 1;
const VERSION_LATENT: u32 = 2;

/// Header fields of version 1 after magic and version; version 2 has all.
const N_FIELDS_V1: usize = 6;

/// Names of the header's fields.
const FIELDS: [&str; 8] = [
    "num_layers",
    "full_attn_interval",
    "num_kv_heads",
    "head_dim",
    "linear_conv_bytes",
    "linear_ssm_bytes",
    "kv_lora_rank",
    "qk_rope_head_dim",
];

/// How a model's state looks in the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WireShape {
    /// In the order of [`FIELDS`].
    fields: [u32; 8],
    layers: Vec<WireLayer>,
}

/// The caches of a layer in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WireLayer {
    /// Keys, then values: two runs of rows.
    Rows { cache: Cache, widths: [usize; 2], heads: usize, is_latent: bool, dtype: KvType },
    /// Two states of fixed length: a convolution's, then a delta rule's.
    States { caches: [Cache; 2], bytes: [usize; 2] },
}

impl WireLayer {
    /// Bytes of the layer's number of positions, where it has one.
    fn len_bytes(&self) -> usize {
        match self {
            WireLayer::Rows { .. } => 4,
            WireLayer::States { .. } => 0,
        }
    }

    /// Bytes after that.
    fn payload_bytes(&self, len: usize) -> Option<usize> {
        match self {
            WireLayer::Rows { widths, .. } => {
                (widths[0] + widths[1]).checked_mul(4)?.checked_mul(len)
            }
            WireLayer::States { bytes, .. } => Some(bytes[0] + bytes[1]),
        }
    }
}

impl WireShape {
    /// The shape of a model whose caches are listed layer by layer.
    pub(crate) fn new(
        config: &Config,
        caches: &[CacheSpec],
        n_layers: usize,
    ) -> Result<WireShape, StateError> {
        let refuse = |what| StateError::NoSuchLayers { what };
        let layers = layers(config, caches)?;
        if layers.len() != n_layers {
            return Err(refuse("its layers have caches of their own kind"));
        }
        let interval = interval(&layers).ok_or(refuse("attention is not in every n-th layer"))?;
        let mut rows = layers.iter().filter_map(|layer| match *layer {
            WireLayer::Rows { widths, heads, is_latent, .. } => Some((widths, heads, is_latent)),
            WireLayer::States { .. } => None,
        });
        let mut states = layers.iter().filter_map(|layer| match *layer {
            WireLayer::States { bytes, .. } => Some(bytes),
            WireLayer::Rows { .. } => None,
        });
        let (first_rows, first_state) = (rows.next(), states.next());
        if rows.any(|state| Some(state) != first_rows)
            || states.any(|state| Some(state) != first_state)
        {
            return Err(refuse("its layers differ in shape"));
        }
        let Some((widths, heads, is_latent)) = first_rows else {
            return Err(refuse("it has no attention"));
        };
        let [conv, ssm] = first_state.unwrap_or([0, 0]);
        let nominal = |key| config.usize(key).map_err(|_| refuse("its config has no head sizes"));
        let attention = if is_latent {
            // These layers of the original have no cache.
            [
                nominal("num_attention_heads")?,
                nominal("qk_nope_head_dim")? + widths[1],
                conv,
                ssm,
                widths[0],
                widths[1],
            ]
        } else if widths[0] == widths[1] {
            [heads, widths[0] / heads, conv, ssm, 0, 0]
        } else {
            return Err(refuse("keys and values differ in length"));
        };
        let mut fields = [0; 8];
        for (field, value) in
            fields.iter_mut().zip([layers.len(), interval].iter().chain(&attention))
        {
            *field = u32::try_from(*value).map_err(|_| refuse("its layers are too large"))?;
        }
        Ok(WireShape { fields, layers })
    }

    fn is_latent(&self) -> bool {
        self.fields[6] > 0
    }

    fn version(&self) -> u32 {
        if self.is_latent() { VERSION_LATENT } else { VERSION }
    }

    fn n_fields(version: u32) -> usize {
        if version == VERSION { N_FIELDS_V1 } else { FIELDS.len() }
    }

    /// Bytes of a state of `len` positions.
    pub(crate) fn size(&self, len: usize) -> Result<usize, StateError> {
        let header = 4 * (2 + Self::n_fields(self.version()));
        let limit = i32::MAX as usize;
        let sum = |sum: usize, layer: &WireLayer| {
            sum.checked_add(layer.len_bytes())?.checked_add(layer.payload_bytes(len)?)
        };
        let size = self.layers.iter().try_fold(header, sum).filter(|_| len <= limit);
        size.ok_or(StateError::LenOverflow { len, limit })
    }

    /// Writes the first `len` positions; `out` has exactly their size.
    pub(crate) fn write(
        &self,
        backend: &mut dyn Backend,
        sequence: Sequence,
        len: usize,
        out: &mut [u8],
    ) -> Result<(), EngineError> {
        let mut out = Out { rest: out };
        out.u32(MAGIC);
        out.u32(self.version());
        for field in &self.fields[..Self::n_fields(self.version())] {
            out.u32(*field);
        }
        for layer in &self.layers {
            match *layer {
                WireLayer::Rows { cache, widths, heads, is_latent, dtype } => {
                    out.u32(len as u32);
                    let saved = backend.save_cache(sequence, cache, 0..len)?;
                    if is_latent {
                        let rows = decode(dtype, widths[0] + widths[1], &saved);
                        for part in [0..widths[0], widths[0]..widths[0] + widths[1]] {
                            let rows = rows.chunks_exact(widths[0] + widths[1]);
                            rows.for_each(|row| out.floats(&row[part.clone()]));
                        }
                    } else {
                        out.floats(&decode(dtype, widths[0] / heads, &saved));
                    }
                }
                WireLayer::States { caches, .. } => {
                    for cache in caches {
                        out.bytes(&backend.save_cache(sequence, cache, 0..0)?);
                    }
                }
            }
        }
        assert!(out.rest.is_empty(), "a state has the size that was said");
        Ok(())
    }

    /// Checks everything about a state, and gives its number of positions.
    pub(crate) fn check(&self, bytes: &[u8], limit: usize) -> Result<usize, StateError> {
        let mut input = In { rest: bytes, layer: 0 };
        self.check_header(&mut input)?;
        let mut common = None;
        for (i, layer) in self.layers.iter().enumerate() {
            input.layer = i;
            let mut len = 0;
            if let WireLayer::Rows { .. } = layer {
                len = input.len(limit)?;
                let (got, want) = (len as u64, *common.get_or_insert(len) as u64);
                if got != want {
                    return Err(StateError::ShapeMismatch { field: "len", got, want });
                }
            }
            input.bytes(layer.payload_bytes(len).unwrap_or(usize::MAX))?;
        }
        match input.rest.len() {
            0 => Ok(common.unwrap_or(0)),
            n => Err(StateError::TrailingBytes { n }),
        }
    }

    fn check_header(&self, input: &mut In<'_>) -> Result<(), StateError> {
        let magic = input.u32()?;
        if magic != MAGIC {
            return Err(StateError::BadMagic { got: magic, want: MAGIC });
        }
        let version = input.u32()?;
        match version {
            VERSION if self.is_latent() => return Err(StateError::MlaUnsupported),
            VERSION | VERSION_LATENT => {}
            got => return Err(StateError::BadVersion { got }),
        }
        let fields = FIELDS.iter().zip(self.fields).take(Self::n_fields(version));
        for (field, want) in fields {
            let got = input.u32()?;
            if got != want {
                let (got, want) = (u64::from(got), u64::from(want));
                return Err(StateError::ShapeMismatch { field, got, want });
            }
        }
        Ok(())
    }

    /// Reads keys and values of a state that was checked into an empty
    /// sequence, and gives its recurrent states.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn read(
        &self,
        backend: &mut dyn Backend,
        sequence: Sequence,
        bytes: &[u8],
    ) -> Result<States, DeviceError> {
        let mut input = In { rest: bytes, layer: 0 };
        self.check_header(&mut input).expect("the state was checked");
        let mut take = |n| input.bytes(n).expect("the state was checked");
        let mut states = Vec::new();
        for layer in &self.layers {
            match *layer {
                WireLayer::Rows { cache, widths, heads, is_latent, dtype } => {
                    let len = u32_at(take(4), 0) as usize;
                    let [first, second] = widths.map(|width| floats(take(4 * len * width)));
                    let saved = if is_latent {
                        let rows = first.chunks_exact(widths[0]);
                        let rows = rows.zip(second.chunks_exact(widths[1]));
                        let rows: Vec<f32> =
                            rows.flat_map(|(a, b)| a.iter().chain(b)).copied().collect();
                        encode(dtype, widths[0] + widths[1], &rows)
                    } else {
                        let dim = widths[0] / heads;
                        [encode(dtype, dim, &first), encode(dtype, dim, &second)].concat()
                    };
                    backend.load_cache(sequence, cache, 0..len, &saved)?;
                }
                WireLayer::States { bytes, .. } => {
                    states.extend(bytes.map(|n| take(n).to_vec()));
                }
            }
        }
        Ok(States::from(states))
    }
}

/// The layers that caches, listed layer by layer, belong to.
fn layers(config: &Config, caches: &[CacheSpec]) -> Result<Vec<WireLayer>, StateError> {
    let refuse = |what| StateError::NoSuchLayers { what };
    let has_values = |cache: &CacheSpec| matches!(cache, CacheSpec::Pages { v_dim: 1.., .. });
    let is_latent = !caches.iter().any(has_values) && config.declares("kv_lora_rank");
    let mut layers = Vec::new();
    let mut rest = caches.iter().zip(0..).map(|(cache, i)| (*cache, Cache(i)));
    while let Some((spec, cache)) = rest.next() {
        layers.push(match spec {
            // Those of an indexer, whose family may have no latent attention to ask for.
            CacheSpec::Pages { v_dim: 0, .. } if !is_latent => {
                return Err(refuse("keys without values"));
            }
            CacheSpec::Pages { n_heads: heads, k_dim, v_dim: 0, dtype, .. } => {
                let rank = config.usize("kv_lora_rank").ok().filter(|n| *n < k_dim);
                let rank = rank.ok_or(refuse("keys without values"))?;
                if heads != 1 {
                    return Err(refuse("several latent heads"));
                }
                let widths = [rank, k_dim - rank];
                WireLayer::Rows { cache, widths, heads, is_latent: true, dtype }
            }
            CacheSpec::Pages { n_heads: heads, k_dim, v_dim, dtype, .. } => {
                let widths = [heads * k_dim, heads * v_dim];
                WireLayer::Rows { cache, widths, heads, is_latent: false, dtype }
            }
            CacheSpec::Entries { .. } => return Err(refuse("entries of pools")),
            CacheSpec::State(StateShape::Rows { .. }) => match rest.next() {
                Some((delta @ CacheSpec::State(StateShape::Matrices { .. }), second)) => {
                    WireLayer::States {
                        caches: [cache, second],
                        bytes: [spec.fixed_bytes(), delta.fixed_bytes()],
                    }
                }
                _ => return Err(refuse("a convolution without a delta rule")),
            },
            CacheSpec::State(StateShape::Matrices { .. }) => {
                return Err(refuse("a delta rule without a convolution"));
            }
        });
    }
    Ok(layers)
}

/// The `n` for which exactly every `n`-th layer has attention.
fn interval(layers: &[WireLayer]) -> Option<usize> {
    let is_attention = |layer: &WireLayer| matches!(layer, WireLayer::Rows { .. });
    let interval = layers.iter().position(is_attention)? + 1;
    let fits =
        |(i, layer): (usize, &WireLayer)| is_attention(layer) == (i + 1).is_multiple_of(interval);
    layers.iter().enumerate().all(fits).then_some(interval)
}

/// Stored vectors of `dim` elements as floats.
fn decode(dtype: KvType, dim: usize, bytes: &[u8]) -> Vec<f32> {
    let row_bytes = dtype.row_bytes(dim);
    let mut values = vec![0.0; bytes.len() / row_bytes * dim];
    for (bytes, values) in bytes.chunks_exact(row_bytes).zip(values.chunks_exact_mut(dim)) {
        dtype.decode_row(bytes, values);
    }
    values
}

/// Vectors of `dim` elements as they are stored.
fn encode(dtype: KvType, dim: usize, values: &[f32]) -> Vec<u8> {
    let row_bytes = dtype.row_bytes(dim);
    let mut bytes = vec![0; values.len() / dim * row_bytes];
    for (bytes, values) in bytes.chunks_exact_mut(row_bytes).zip(values.chunks_exact(dim)) {
        dtype.encode_row(values, bytes);
    }
    bytes
}

fn u32_at(bytes: &[u8], i: usize) -> u32 {
    let at = 4 * i;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
}

/// Bytes being written.
struct Out<'a> {
    rest: &'a mut [u8],
}

impl Out<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        let (now, rest) = std::mem::take(&mut self.rest).split_at_mut(bytes.len());
        now.copy_from_slice(bytes);
        self.rest = rest;
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn floats(&mut self, values: &[f32]) {
        values.iter().for_each(|value| self.bytes(&value.to_le_bytes()));
    }
}

/// Bytes being read.
struct In<'a> {
    rest: &'a [u8],
    /// Where we are, for errors.
    layer: usize,
}

impl<'a> In<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8], StateError> {
        let (layer, got) = (self.layer, self.rest.len());
        let split = self.rest.split_at_checked(n);
        let (now, rest) = split.ok_or(StateError::Truncated { layer, need: n, got })?;
        self.rest = rest;
        Ok(now)
    }

    /// A layer's number of positions.
    fn len(&mut self, limit: usize) -> Result<usize, StateError> {
        let (len, layer) = (self.u32()?.cast_signed(), self.layer);
        match usize::try_from(len) {
            Ok(len) if len > limit => Err(StateError::LenOverflow { len, limit }),
            Ok(len) => Ok(len),
            Err(_) => Err(StateError::NegativeLen { layer, len }),
        }
    }

    fn u32(&mut self) -> Result<u32, StateError> {
        Ok(u32_at(self.bytes(4)?, 0))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use moeflux_core::checkpoint::ResolvedKeys;
    use serde_json::{Value, json};

    use super::*;

    fn shape(
        config: Value,
        caches: &[CacheSpec],
        n_layers: usize,
    ) -> Result<WireShape, StateError> {
        let config = Config::from_value(Path::new("config.json"), config).unwrap();
        WireShape::new(&config, caches, n_layers)
    }

    fn rows(n_heads: usize, k_dim: usize, v_dim: usize) -> CacheSpec {
        CacheSpec::Pages { n_heads, k_dim, v_dim, dtype: KvType::Q8, window: None }
    }

    /// Three delta nets, then attention, and so on.
    fn hybrid(n_layers: usize, n_v_heads: usize) -> Vec<CacheSpec> {
        let channels = 2 * 16 * 128 + n_v_heads * 128;
        let delta = CacheSpec::State(StateShape::Matrices { n: n_v_heads, rows: 128, cols: 128 });
        let layer = |i: usize| match i % 4 {
            3 => vec![rows(2, 256, 256)],
            _ => vec![CacheSpec::State(StateShape::Rows { n: 3, cols: channels }), delta],
        };
        (0..n_layers).flat_map(layer).collect()
    }

    /// The sizes that the original system has for its three models, all of
    /// them written as version 2, eight bytes longer than version 1.
    #[test]
    fn the_originals_models_have_their_sizes() {
        for (n_layers, n_v_heads, fixed, per_position) in
            [(60, 64, 100 + 195_379_200, 61_440), (40, 32, 80 + 65_863_680, 40_960)]
        {
            let shape = shape(json!({}), &hybrid(n_layers, n_v_heads), n_layers).unwrap();
            assert_eq!(shape.size(0).unwrap(), fixed - 8);
            assert_eq!(shape.size(7).unwrap(), fixed - 8 + 7 * per_position);
        }
        let config = json!({
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "num_attention_heads": 128,
        });
        let latent = shape(config, &[rows(1, 576, 0); 61], 61).unwrap();
        assert_eq!(latent.fields, [61, 1, 128, 192, 0, 0, 512, 64]);
        assert_eq!(latent.size(3).unwrap(), 284 + 3 * 140_544);
    }

    #[test]
    fn what_the_header_cannot_say_is_refused() {
        let mut shifted = hybrid(8, 32);
        shifted.rotate_right(1);
        let index_keys = json!({"kv_lora_rank": 16});
        for (config, caches, n_layers) in [
            (json!({}), shifted, 8),
            (json!({}), vec![rows(2, 64, 64), rows(2, 64, 32)], 2),
            (json!({}), vec![rows(2, 64, 64), rows(2, 64, 64)], 1),
            (json!({}), vec![rows(2, 64, 32)], 1),
            (json!({}), vec![rows(1, 64, 0)], 1),
            (index_keys, vec![rows(1, 40, 0), rows(1, 32, 0)], 1),
            (json!({}), vec![CacheSpec::State(StateShape::Rows { n: 3, cols: 8 })], 1),
            (json!({}), Vec::new(), 0),
        ] {
            let refused = shape(config, &caches, n_layers).unwrap_err();
            assert!(matches!(refused, StateError::NoSuchLayers { .. }), "{refused}");
        }
        let config = Config::from_value(Path::new("config.json"), json!({})).unwrap();
        let config = config.resolved(ResolvedKeys::default());
        let with_indexer = [rows(2, 64, 64), rows(1, 24, 0)];
        assert!(WireShape::new(&config, &with_indexer, 1).is_err());
        let overlong = shape(json!({}), &hybrid(4, 32), 4).unwrap().size(1 << 31).unwrap_err();
        assert!(matches!(overlong, StateError::LenOverflow { .. }), "{overlong}");
    }
}
