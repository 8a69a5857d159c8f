//! Towers in GGUF files of their own (`mmproj`): what llama.cpp's converter makes of a tower becomes what
//! checkpoints hold.
//!
//! Its names and keys are those of `clip.cpp`. Sizes are taken from tensors where files do not agree about
//! a key.

use std::collections::BTreeMap;

use moeflux_core::checkpoint::{Dtype, FormatError, PartConfig, PartTensor, Tensor, Turned};
use moeflux_core::gguf::{Metadata, PartFile, Value};
use serde_json::{Map, json};

use crate::load::LoadError;

/// A name in files and one of a plan, without endings such as `.weight`.
pub(crate) type Pair = (&'static str, &'static str);

/// How such files describe a tower of one kind.
#[derive(Clone, Copy)]
pub(crate) struct Mmproj {
    /// The value of `clip.projector_type`.
    pub(crate) projector: &'static str,
    /// The key of the patches of a side of what becomes a row, behind `clip.vision.`.
    pub(crate) merge_key: &'static str,
    /// Names outside of blocks.
    pub(crate) outside: &'static [Pair],
    /// What stands before the number of a block in names of the plan.
    pub(crate) blocks: &'static str,
    /// Names below a block's.
    pub(crate) inside: &'static [Pair],
    /// The name in files of a tensor of the plan.
    pub(crate) stored_name: fn(&str) -> Option<String>,
    /// Writes the config and the tensors that are more than other names.
    pub(crate) read: fn(&mut Clip<'_>) -> Result<(), FormatError>,
}

/// Tensors of whole towers for sound, which such files may have, too.
const SOUND: [&str; 2] = ["a.", "mm.a."];

/// What stands before the number of a block in names of files.
const BLOCKS: &str = "v.blk.";

const ARCHITECTURE: &str = "general.architecture";

/// The keys of an encoder of pictures.
const VISION: &str = "clip.vision.";

impl Mmproj {
    /// The name in files of a tensor of the plan.
    pub(crate) fn stored(&self, name: &str) -> Option<String> {
        let in_block = || {
            let rest = name.strip_prefix(self.blocks)?.strip_prefix('.')?;
            let (block, part) = rest.split_once('.')?;
            Some(format!("{BLOCKS}{block}.{}", other(self.inside, part, |pair| (pair.1, pair.0))?))
        };
        other(self.outside, name, |pair| (pair.1, pair.0)).or_else(in_block)
    }

    /// The name of the plan for a tensor of a file.
    fn planned(&self, stored: &str) -> Option<String> {
        let Some(rest) = stored.strip_prefix(BLOCKS) else {
            return other(self.outside, stored, |pair| *pair);
        };
        let (block, part) = rest.split_once('.')?;
        let block: u16 = block.parse().ok()?;
        Some(format!("{}.{block}.{}", self.blocks, other(self.inside, part, |pair| *pair)?))
    }

    /// The tower of a file: its config, and its tensors under the names of the plan. Others keep the
    /// names of the file, so that they show as left over.
    ///
    /// # Errors
    /// If a key or a tensor that says what the tower is is missing or cannot be.
    pub(crate) fn translate(
        &self,
        file: &PartFile,
    ) -> Result<(PartConfig, Vec<PartTensor>), FormatError> {
        let mut clip = Clip::new(file);
        (self.read)(&mut clip)?;
        let Clip { config, stored_keys, mut tensors, used, .. } = clip;
        let is_rest = |tensor: &&Tensor| {
            let name = tensor.stored_name.as_str();
            !used.contains(&name) && !SOUND.iter().any(|start| name.starts_with(start))
        };
        tensors.extend(file.tensors().iter().filter(is_rest).map(|tensor| {
            let name = self.planned(&tensor.stored_name);
            let name = name.unwrap_or_else(|| tensor.stored_name.clone());
            PartTensor::renamed(name, tensor)
        }));
        let stored_name = self.stored_name;
        Ok((PartConfig { values: config.into(), stored_keys, stored_name }, tensors))
    }
}

/// The other name of a tensor by a table: of the whole, or of what stands before its ending.
fn other(pairs: &[Pair], name: &str, of: fn(&Pair) -> Pair) -> Option<String> {
    let found = |name: &str| pairs.iter().map(of).find(|pair| pair.0 == name).map(|pair| pair.1);
    if let Some(name) = found(name) {
        return Some(name.to_owned());
    }
    let (stem, ending) = name.rsplit_once('.')?;
    Some(format!("{}.{ending}", found(stem)?))
}

/// Checks that a file has a tower of a kind, for a model of this width.
///
/// # Errors
/// Where it has none, or that of another model.
pub(crate) fn check(file: &PartFile, projector: &str, hidden: usize) -> Result<(), LoadError> {
    let metadata = file.metadata();
    let rule = "be \"clip\": the file has no vision tower";
    match metadata.text(ARCHITECTURE)? {
        Some("clip") => {}
        Some(other) => {
            return Err(metadata.refuse(ARCHITECTURE, &Value::Text(other.to_owned()), rule).into());
        }
        None => return Err(metadata.missing(ARCHITECTURE, rule).into()),
    }
    let has_vision = "clip.has_vision_encoder";
    if metadata.bool(has_vision)? == Some(false) {
        return Err(metadata.refuse(has_vision, &Value::Bool(false), "be true").into());
    }
    let path = metadata.path();
    let other = |key: &str, value: String, wanted: String| {
        let (path, key) = (path.to_path_buf(), key.to_owned());
        LoadError::OtherTower { path, key, value, wanted }
    };
    // Files with several encoders have a type for each.
    let types = ["clip.vision.projector_type", "clip.projector_type"];
    let stored = types.into_iter().find(|key| metadata.get(key).is_some());
    let Some(key) = stored else {
        return Err(metadata.missing(types[1], &format!("be {projector:?}")).into());
    };
    let value = metadata.text(key)?.unwrap_or_default();
    if value != projector {
        let shown = Value::Text(value.to_owned()).shown();
        return Err(other(key, shown, format!("{projector:?}")));
    }
    let key = "clip.vision.projection_dim";
    match metadata.number(key)? {
        Some(width) if width != hidden => {
            Err(other(key, width.to_string(), format!("rows of {hidden} floats")))
        }
        _ => Ok(()),
    }
}

/// The keys and tensors of a file, and what is made of them.
pub(crate) struct Clip<'a> {
    file: &'a PartFile,
    config: Map<String, serde_json::Value>,
    stored_keys: BTreeMap<String, String>,
    tensors: Vec<PartTensor>,
    used: Vec<&'a str>,
}

impl<'a> Clip<'a> {
    fn new(file: &'a PartFile) -> Clip<'a> {
        Clip {
            file,
            config: Map::new(),
            stored_keys: BTreeMap::new(),
            tensors: Vec::new(),
            used: Vec::new(),
        }
    }

    fn metadata(&self) -> &'a Metadata {
        self.file.metadata()
    }

    /// Writes a key of the config; messages call it `stored`.
    pub(crate) fn put(&mut self, key: &str, value: serde_json::Value, stored: String) {
        self.config.insert(key.to_owned(), value);
        self.stored_keys.insert(key.to_owned(), stored);
    }

    /// Writes a key from a whole number that files must have.
    pub(crate) fn number(&mut self, key: &str, suffix: &str) -> Result<usize, FormatError> {
        let stored = format!("{VISION}{suffix}");
        let number = self.metadata().number(&stored)?;
        let number = number.ok_or_else(|| self.metadata().missing(&stored, "be a whole number"))?;
        self.put(key, json!(number), stored);
        Ok(number)
    }

    /// Writes a key from a whole number that files may leave out.
    pub(crate) fn number_if_any(&mut self, key: &str, suffix: &str) -> Result<(), FormatError> {
        let stored = format!("{VISION}{suffix}");
        if let Some(number) = self.metadata().number(&stored)? {
            self.put(key, json!(number), stored);
        }
        Ok(())
    }

    /// Writes the number that norms add, which files may leave out.
    pub(crate) fn eps(&mut self, key: &str) -> Result<(), FormatError> {
        let stored = format!("{VISION}attention.layer_norm_epsilon");
        if let Some(number) = self.metadata().float(&stored)? {
            self.put(key, json!(number), stored);
        }
        Ok(())
    }

    /// Refuses files whose activation is said to be another than the tower's.
    pub(crate) fn activation(&self, used: &str, other: &str) -> Result<(), FormatError> {
        for (key, wanted) in [(used, true), (other, false)] {
            if self.metadata().bool(key)?.is_some_and(|value| value != wanted) {
                let rule = format!("be {wanted} in files of such towers");
                return Err(self.metadata().refuse(key, &Value::Bool(!wanted), &rule));
            }
        }
        Ok(())
    }

    /// The blocks for which a list of booleans of the file is true; `None` where it has no such list.
    pub(crate) fn true_blocks(&self, suffix: &str) -> Result<Option<Vec<usize>>, FormatError> {
        use moeflux_core::gguf::Array;
        let key = format!("{VISION}{suffix}");
        match self.metadata().get(&key) {
            None => Ok(None),
            Some(Value::Array(Array::Bools(all))) => {
                let set = all.iter().enumerate().filter(|(_, is_set)| **is_set);
                Ok(Some(set.map(|(nth, _)| nth).collect()))
            }
            Some(Value::Array(all)) if all.is_empty() => Ok(Some(Vec::new())),
            Some(other) => Err(self.metadata().refuse(&key, other, "be a list of booleans")),
        }
    }

    /// A tensor of the file.
    pub(crate) fn tensor(&self, name: &str) -> Option<&'a Tensor> {
        self.file.tensors().iter().find(|tensor| tensor.stored_name == name)
    }

    /// The names of all tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.file.tensors().iter().map(|tensor| tensor.stored_name.as_str())
    }

    /// The shape of a tensor, from which a size is taken.
    ///
    /// # Errors
    /// If it is missing.
    pub(crate) fn shape(&self, name: &str) -> Result<&'a [usize], FormatError> {
        let tensor = self.tensor(name).ok_or_else(|| FormatError::TensorMissing {
            path: self.metadata().path().to_path_buf(),
            name: name.to_owned(),
        })?;
        Ok(&tensor.shape)
    }

    /// Writes a key from the rows of a matrix.
    pub(crate) fn rows_of(&mut self, key: &str, name: &str) -> Result<(), FormatError> {
        let rows = self.n_rows(name)?;
        self.put(key, json!(rows), format!("(rows of {name})"));
        Ok(())
    }

    /// The rows of a matrix.
    ///
    /// # Errors
    /// If it is missing.
    pub(crate) fn n_rows(&self, name: &str) -> Result<usize, FormatError> {
        Ok(self.shape(name)?.first().copied().unwrap_or(0))
    }

    /// The sides of a table of places of one matrix, or of rows and columns.
    ///
    /// # Errors
    /// If the table is missing, or its places fill no square.
    pub(crate) fn table_sides(&self) -> Result<[usize; 2], FormatError> {
        let shape = self.shape(TABLE)?;
        let sides = match *shape {
            [rows, columns, _] => Some([rows, columns]),
            [places, _] => {
                let side = places.isqrt();
                (side * side == places).then_some([side; 2])
            }
            _ => None,
        };
        sides.ok_or_else(|| FormatError::Shape {
            path: self.metadata().path().to_path_buf(),
            name: TABLE.to_owned(),
            have: shape.to_vec(),
            want: "[rows, columns, width] or [rows * rows, width]".to_owned(),
        })
    }

    /// Takes the table of places under a name of the plan. Where its vectors are blocks, they are decoded.
    pub(crate) fn take_table(&mut self, name: &str) {
        if let Some(tensor) = self.take(TABLE) {
            self.tensors.push(PartTensor::renamed(name.to_owned(), tensor).decoded());
        }
    }

    /// Takes a tensor that becomes another one.
    pub(crate) fn take(&mut self, name: &str) -> Option<&'a Tensor> {
        let tensor = self.tensor(name)?;
        self.used.push(&tensor.stored_name);
        Some(tensor)
    }

    /// Adds a tensor of the plan.
    pub(crate) fn push(&mut self, tensor: PartTensor) {
        self.tensors.push(tensor);
    }

    /// Takes the product of patches of two frames, whose halves are tensors of their own, as the one
    /// tensor of `(rows, channels, frames, height, width)` called `name`.
    pub(crate) fn take_frames(&mut self, name: &str) {
        let frames = ["v.patch_embd.weight", "v.patch_embd.weight.1"];
        let [Some(one), Some(other)] = frames.map(|frame| self.tensor(frame)) else { return };
        let ([rows, channels, height, width], true) = (&one.shape[..], one.shape == other.shape)
        else {
            return;
        };
        let run = one.extent.len / (rows * channels);
        for frame in frames {
            self.take(frame);
        }
        let shape = vec![*rows, *channels, 2, *height, *width];
        let turned = Turned { n: 1, rows: 2, cols: rows * channels, run };
        let joined = PartTensor::joined(name.to_owned(), vec![one.clone(), other.clone()], shape);
        self.push(joined.turned(turned));
    }

    /// The blocks that a file can have, whatever it says.
    pub(crate) fn blocks(&self, n_blocks: usize) -> std::ops::Range<usize> {
        0..n_blocks.min(self.file.tensors().len())
    }

    /// Takes the queries, keys and values of a block that are tensors of their own as one, `None` where it
    /// has no three such of one shape.
    pub(crate) fn take_apart(
        &mut self,
        block: usize,
        name: String,
        ending: &str,
    ) -> Option<PartTensor> {
        let names = ["q", "k", "v"].map(|part| in_block(block, &format!("attn_{part}.{ending}")));
        let parts: Option<Vec<&Tensor>> = names.iter().map(|name| self.tensor(name)).collect();
        let parts: Vec<Tensor> = parts?.into_iter().cloned().collect();
        if parts.iter().any(|part| part.shape != parts[0].shape) {
            return None;
        }
        let mut shape = parts[0].shape.clone();
        *shape.first_mut()? *= parts.len();
        for name in &names {
            self.take(name);
        }
        Some(PartTensor::joined(name, parts, shape))
    }

    /// Joins queries, keys and values of all blocks that have them apart, as `part` of the plan's blocks.
    pub(crate) fn join_apart(&mut self, n_blocks: usize, blocks: &str, part: &str) {
        for block in self.blocks(n_blocks) {
            for ending in ["weight", "bias"] {
                let name = format!("{blocks}.{block}.{part}.{ending}");
                if let Some(joined) = self.take_apart(block, name, ending) {
                    self.push(joined);
                }
            }
        }
    }
}

/// The table of places.
pub(crate) const TABLE: &str = "v.position_embd.weight";

/// The name of a part of a block.
pub(crate) fn in_block(block: usize, part: &str) -> String {
    format!("{BLOCKS}{block}.{part}")
}

/// Bytes of an element of floats; `None` for other types.
pub(crate) fn float_bytes(tensor: &Tensor) -> Option<usize> {
    match &tensor.dtype {
        Dtype::Float(float) => Some(float.bytes()),
        _ => None,
    }
}
