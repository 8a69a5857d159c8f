//! The files of a model's vision tower.

use std::fmt;

use moeflux_backend::{ActivationPrecision, Backend};
use moeflux_core::Extent;
use moeflux_core::checkpoint::{Checkpoint, Checksum, Claims};

use crate::families::Family;
use crate::load::{LoadError, Loader, Survey, Weights};
use crate::model::{Build, Variant};
use crate::towers::{Tower, TowerPlan};

/// The key of the tower's config in that of the model.
const CONFIG: &str = "vision_config";

/// Bytes of each sample of a tensor.
const SAMPLE_BYTES: usize = 64 << 10;

/// The files of a tower, checked and not loaded.
pub struct TowerFiles {
    checkpoint: Checkpoint,
    plan: TowerPlan,
    weight_bytes: u64,
    scratch_per_row: u64,
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
        let mut survey = Survey::new(Some(&checkpoint));
        Tower::load(plan.clone(), &mut build(&mut survey, 1))?;
        let (manifest, scratch_per_row, _) = survey.finish();
        let mut claims = Claims::new(&checkpoint);
        let (mut weight_bytes, mut elements) = (0, [0; 2]);
        for decl in &manifest.matrices {
            let source = claims.matrix(decl)?;
            weight_bytes += source.format.matrix_bytes(decl.rows, decl.cols) as u64;
            let is_of_patches = decl.name.starts_with(plan.blocks);
            elements[usize::from(!is_of_patches)] += (decl.rows * decl.cols) as u64;
        }
        for decl in &manifest.vectors {
            claims.vector(decl)?;
            let n_elements = decl.shapes.first().map_or(0, |dims| dims.iter().product::<usize>());
            weight_bytes += 4 * n_elements as u64;
        }
        claims.finish()?;
        let scratch_per_row = scratch_per_row as u64;
        let identity = identity(&checkpoint)?;
        Ok(Some(TowerFiles { checkpoint, plan, weight_bytes, scratch_per_row, elements, identity }))
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
        // Of a patch: its numbers, its row, and its query, key and value.
        let per_patch = 4 * (self.plan.stem.inputs + 4 * self.plan.block.width) as u64;
        self.weight_bytes + self.scratch_per_row * max_rows as u64 + per_patch * n_patches
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

fn build<'a>(weights: &'a mut dyn Weights, max_rows: usize) -> Build<'a> {
    Build { weights, max_rows, inputs: ActivationPrecision::F32, variant: Variant::default() }
}
