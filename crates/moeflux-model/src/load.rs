//! Resident weights from a checkpoint to the device: every tensor claimed,
//! none left over.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use moeflux_backend::profiling::WeightFacts;
use moeflux_backend::trace::Trace;
use moeflux_backend::{ActivationPrecision, Backend, HostMatrix, Weight};
use moeflux_core::checkpoint::{Checkpoint, Claims, Extent, FormatError, MatrixSource};
use moeflux_core::manifest::{
    ConstantsDecl, ExpertsDecl, IndicesDecl, Manifest, MatrixDecl, Role, TableDecl, VectorDecl,
};
use moeflux_core::quant::{Encoding, Float, MatrixFormat, ScaledBlocks};
use moeflux_core::{ExpertBank, HostBuf, OptionId, RowBank};

use crate::read_weights::{check_finite_matrix, read_weights};

/// Why a checkpoint could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its files do not say what they should.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It belongs to no family that this engine has.
    #[error("{}: model_type {model_type:?} is not supported; supported are {known}", path.display())]
    UnknownFamily {
        /// The config.
        path: PathBuf,
        /// What it says.
        model_type: String,
        /// What would do.
        known: String,
    },
    /// A file of a vision tower, for a family that has none.
    #[error(
        "{}: models of type {model_type} take no pictures here; leave {} out",
        path.display(),
        OptionId::Mmproj
    )]
    NoTower {
        /// The file.
        path: PathBuf,
        /// The model's type.
        model_type: String,
    },
    /// A file of a vision tower that belongs to another model.
    #[error("{}: {key} is {value}, this model has {wanted}; name the model's own file ({} FILE)", path.display(), OptionId::Mmproj)]
    OtherTower {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// That of the model.
        wanted: String,
    },
    /// Several files of vision towers, none of which is preferred.
    #[error("{}: {names}: name one of these files ({} FILE)", path.display(), OptionId::Mmproj)]
    SeveralTowers {
        /// The folder.
        path: PathBuf,
        /// The files.
        names: String,
    },
    /// Keys and values in eight bits, for a family whose layers choose the positions that they see:
    /// what rounding changes in one layer changes what the indexers of the next ones choose.
    #[error(
        "{} q8: {family} chooses the positions that it attends to, and q8 changed 4 to 16 of \
         100 most likely tokens of its test models (bf16: 1 to 8); use bf16 or f32",
        OptionId::KvType
    )]
    EightBitIndexedCache {
        /// The family.
        family: &'static str,
    },
}

/// A small tensor on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostVector {
    /// Which of the declared shapes it has.
    pub shape: Vec<usize>,
    /// Its elements.
    pub values: Vec<f32>,
}

/// Where a family's weights come from and go to.
pub trait Weights {
    /// The device.
    fn backend(&mut self) -> &mut dyn Backend;

    /// Loads a matrix; the same name gives the same weight.
    fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        role: Role,
    ) -> Result<Weight, LoadError>;

    /// Loads some rows of a matrix, one run after another, as a matrix of
    /// their own.
    fn matrix_rows(
        &mut self,
        whole: MatrixDecl,
        runs: &[Range<usize>],
    ) -> Result<Weight, LoadError>;

    /// Reads a vector that has one of `shapes`.
    fn vector(&mut self, name: &str, shapes: &[Vec<usize>]) -> Result<HostVector, LoadError>;

    /// Whether the checkpoint holds a tensor of that canonical name; families
    /// ask where exporters store the same thing in several ways.
    fn holds(&self, tensor: &str) -> bool;

    /// The error for a tensor of that canonical name whose values cannot be right.
    fn refuse(&self, tensor: &str, what: &str) -> LoadError;

    /// Finds the routed experts of a layer.
    fn experts(&mut self, decl: ExpertsDecl) -> Result<(), LoadError>;

    /// Finds a table whose rows are read one by one. The order of these calls is that of
    /// [`Model::row_ids`](crate::Model::row_ids).
    fn table(&mut self, decl: TableDecl) -> Result<(), LoadError>;

    /// Reads a table of whole numbers, row by row.
    fn indices(&mut self, decl: IndicesDecl) -> Result<Vec<u32>, LoadError>;

    /// Compares a tensor of integers with what it must be, where the checkpoint has it.
    fn constants(&mut self, name: &str, values: &[u64]) -> Result<(), LoadError>;
}

/// Loads from a checkpoint onto a device.
pub struct Loader<'a> {
    backend: &'a mut dyn Backend,
    checkpoint: &'a Checkpoint,
    claims: Claims<'a>,
    inputs: ActivationPrecision,
    loaded: HashMap<String, Weight>,
    /// By weight.
    names: Vec<String>,
    /// Every matrix, in the order in which they were loaded.
    facts: Vec<WeightFacts>,
    /// Called with the bytes loaded so far.
    progress: &'a mut dyn FnMut(u64),
    n_bytes: u64,
    /// The last matrix that was compared with checksums as a whole.
    checked: String,
}

/// What is known once everything is loaded.
pub struct Loaded {
    /// Where the routed experts are.
    pub bank: ExpertBank,
    /// Where the tables are whose rows are read one by one.
    pub rows: RowBank,
    /// By weight.
    pub names: Vec<String>,
    /// Every matrix, in the order in which they were loaded.
    pub facts: Vec<WeightFacts>,
}

impl<'a> Loader<'a> {
    /// A loader that has loaded nothing, for a device that from here on takes inputs of products
    /// and of attention as `inputs` says; `progress` is called with the bytes loaded so far.
    pub fn new(
        checkpoint: &'a Checkpoint,
        backend: &'a mut dyn Backend,
        inputs: ActivationPrecision,
        progress: &'a mut dyn FnMut(u64),
    ) -> Loader<'a> {
        backend.set_attention_inputs(inputs);
        Loader {
            backend,
            checkpoint,
            claims: Claims::new(checkpoint),
            inputs,
            loaded: HashMap::new(),
            names: Vec::new(),
            facts: Vec::new(),
            progress,
            n_bytes: 0,
            checked: String::new(),
        }
    }

    /// Checks that nothing is left over and gives the experts' places, what
    /// every weight is called, and their shapes.
    pub fn finish(self) -> Result<Loaded, LoadError> {
        self.claims.finish()?;
        let rows = self.claims.row_bank().clone();
        let bank = self.claims.into_bank();
        Ok(Loaded { bank, rows, names: self.names, facts: self.facts })
    }

    /// Reads extents into one piece of memory, and checks that they hold finite numbers where
    /// their encoding has others.
    fn read(
        &mut self,
        extents: &[Extent],
        encoding: Option<Encoding>,
    ) -> Result<HostBuf, LoadError> {
        let len = extents.iter().map(|extent| extent.len).sum();
        let mut buf = self.backend.host_alloc(len);
        let mut rest = &mut buf[..len];
        for extent in extents {
            let (part, behind) = rest.split_at_mut(extent.len);
            read_weights(self.checkpoint, *extent, encoding, part)?;
            self.checkpoint.check_tensor(*extent, part)?;
            rest = behind;
        }
        self.n_bytes += len as u64;
        (self.progress)(self.n_bytes);
        Ok(buf)
    }

    /// Compares a matrix, parts of which are going to be read, with the container's checksums.
    fn check_whole(&self, source: &MatrixSource) -> Result<(), LoadError> {
        if self.checkpoint.container().is_none_or(|container| container.resident_xxh3_64.is_empty())
        {
            return Ok(());
        }
        for extent in [source.weight, source.scales, source.biases] {
            let bytes = self.checkpoint.reader().read(extent)?;
            self.checkpoint.check_tensor(extent, &bytes)?;
        }
        Ok(())
    }

    /// As [`Loader::read`]; `None` for no bytes.
    fn read_some(
        &mut self,
        extents: &[Extent],
        encoding: Option<Encoding>,
    ) -> Result<Option<HostBuf>, LoadError> {
        let is_empty = extents.iter().all(|extent| extent.len == 0);
        if is_empty { Ok(None) } else { self.read(extents, encoding).map(Some) }
    }

    /// Loads the rows of several sources of one format as one matrix.
    fn load(
        &mut self,
        name: &str,
        parts: &[MatrixSource],
        role: Role,
    ) -> Result<Weight, LoadError> {
        let MatrixSource { cols, format, .. } = parts[0];
        let rows = parts.iter().map(|part| part.rows).sum();
        let inputs = if role == Role::Gate { ActivationPrecision::F32 } else { self.inputs };
        let matrix = if joins(parts) {
            let extents = |part: fn(&MatrixSource) -> Extent| -> Vec<Extent> {
                parts.iter().map(part).collect()
            };
            let encodings = format.encodings();
            let weight = self.read(&extents(|source| source.weight), encodings[0])?;
            let scales = self.read_some(&extents(|source| source.scales), encodings[1])?;
            let biases = self.read_some(&extents(|source| source.biases), encodings[2])?;
            HostMatrix { rows, cols, format, inputs, weight, scales, biases }
        } else {
            let weight = self.read_decoded(parts)?;
            let format = MatrixFormat::Dense(Float::F32);
            HostMatrix { rows, cols, format, inputs, weight, scales: None, biases: None }
        };
        let HostMatrix { rows, cols, format, inputs, .. } = matrix;
        self.facts.push(WeightFacts { rows, cols, format, inputs });
        let weight = self.backend.load_matrix(matrix);
        let at = weight.0 as usize;
        self.names.resize(self.names.len().max(at + 1), String::new());
        name.clone_into(&mut self.names[at]);
        Ok(weight)
    }

    /// Reads and decodes the rows of several sources.
    fn read_decoded(&mut self, parts: &[MatrixSource]) -> Result<HostBuf, LoadError> {
        let n: usize = parts.iter().map(|part| part.rows * part.cols).sum();
        let mut buf = self.backend.host_alloc(n * 4);
        let mut out = buf[..n * 4].chunks_exact_mut(4);
        for part in parts {
            let bytes = part.read(self.checkpoint.reader())?;
            check_finite_matrix(self.checkpoint, self.checkpoint.files(), part, &bytes)?;
            let mut values = vec![0.0; part.cols];
            for row in 0..part.rows {
                bytes.view(part).decode_row(row, &mut values);
                for (value, out) in values.iter().zip(&mut out) {
                    out.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        self.n_bytes += n as u64 * 4;
        (self.progress)(self.n_bytes);
        Ok(buf)
    }
}

/// Whether the rows of several sources make one matrix of their format: blocks
/// that share a scale must end where the next source begins.
fn joins(parts: &[MatrixSource]) -> bool {
    let MatrixFormat::Blocks(blocks) = parts[0].format else { return true };
    let begins = parts[1..]
        .iter()
        .all(|part| matches!(part.format, MatrixFormat::Blocks(ScaledBlocks { phase: 0, .. })));
    let ends = |source: &MatrixSource| source.rows.is_multiple_of(blocks.block_rows);
    let [first, middle @ .., _] = parts else { return true };
    begins
        && (blocks.phase + first.rows).is_multiple_of(blocks.block_rows)
        && middle.iter().all(ends)
}

impl Weights for Loader<'_> {
    fn backend(&mut self) -> &mut dyn Backend {
        self.backend
    }

    fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        role: Role,
    ) -> Result<Weight, LoadError> {
        if let Some(weight) = self.loaded.get(name) {
            return Ok(*weight);
        }
        let decl = MatrixDecl { name: name.to_owned(), rows, cols, role };
        let source = self.claims.matrix(&decl)?;
        let weight = self.load(name, &[source], role)?;
        self.loaded.insert(decl.name, weight);
        Ok(weight)
    }

    fn matrix_rows(
        &mut self,
        whole: MatrixDecl,
        runs: &[Range<usize>],
    ) -> Result<Weight, LoadError> {
        let source = self.claims.matrix(&whole)?;
        if self.checked != whole.name {
            self.check_whole(&source)?;
            self.checked.clone_from(&whole.name);
        }
        let parts: Vec<MatrixSource> =
            runs.iter().map(|run| source.rows(run.start, run.len())).collect();
        self.load(&whole.name, &parts, whole.role)
    }

    fn vector(&mut self, name: &str, shapes: &[Vec<usize>]) -> Result<HostVector, LoadError> {
        let decl = VectorDecl { name: name.to_owned(), shapes: shapes.to_vec() };
        let source = self.claims.vector(&decl)?;
        let n: usize = source.shape.iter().product();
        let bytes = self.read(&[source.extent], Some(Encoding::Float(source.float)))?;
        let values = (0..n).map(|i| source.float.read(&bytes, i)).collect();
        Ok(HostVector { shape: source.shape, values })
    }

    fn holds(&self, tensor: &str) -> bool {
        self.checkpoint.holds(tensor)
    }

    fn refuse(&self, tensor: &str, what: &str) -> LoadError {
        self.checkpoint.refuse_tensor(tensor, what).into()
    }

    fn experts(&mut self, decl: ExpertsDecl) -> Result<(), LoadError> {
        self.claims.experts(&decl)?;
        Ok(())
    }

    fn table(&mut self, decl: TableDecl) -> Result<(), LoadError> {
        self.claims.table(&decl)?;
        Ok(())
    }

    fn indices(&mut self, decl: IndicesDecl) -> Result<Vec<u32>, LoadError> {
        let source = self.claims.indices(&decl)?;
        let bytes = self.read(&[source.extent], None)?;
        let numbers = source.decode(&bytes[..source.extent.len]);
        numbers.map_err(|what| self.refuse(&decl.name, &what))
    }

    fn constants(&mut self, name: &str, values: &[u64]) -> Result<(), LoadError> {
        let decl = ConstantsDecl { name: name.to_owned(), values: values.to_vec() };
        Ok(self.claims.constants(&decl)?)
    }
}

/// Collects what a family declares, loading nothing.
pub(crate) struct Survey<'a> {
    trace: Trace,
    manifest: Manifest,
    /// Against the checkpoint, where there is one already.
    checkpoint: Option<&'a Checkpoint>,
}

impl<'a> Survey<'a> {
    pub(crate) fn new(checkpoint: Option<&'a Checkpoint>) -> Survey<'a> {
        Survey { trace: Trace::default(), manifest: Manifest::default(), checkpoint }
    }

    /// What was declared, and the bytes of activations that would be allocated:
    /// all together, and the largest.
    pub(crate) fn finish(self) -> (Manifest, usize, usize) {
        (self.manifest, self.trace.allocated_bytes(), self.trace.largest_bytes())
    }
}

impl Weights for Survey<'_> {
    fn backend(&mut self) -> &mut dyn Backend {
        &mut self.trace
    }

    fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        role: Role,
    ) -> Result<Weight, LoadError> {
        let decls = &mut self.manifest.matrices;
        let known = decls.iter().position(|decl| decl.name == name);
        let at = known.unwrap_or_else(|| {
            decls.push(MatrixDecl { name: name.to_owned(), rows, cols, role });
            decls.len() - 1
        });
        Ok(Weight(u32::try_from(at).expect("few matrices")))
    }

    fn matrix_rows(
        &mut self,
        whole: MatrixDecl,
        _runs: &[Range<usize>],
    ) -> Result<Weight, LoadError> {
        self.matrix(&whole.name, whole.rows, whole.cols, whole.role)
    }

    fn vector(&mut self, name: &str, shapes: &[Vec<usize>]) -> Result<HostVector, LoadError> {
        let decl = VectorDecl { name: name.to_owned(), shapes: shapes.to_vec() };
        // As long as what the files hold, which bounds what is allocated here.
        let shape = match self.checkpoint {
            Some(checkpoint) => Claims::new(checkpoint).vector(&decl)?.shape,
            None => shapes.first().cloned().unwrap_or_default(),
        };
        if !self.manifest.vectors.iter().any(|vector| vector.name == name) {
            self.manifest.vectors.push(decl);
        }
        let values = vec![0.0; shape.iter().product()];
        Ok(HostVector { shape, values })
    }

    fn holds(&self, tensor: &str) -> bool {
        self.checkpoint.is_some_and(|checkpoint| checkpoint.holds(tensor))
    }

    fn refuse(&self, tensor: &str, what: &str) -> LoadError {
        let checkpoint = self.checkpoint.expect("values are only read from a checkpoint");
        checkpoint.refuse_tensor(tensor, what).into()
    }

    fn experts(&mut self, decl: ExpertsDecl) -> Result<(), LoadError> {
        self.manifest.experts.push(decl);
        Ok(())
    }

    fn table(&mut self, decl: TableDecl) -> Result<(), LoadError> {
        self.manifest.tables.push(decl);
        Ok(())
    }

    /// The numbers are made up, and different in a row.
    fn indices(&mut self, decl: IndicesDecl) -> Result<Vec<u32>, LoadError> {
        // As many as the files hold, which bounds what is allocated here.
        if let Some(checkpoint) = self.checkpoint {
            Claims::new(checkpoint).indices(&decl)?;
        }
        let row = (0..).take(decl.cols);
        let numbers = std::iter::repeat_n(row, decl.rows).flatten().collect();
        self.manifest.indices.push(decl);
        Ok(numbers)
    }

    fn constants(&mut self, name: &str, values: &[u64]) -> Result<(), LoadError> {
        self.manifest
            .constants
            .push(ConstantsDecl { name: name.to_owned(), values: values.to_vec() });
        Ok(())
    }
}
