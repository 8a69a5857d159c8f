//! What a checkpoint holds, without loading it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use moeflux_core::checkpoint::{Checkpoint, CheckpointKind, Claims};
use moeflux_core::manifest::{Manifest, Role};
use moeflux_core::quant::MatrixFormat;
use moeflux_core::{ExpertBank, FileIdx, RowBank, RowEncoding, SourceFile};
use moeflux_model::{Declared, LoadError, ModelShape, bank, open_checkpoint, row_bank};
use moeflux_text::TextSource;

use crate::choice::{DeviceChoice, choose};
use crate::error::EngineError;
use crate::format_name::{ExpertFormat, format_name};
use crate::options::{EngineOptions, MemoryOptions, check_top_k, threads};
use crate::plan::{Alternative, Plan};
use crate::planning::{MemoryPlanner, ModelSizes, alternatives};
use crate::vision::{TowerFacts, tower_facts};

/// A checkpoint's facts.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Its directory.
    pub root: PathBuf,
    /// Its format.
    pub kind: CheckpointKind,
    /// Its family.
    pub family: &'static str,
    /// Its figures.
    pub shape: ModelShape,
    /// Bytes of its files by kind of tensor and storage, largest first.
    pub storage: Vec<Storage>,
    /// Its vision tower, where it has one that is run.
    pub tower: Option<TowerFacts>,
    /// Why the vision tower that its files have cannot be used.
    pub tower_problem: Option<String>,
    /// Tensors that are not used and passed over: other parts than text and vision tower, buffers that
    /// follow from the config, scales of caches.
    pub n_passed_over: usize,
    /// Where its tokenizer is, if it has one.
    pub text: TextSource,
    /// Its files and their bytes.
    pub files: Vec<(PathBuf, u64)>,
    /// Where it runs, and why.
    pub device: DeviceChoice,
    /// What it takes in memory there, whether that fits or not.
    pub plan: Plan,
    /// Plans of this model with one flag changed.
    pub alternatives: Vec<Alternative>,
    /// The sizes of its parts.
    pub sizes: ModelSizes,
    planner: MemoryPlanner,
    pub(crate) bank: ExpertBank,
    /// Its tables whose rows are read one by one, and how many rows a token needs of each.
    pub(crate) tables: RowBank,
    pub(crate) rows_per_token: Vec<usize>,
}

/// Tensors of a kind that are stored alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// What they are for.
    pub kind: &'static str,
    /// How they are stored, such as `4-bit, groups of 64`.
    pub format: String,
    /// How many tensors.
    pub n_tensors: usize,
    /// Elements of all of them.
    pub n_elements: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Inspection {
    /// The plan of the same model with other options for memory.
    ///
    /// # Errors
    /// Where an option makes no sense.
    pub fn plan_with(&self, memory: MemoryOptions) -> Result<Plan, EngineError> {
        Ok(self.planner.with_memory_options(memory)?.plan())
    }

    /// How experts are stored; `None` where there are none.
    pub fn expert_format(&self) -> Option<ExpertFormat> {
        ExpertFormat::of(&self.bank)
    }
}

/// Opens a checkpoint and checks all of its declarations, loading nothing.
///
/// # Errors
/// Where its files are damaged or of no known family, or an option makes no
/// sense.
pub fn inspect(source: &Path, options: &EngineOptions) -> Result<Inspection, EngineError> {
    let checkpoint = open_checkpoint(source).map_err(LoadError::from)?;
    let declared = Declared::to_run(&checkpoint, options.variant())?;
    check_top_k(options, &declared.shape)?;
    threads(options)?;
    let bank = bank(&checkpoint, &declared)?;
    let device = choose(&checkpoint, &declared, &bank, options)?.choice;
    let options = &options.clone().device(device.device);
    let planner = MemoryPlanner::new(&checkpoint, &declared, &bank, options)?;
    let plan = planner.plan();
    let (tower, tower_problem) = match tower_facts(&checkpoint, options) {
        Ok(tower) => (tower, None),
        // A text needs no tower, so that only one that was asked for has to be there.
        Err(err) if options.vision.mmproj.is_none() => (None, Some(err.to_string())),
        Err(err) => return Err(err),
    };
    let own_tower = tower.as_ref().filter(|tower| tower.mmproj.is_none());
    let n_of_tower = own_tower.map_or(0, |tower| tower.n_tensors);
    let mut files = files(&checkpoint, &bank);
    if let Some(path) = tower.as_ref().and_then(|tower| tower.mmproj.clone()) {
        let n_bytes = path.metadata().map_or(0, |facts| facts.len());
        files.push((path, n_bytes));
    }
    Ok(Inspection {
        device,
        tower,
        tower_problem,
        root: checkpoint.root().to_path_buf(),
        text: TextSource::of(&checkpoint),
        kind: checkpoint.kind(),
        family: declared.family.name,
        n_passed_over: checkpoint.n_skipped().saturating_sub(n_of_tower),
        storage: storage(&checkpoint, &declared.manifest, &bank)?,
        files,
        tables: row_bank(&checkpoint, &declared)?,
        sizes: planner.sizes_of_model(declared.shape.n_layers),
        shape: declared.shape,
        rows_per_token: declared.rows_per_token,
        alternatives: alternatives(&planner, &plan),
        plan,
        planner,
        bank,
    })
}

/// The device that a model runs on with these options, and why.
///
/// # Errors
/// Where its files are damaged or of no known family, or an option makes no
/// sense.
pub fn choose_device(source: &Path, options: &EngineOptions) -> Result<DeviceChoice, EngineError> {
    let checkpoint = open_checkpoint(source).map_err(LoadError::from)?;
    let declared = Declared::to_run(&checkpoint, options.variant())?;
    let bank = bank(&checkpoint, &declared)?;
    Ok(choose(&checkpoint, &declared, &bank, options)?.choice)
}

/// Checks that a checkpoint is of a known family and has all of its tensors, as their headers
/// declare them. Weights are not read, and memory is not planned.
///
/// # Errors
/// Where its files are damaged or of no known family.
pub fn check(source: &Path) -> Result<(), EngineError> {
    let checkpoint = open_checkpoint(source).map_err(LoadError::from)?;
    let declared = Declared::to_run(&checkpoint, EngineOptions::default().variant())?;
    bank(&checkpoint, &declared)?;
    Ok(())
}

/// The files of tensors, then those that hold nothing but experts.
fn files(checkpoint: &Checkpoint, bank: &ExpertBank) -> Vec<(PathBuf, u64)> {
    let is_layer = |file: &(FileIdx, &SourceFile)| file.0.0 as usize >= checkpoint.files().len();
    let layers = bank.stored_files().filter(is_layer).map(|(_, file)| file);
    let stored = checkpoint.files().iter().filter(|file| file.derived.is_none());
    stored.chain(layers).map(|file| (file.path.clone(), file.len)).collect()
}

fn storage(
    checkpoint: &Checkpoint,
    manifest: &Manifest,
    bank: &ExpertBank,
) -> Result<Vec<Storage>, LoadError> {
    let mut by_kind: BTreeMap<(&'static str, String), Storage> = BTreeMap::new();
    let mut add = |kind, format: String, n_tensors, n_elements, bytes| {
        let entry = by_kind.entry((kind, format.clone())).or_insert_with(|| Storage {
            kind,
            format,
            n_tensors: 0,
            n_elements: 0,
            bytes: 0,
        });
        entry.n_tensors += n_tensors;
        entry.n_elements += n_elements;
        entry.bytes += bytes;
    };
    let mut claims = Claims::new(checkpoint);
    for decl in &manifest.matrices {
        let kind = match decl.role {
            Role::Embedding => "embedding",
            Role::Projection => "projections",
            Role::Gate => "routers and gates",
            Role::Head => "head",
        };
        let format = claims.matrix(decl)?.format;
        let bytes = format.matrix_bytes(decl.rows, decl.cols) as u64;
        add(kind, format_name(format), 1, (decl.rows * decl.cols) as u64, bytes);
    }
    for layer in bank.layers.iter().flatten() {
        for matrix in layer.layout.matrices() {
            let n = layer.n_experts;
            let elements = (matrix.rows * matrix.cols * n) as u64;
            let bytes = (matrix.format.matrix_bytes(matrix.rows, matrix.cols) * n) as u64;
            add("experts", format_name(matrix.format), n, elements, bytes);
        }
    }
    for decl in &manifest.tables {
        let table = claims.table(decl)?;
        let format = match table.encoding {
            RowEncoding::Float(float) => format_name(MatrixFormat::Dense(float)),
            RowEncoding::F8E4M3 => String::from("FP8, one scale"),
            RowEncoding::Ggml(block_type) => format_name(MatrixFormat::Ggml(block_type)),
        };
        let elements = table.rows() * table.cols as u64;
        add("tables", format, table.parts.len(), elements, table.bytes());
    }
    let mut all: Vec<Storage> = by_kind.into_values().collect();
    all.sort_by_key(|storage| std::cmp::Reverse(storage.bytes));
    Ok(all)
}
