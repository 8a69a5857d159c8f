//! What a family declares of a checkpoint, before anything is loaded.

use moeflux_backend::ActivationPrecision;
use moeflux_core::checkpoint::{Checkpoint, Claims, Config};
use moeflux_core::manifest::Manifest;
use moeflux_core::{ExpertBank, LayerBank, RowBank};

use crate::families::Family;
use crate::load::{LoadError, Survey};
use crate::model::{Build, Variant, WithMtp};
use crate::shape::ModelShape;

/// What a family declares of a checkpoint, before anything is loaded.
pub struct Declared {
    /// The family of its config.
    pub family: &'static Family,
    /// Every tensor that the family reads.
    pub manifest: Manifest,
    /// The model's figures.
    pub shape: ModelShape,
    /// As it was declared.
    pub variant: Variant,
    /// Why the multi-token prediction that the checkpoint has is left aside, where it is.
    pub mtp_refusal: Option<String>,
    /// Activations of one row, in bytes.
    pub scratch_per_row: u64,
    /// The widest of them.
    pub widest_row: u64,
    /// What one row gets from the table that gives it most, in bytes.
    pub table_bytes_per_row: u64,
    /// Rows that a token needs of each table.
    pub rows_per_token: Vec<usize>,
}

impl Declared {
    /// Of a checkpoint.
    pub fn of(checkpoint: &Checkpoint, variant: Variant) -> Result<Declared, LoadError> {
        Self::survey(checkpoint.config(), Some(checkpoint), variant)
    }

    /// The declaration to run a checkpoint with: without multi-token prediction where that is not
    /// whole, or has larger experts than the model: every slot of the cache would have room for one
    /// of them.
    pub fn to_run(checkpoint: &Checkpoint, variant: Variant) -> Result<Declared, LoadError> {
        let declared = Self::of(checkpoint, variant);
        let refusal = match &declared {
            Ok(declared) if declared.shape.has_mtp() => declared.against_mtp(checkpoint),
            Ok(_) => None,
            Err(err) => Some(err.to_string()),
        };
        if refusal.is_none() || variant.mtp == WithMtp::Never {
            return declared;
        }
        // What is wrong with the model itself shows again.
        let declared = Self::of(checkpoint, Variant { mtp: WithMtp::Never, ..variant })?;
        Ok(Declared { mtp_refusal: refusal, ..declared })
    }

    /// What speaks against running the declared multi-token prediction.
    fn against_mtp(&self, checkpoint: &Checkpoint) -> Option<String> {
        let bank = match bank(checkpoint, self) {
            Ok(bank) => bank,
            Err(err) => return Some(err.to_string()),
        };
        let bytes = |layer: &Option<LayerBank>| {
            layer.as_ref().map_or(0, |layer| layer.layout.record_bytes())
        };
        let (own, mtp) = bank.layers.split_at(self.shape.n_layers.min(bank.layers.len()));
        let [own, mtp] = [own, mtp].map(|layers| layers.iter().map(bytes).max().unwrap_or(0));
        let remedy = "pack the model to use it";
        (mtp > own).then(|| format!("its experts have {mtp} bytes, the model's {own}; {remedy}"))
    }

    /// Of a config alone, before there are tensors.
    pub fn of_config(config: &Config, mtp: WithMtp) -> Result<Declared, LoadError> {
        Self::survey(config, None, Variant { mtp, ..Variant::default() })
    }

    fn survey(
        config: &Config,
        checkpoint: Option<&Checkpoint>,
        variant: Variant,
    ) -> Result<Declared, LoadError> {
        // Scratch grows by the row; the difference of two surveys is one row.
        let survey = |max_rows| {
            let mut survey = Survey::new(checkpoint);
            let weights = &mut survey;
            let mut build = Build { weights, max_rows, inputs: ActivationPrecision::F32, variant };
            let family = Family::of(config)?;
            let model = family.build(config, &mut build)?;
            let shape = model.shape().clone();
            Ok::<_, LoadError>((family, shape, model.row_ids(), survey.finish()))
        };
        let (family, shape, row_ids, (manifest, one_row, widest)) = survey(1)?;
        let rows_per_token: Vec<usize> = row_ids.iter().map(|ids| ids.per_token()).collect();
        let tables = manifest.tables.iter().zip(&rows_per_token);
        let floats = tables.map(|(decl, n_rows)| decl.cols * n_rows);
        Ok(Declared {
            family,
            shape,
            variant,
            mtp_refusal: None,
            scratch_per_row: one_row as u64,
            widest_row: widest as u64,
            table_bytes_per_row: 4 * floats.max().unwrap_or(0) as u64,
            rows_per_token,
            manifest,
        })
    }
}

/// Claims everything that the family declares, so that whatever is missing,
/// left over or misshapen shows before anything is loaded.
pub fn bank(checkpoint: &Checkpoint, declared: &Declared) -> Result<ExpertBank, LoadError> {
    let mut claims = Claims::new(checkpoint);
    for decl in &declared.manifest.matrices {
        claims.matrix(decl)?;
    }
    for decl in &declared.manifest.vectors {
        claims.vector(decl)?;
    }
    for decl in &declared.manifest.experts {
        claims.experts(decl)?;
    }
    for decl in &declared.manifest.tables {
        claims.table(decl)?;
    }
    for decl in &declared.manifest.indices {
        claims.indices(decl)?;
    }
    for decl in &declared.manifest.constants {
        claims.constants(decl)?;
    }
    claims.finish()?;
    Ok(claims.into_bank())
}

/// Finds the tables that the family declares.
pub fn row_bank(checkpoint: &Checkpoint, declared: &Declared) -> Result<RowBank, LoadError> {
    let mut claims = Claims::new(checkpoint);
    for decl in &declared.manifest.tables {
        claims.table(decl)?;
    }
    Ok(claims.row_bank().clone())
}
