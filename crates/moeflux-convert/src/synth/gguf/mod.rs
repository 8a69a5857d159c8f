//! GGUF files of random weights, in one file or several.

mod header;
mod keys;
mod tensors;

use moeflux_core::checkpoint::{Config, FormatError};
use moeflux_core::gguf::{self, Architecture, StoredNames};
use moeflux_core::manifest::Manifest;
use moeflux_model::{Family, MmprojShape};

use super::options::SynthOptions;
use header::{Key, Value, header};
use keys::Model;
use tensors::{Maker, Stored};

pub(super) use tensors::ALIGNMENT;

/// Bytes of a file that has holes around them.
pub(super) struct Piece<'a> {
    /// Where they begin, in bytes.
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
}

/// A file to be written.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) header: Vec<u8>,
    pub(super) tensors: Vec<Stored>,
}

impl Part {
    /// Bytes of the file.
    pub(super) fn n_bytes(&self) -> u64 {
        let data: u64 = self.tensors.iter().map(Stored::padded_bytes).sum();
        self.header.len() as u64 + data
    }

    /// What readers look at when they open the file: its header, and elements of some tensors.
    pub(super) fn read_when_opened(&self) -> Vec<Piece<'_>> {
        let mut offset = self.header.len() as u64;
        let mut pieces = vec![Piece { offset: 0, bytes: &self.header }];
        for tensor in &self.tensors {
            pieces.extend(tensor.read_when_opened().map(|bytes| Piece { offset, bytes }));
            offset += tensor.padded_bytes();
        }
        pieces
    }
}

/// The files of a model.
pub(super) fn parts(
    shape: &str,
    config: &Config,
    manifest: &Manifest,
    options: &SynthOptions,
) -> Result<Vec<Part>, FormatError> {
    let architecture = architecture(config)?;
    let n_layers = config.usize("num_hidden_layers")?;
    let n_declared = manifest.experts.iter().map(|experts| experts.layer.idx() + 1).max();
    let n_nextn = n_declared.unwrap_or(0).saturating_sub(n_layers);
    let names = StoredNames::of(architecture, n_layers);
    let mix = options.mix;
    let maker = Maker { config, names, mix, n_layers, seed: options.seed };
    let tensors = maker.all(manifest)?;
    let stem = format!("{shape}-{}", mix.name());
    let keys = keys::keys(&Model { config, manifest, architecture, n_layers, n_nextn }, &stem)?;
    Ok(match options.part_bytes {
        None => {
            vec![Part { name: format!("{stem}.gguf"), header: header(&keys, &tensors), tensors }]
        }
        Some(most) => split(&stem, keys, tensors, most),
    })
}

/// The file of a vision tower.
pub(super) fn mmproj(shape: &MmprojShape, seed: u64) -> Part {
    let tensors: Vec<Stored> =
        shape.tensors.iter().map(|(name, dims)| Stored::of_tower(name, dims, seed)).collect();
    let value = |value: &gguf::Value| match value {
        gguf::Value::Integer(number) => Value::count(usize::try_from(*number).unwrap_or(0)),
        gguf::Value::Float(number) => Value::F32(*number as f32),
        gguf::Value::Bool(value) => Value::Bool(*value),
        gguf::Value::Text(text) => Value::Text(text.clone()),
        gguf::Value::Array(gguf::Array::Bools(all)) => Value::Bools(all.clone()),
        gguf::Value::Array(gguf::Array::Floats(all)) => {
            Value::F32s(all.iter().map(|number| *number as f32).collect())
        }
        gguf::Value::Array(_) => Value::Bools(Vec::new()),
    };
    let keys: Vec<Key> =
        shape.keys.iter().map(|(key, stored)| (key.clone(), value(stored))).collect();
    Part { name: "mmproj-BF16.gguf".to_owned(), header: header(&keys, &tensors), tensors }
}

fn architecture(config: &Config) -> Result<&'static Architecture, FormatError> {
    let found = Family::of(config).ok().and_then(|family| family.gguf);
    found.ok_or_else(|| config.refuse("model_type", "have GGUF files"))
}

/// Parts of up to `most` bytes of tensors, the first with all keys. A larger tensor has a part of
/// its own.
fn split(stem: &str, keys: Vec<Key>, tensors: Vec<Stored>, most: u64) -> Vec<Part> {
    let n_tensors = tensors.len();
    let mut groups: Vec<Vec<Stored>> = vec![Vec::new()];
    let mut n_free = most;
    for tensor in tensors {
        let n_bytes = tensor.padded_bytes();
        let group = groups.last_mut().expect("never empty");
        if n_bytes > n_free && !group.is_empty() {
            groups.push(vec![tensor]);
            n_free = most.saturating_sub(n_bytes);
        } else {
            group.push(tensor);
            n_free = n_free.saturating_sub(n_bytes);
        }
    }
    let n = groups.len();
    let mut keys = Some(keys);
    let part = |(nth, tensors): (usize, Vec<Stored>)| {
        let mut keys = keys.take().unwrap_or_default();
        keys.extend(split_keys(nth, n, n_tensors));
        let name = format!("{stem}-{:05}-of-{n:05}.gguf", nth + 1);
        Part { name, header: header(&keys, &tensors), tensors }
    };
    groups.into_iter().enumerate().map(part).collect()
}

/// What each part says of its set.
fn split_keys(nth: usize, n: usize, n_tensors: usize) -> [Key; 3] {
    let short = |n: usize| Value::U16(u16::try_from(n).expect("fewer parts than tensors"));
    let n_tensors = Value::I32(i32::try_from(n_tensors).expect("thousands of tensors"));
    [
        ("split.no".to_owned(), short(nth)),
        ("split.count".to_owned(), short(n)),
        ("split.tensors.count".to_owned(), n_tensors),
    ]
}
