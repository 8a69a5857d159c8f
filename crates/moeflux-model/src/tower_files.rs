//! The files of a model's vision tower.

use std::fmt;
use std::path::Path;

use moeflux_backend::{ActivationPrecision, Backend};
use moeflux_core::Extent;
use moeflux_core::checkpoint::{
    Checkpoint, CheckpointKind, Checksum, Claims, Config, Container, open_part,
};
use moeflux_core::gguf::{Metadata, PartFile};
use moeflux_core::manifest::Manifest;

use crate::families::Family;
use crate::find_mmproj::find_mmproj;
use crate::load::{LoadError, Loader, Survey, Weights};
use crate::model::{Build, Variant};
use crate::towers::{MmprojShape, Order, Tower, TowerPlan, mmproj};

/// The key of the tower's config in that of the model.
const CONFIG: &str = "vision_config";

/// Bytes of each sample of a tensor.
const SAMPLE_BYTES: usize = 64 << 10;

/// Sizes of a tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TowerShape {
    /// Numbers of a patch.
    pub patch_len: usize,
    /// Patches of a side of what becomes a row of the prompt.
    pub merge: usize,
    /// Whether patches come in squares of this side, instead of row by row.
    pub in_squares: bool,
    /// Floats of a row of the prompt.
    pub hidden: usize,
    /// Blocks.
    pub n_blocks: usize,
    /// Parameters.
    pub n_parameters: u64,
    /// Bytes of its tensors in files.
    pub n_bytes: u64,
}

/// The files of a tower, checked and not loaded.
pub struct TowerFiles {
    checkpoint: Checkpoint,
    plan: TowerPlan,
    processor: &'static str,
    manifest: Manifest,
    n_parameters: u64,
    weight_bytes: u64,
    scratch_per_square: u64,
    /// Elements of matrices that multiply every patch, and of those that multiply rows of the prompt.
    elements: [u64; 2],
    identity: String,
}

impl fmt::Debug for TowerFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerFiles").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl TowerFiles {
    /// Those of a model; `None` where its family has no tower, or the files have no tensor of one.
    ///
    /// # Errors
    /// Where the config does not say what the tower is, or a tensor is missing, misshapen or left over.
    pub fn find(checkpoint: &Checkpoint) -> Result<Option<TowerFiles>, LoadError> {
        let config = checkpoint.config();
        let Some(family) = Family::of(config)?.tower else { return Ok(None) };
        let Some(own) = config.part(CONFIG) else { return Ok(None) };
        let Some(checkpoint) = checkpoint.part(&family.name_of, own.clone())? else {
            return Ok(None);
        };
        let plan = (family.plan)(config, &own)?;
        Self::checked(checkpoint, plan, family.processor).map(Some)
    }

    /// Files that have all tensors of a plan, and no others.
    fn checked(
        checkpoint: Checkpoint,
        plan: TowerPlan,
        processor: &'static str,
    ) -> Result<TowerFiles, LoadError> {
        let mut survey = Survey::new(Some(&checkpoint));
        let merged = plan.end.merge() * plan.end.merge();
        Tower::load(plan.clone(), &mut build(&mut survey, merged))?;
        let (manifest, scratch_per_square, _) = survey.finish();
        let mut claims = Claims::new(&checkpoint);
        let (mut weight_bytes, mut n_parameters, mut elements) = (0, 0, [0; 2]);
        for decl in &manifest.matrices {
            let source = claims.matrix(decl)?;
            n_parameters += (decl.rows * decl.cols) as u64;
            weight_bytes += source.format.matrix_bytes(decl.rows, decl.cols) as u64;
            let is_of_patches = decl.name.starts_with(plan.blocks);
            elements[usize::from(!is_of_patches)] += (decl.rows * decl.cols) as u64;
        }
        for decl in &manifest.vectors {
            let n_elements = claims.vector(decl)?.shape.iter().product::<usize>() as u64;
            n_parameters += n_elements;
            weight_bytes += 4 * n_elements;
        }
        claims.finish()?;
        let scratch_per_square = scratch_per_square as u64;
        let identity = identity(&checkpoint)?;
        Ok(TowerFiles {
            checkpoint,
            plan,
            processor,
            manifest,
            n_parameters,
            weight_bytes,
            scratch_per_square,
            elements,
            identity,
        })
    }

    /// Floating-point operations, two for a multiplication with its addition, that a picture of `n_patches`
    /// takes in matrices and in attention.
    pub fn operations(&self, n_patches: usize) -> [f64; 2] {
        let TowerPlan { block, n_blocks, end, .. } = &self.plan;
        let n = n_patches as f64;
        let n_rows = n / (end.merge() * end.merge()) as f64;
        let [of_patches, of_rows] = self.elements.map(|n| n as f64);
        let width = (block.attention.n_heads * block.attention.head_dim) as f64;
        let attention = 4.0 * n * n * width * *n_blocks as f64;
        [2.0 * (of_patches * n + of_rows * n_rows), attention]
    }

    /// 32 hexadecimal digits that tell this tower from others: a hash of its config, its tensors' names,
    /// types and shapes, and samples of three of them.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Bytes that the tower takes once it is loaded with buffers of `max_rows` rows and looks at a picture
    /// of `n_tokens` rows of the prompt.
    pub fn bytes(&self, max_rows: usize, n_tokens: usize) -> u64 {
        let merge = self.plan.end.merge();
        let n_patches = (n_tokens * merge * merge) as u64;
        let TowerPlan { stem, block, end, .. } = &self.plan;
        let heads = block.attention.n_heads * block.attention.head_dim;
        // Of a patch: its row, and its query, key and value.
        let per_patch = 4 * (block.width + 3 * heads) as u64;
        // Of a patch of a chunk: its numbers and the vector of its place, on the host.
        let per_row = 4 * (stem.inputs + block.width) as u64;
        let n_squares = (max_rows / (merge * merge)) as u64;
        let per_token = 4 * (end.hidden() * (1 + end.n_deepstack())) as u64;
        self.weight_bytes
            + self.scratch_per_square * n_squares
            + per_row * max_rows as u64
            + per_patch * n_patches
            + per_token * n_tokens as u64
    }

    /// The tower of a model, wherever it is: in the GGUF file `named`, among the model's own files, in the
    /// GGUF file of its container, or in the one that [`find_mmproj`] finds for a model of GGUF files. A
    /// file that was found and belongs to another model counts as none.
    ///
    /// # Errors
    /// Where the tower's files are not what they should be, or several are as good.
    pub fn of_model(
        model: &Checkpoint,
        named: Option<&Path>,
    ) -> Result<Option<TowerFiles>, LoadError> {
        if let Some(path) = named {
            return Self::open_mmproj(path, model).map(Some);
        }
        if Family::of(model.config())?.tower.is_none() {
            return Ok(None);
        }
        if let Some(own) = Self::find(model)? {
            return Ok(Some(own));
        }
        let found = match model.kind() {
            CheckpointKind::Gguf => find_mmproj(model.root())?,
            CheckpointKind::Packed => model.companion(Container::MMPROJ),
            CheckpointKind::Safetensors | CheckpointKind::Prepared => None,
        };
        match found.map(|path| Self::open_mmproj(&path, model)) {
            None | Some(Err(LoadError::OtherTower { .. })) => Ok(None),
            Some(files) => files.map(Some),
        }
    }

    /// Those in a GGUF file next to that of a model (`mmproj`).
    ///
    /// # Errors
    /// Where the family of the model has no tower, the file belongs to another model, or a key or a tensor
    /// is missing, cannot be, or is left over.
    pub fn open_mmproj(path: &Path, model: &Checkpoint) -> Result<TowerFiles, LoadError> {
        let config = model.config();
        let Some(family) = Family::of(config)?.tower else {
            return Err(LoadError::NoTower {
                path: path.to_path_buf(),
                model_type: config.str("model_type")?.to_owned(),
            });
        };
        let file = PartFile::open(path)?;
        mmproj::check(&file, family.mmproj.projector, config.usize("hidden_size")?)?;
        let (own, tensors) = family.mmproj.translate(&file)?;
        let checkpoint = open_part(file, own, tensors)?;
        let plan = (family.plan)(config, checkpoint.config())?;
        if (plan.end.n_deepstack() > 0) != family.has_deepstack {
            let shown = |has| if has { "rows for its first layers" } else { "none" };
            return Err(LoadError::OtherTower {
                path: path.to_path_buf(),
                key: "clip.vision.is_deepstack_layers".to_owned(),
                value: shown(!family.has_deepstack).to_owned(),
                wanted: shown(family.has_deepstack).to_owned(),
            });
        }
        Self::checked(checkpoint, plan, family.processor)
    }

    /// The keys of the GGUF file that has the tower; `None` where the model's own files have it.
    pub fn mmproj(&self) -> Option<&Metadata> {
        self.checkpoint.gguf()
    }

    /// The files as a checkpoint, with the names of [`TowerFiles::manifest`].
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// All weights of the tower.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The class of the published processors of such models' pictures.
    pub fn processor_class(&self) -> &'static str {
        self.processor
    }

    /// The config of the tower.
    pub fn config(&self) -> &Config {
        self.checkpoint.config()
    }

    /// Sizes of the tower.
    pub fn shape(&self) -> TowerShape {
        let all = self.checkpoint.tensors().values();
        TowerShape {
            patch_len: self.plan.stem.inputs,
            merge: self.plan.end.merge(),
            in_squares: self.plan.order != Order::Rows,
            hidden: self.plan.end.hidden(),
            n_blocks: self.plan.n_blocks,
            n_parameters: self.n_parameters,
            n_bytes: all.map(|tensor| tensor.extent.len as u64).sum(),
        }
    }

    /// Loads the tower onto a backend of its own; its buffers have `max_rows` rows. `progress` is called
    /// with the bytes loaded so far.
    ///
    /// # Errors
    /// Where a tensor is missing, left over or unreadable.
    pub fn load(
        &self,
        backend: &mut dyn Backend,
        max_rows: usize,
        inputs: ActivationPrecision,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Tower, LoadError> {
        let mut loader = Loader::new(&self.checkpoint, backend, inputs, progress);
        let tower = Tower::load(self.plan.clone(), &mut build(&mut loader, max_rows))?;
        loader.finish()?;
        // Rounding queries and keys to halves would show in every row.
        backend.set_attention_inputs(ActivationPrecision::F32);
        Ok(tower)
    }
}

/// XXH3-128 of what identifies a tower.
fn identity(checkpoint: &Checkpoint) -> Result<String, LoadError> {
    let mut checksum = Checksum::default();
    checksum.update(checkpoint.config().value().to_string().as_bytes());
    let tensors = checkpoint.tensors();
    for (name, tensor) in tensors {
        let text = format!("{name} {} {:?}", tensor.dtype.name(), tensor.shape);
        checksum.update(text.as_bytes());
    }
    let last = tensors.len().saturating_sub(1);
    for tensor in [0, last / 2, last].into_iter().filter_map(|nth| tensors.values().nth(nth)) {
        let extent = Extent { len: tensor.extent.len.min(SAMPLE_BYTES), ..tensor.extent };
        checksum.update(&checkpoint.reader().read(extent)?);
    }
    Ok(checksum.hex())
}

/// A vision tower that a config describes.
#[derive(Clone, Debug)]
pub struct DeclaredTower {
    /// All weights of the tower.
    pub manifest: Manifest,
    /// What a GGUF file of it holds.
    pub mmproj: MmprojShape,
}

impl DeclaredTower {
    /// That of a model's config; `None` where it describes none.
    ///
    /// # Errors
    /// Where the config does not say what the tower is.
    pub fn of_config(config: &Config) -> Result<Option<DeclaredTower>, LoadError> {
        let Some(family) = Family::of(config)?.tower else { return Ok(None) };
        let Some(own) = config.part(CONFIG) else { return Ok(None) };
        let plan = (family.plan)(config, &own)?;
        let mut survey = Survey::new(None);
        Tower::load(plan.clone(), &mut build(&mut survey, 1))?;
        let manifest = survey.finish().0;
        let mmproj = MmprojShape::of(&family, &plan, &manifest, &own);
        Ok(Some(DeclaredTower { manifest, mmproj }))
    }
}

fn build<'a>(weights: &'a mut dyn Weights, max_rows: usize) -> Build<'a> {
    Build { weights, max_rows, inputs: ActivationPrecision::F32, variant: Variant::default() }
}
