//! What a plan has to know of a model.

use moeflux_backend::CacheSpec;
use moeflux_core::ExpertBank;
use moeflux_core::checkpoint::companions::VOCABULARIES;
use moeflux_core::checkpoint::{Checkpoint, Claims};
use moeflux_core::manifest::{Manifest, Role};
use moeflux_model::{Declared, LoadError, ModelShape, row_bank};
use moeflux_store::whole_row_cache_bytes;
use serde::{Deserialize, Serialize};

use crate::positions::windows::most_positions;

/// The program itself, its stacks and its allocator's slack, in bytes. How much of the binary's file
/// is resident depends on the page cache: with the demo model peaks from 25 to 43 MB were measured.
const PROGRAM_BYTES: u64 = 48 << 20;

/// Bytes that the tokenizer takes in memory for each byte of `tokenizer.json`.
const TOKENIZER_JSON_FACTOR: u64 = 14;

/// Bytes in memory for each byte of the other files that a vocabulary is published in, which hold
/// less of what is made of them. Measured while vocabularies of 32 to 248 thousand tokens were
/// opened: 131 to 155.
const VOCABULARY_FACTOR: u64 = 140;

/// Bytes in memory for each tensor of the files: their names and places, and what reading their
/// headers leaves to the allocator. Measured: 1,260 with 62 thousand tensors, 1,620 with 123 thousand.
const TENSOR_BYTES: u64 = 1700;

/// Rows of experts whose inner activations are kept at a time, at least.
const EXPERT_ROWS: u64 = 1024;

/// The sizes of a model's parts, whatever is planned for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelFacts {
    /// Weights that stay in memory.
    pub(crate) resident_bytes: u64,
    /// What a token reads of them.
    pub(crate) resident_per_token: u64,
    /// Keys and values of one position, in layers that keep all of them.
    pub(crate) kv_bytes_per_position: u64,
    /// Those of one position in layers with a window, and of how many positions they hold most at
    /// the end of a step.
    pub(crate) window_bytes_per_position: u64,
    pub(crate) window_positions: usize,
    /// Recurrent state of one session.
    pub(crate) state_bytes: u64,
    /// The program, the tokenizer and the table of tensors.
    pub(crate) program_bytes: u64,
    /// All routed experts, and how many there are.
    pub(crate) expert_bytes: u64,
    pub(crate) n_experts: u64,
    /// All tables whose rows are read one by one, and a cache that has all of these rows.
    pub(crate) table_bytes: u64,
    pub(crate) whole_row_cache_bytes: u64,
    /// Whether parts of experts are computed when they are read, so that files cannot be mapped.
    pub(crate) are_experts_derived: bool,
    /// The largest of them.
    pub(crate) record_bytes: u64,
    /// Routed experts that one token needs.
    pub(crate) working_set_bytes: u64,
    /// Experts that a token gets in a layer.
    pub(crate) top_k: usize,
    /// Positions that the model was made for.
    pub(crate) max_positions: usize,
    /// Activations.
    pub(crate) scratch: ScratchFacts,
}

/// What activations take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScratchFacts {
    /// Bytes of one row.
    pub(crate) per_row: u64,
    /// Bytes of the widest activation of a row.
    pub(crate) widest_row: u64,
    /// Columns between the matrices of an expert.
    pub(crate) intermediate: u64,
    /// Tokens of the vocabulary.
    pub(crate) vocab: u64,
}

impl ModelFacts {
    /// Of a checkpoint whose experts are at `bank`.
    ///
    /// # Errors
    /// Where a declared tensor is missing or of another shape.
    pub(crate) fn of(
        checkpoint: &Checkpoint,
        declared: &Declared,
        bank: &ExpertBank,
    ) -> Result<ModelFacts, LoadError> {
        let shape = &declared.shape;
        let resident = Resident::of(checkpoint, &declared.manifest)?;
        let rows = row_bank(checkpoint, declared)?;
        let (windowed, whole): (Vec<_>, Vec<_>) =
            shape.caches.iter().copied().partition(|cache| cache.window().is_some());
        let layers = bank.layers.iter().flatten();
        let intermediate = layers.map(|layer| layer.layout.intermediate() as u64).max();
        Ok(ModelFacts {
            resident_bytes: resident.total,
            resident_per_token: resident.per_token,
            kv_bytes_per_position: sum(&whole, CacheSpec::bytes_per_position),
            window_bytes_per_position: sum(&windowed, CacheSpec::bytes_per_position),
            window_positions: shape.window().map_or(0, most_positions),
            state_bytes: sum(&shape.caches, CacheSpec::fixed_bytes),
            program_bytes: PROGRAM_BYTES
                + tokenizer_bytes(checkpoint)
                + TENSOR_BYTES * checkpoint.tensors().len() as u64,
            expert_bytes: bank.total_bytes(),
            n_experts: bank.n_experts() as u64,
            table_bytes: rows.total_bytes(),
            whole_row_cache_bytes: whole_row_cache_bytes(&rows),
            are_experts_derived: bank.is_derived(),
            record_bytes: bank.max_record_bytes() as u64,
            working_set_bytes: working_set(bank, shape),
            top_k: shape.top_k,
            max_positions: shape.max_positions,
            scratch: ScratchFacts {
                per_row: declared.scratch_per_row + declared.table_bytes_per_row,
                widest_row: declared.widest_row,
                intermediate: intermediate.unwrap_or(0),
                vocab: shape.vocab as u64,
            },
        })
    }

    /// Keys and values that layers with a window hold of one session, with the rows of a step.
    pub(crate) fn window_bytes(&self, ctx: usize, chunk: usize) -> u64 {
        let positions = self.window_positions.saturating_add(chunk).min(ctx);
        self.window_bytes_per_position.saturating_mul(positions as u64)
    }

    /// How many positions of a session have keys and values of this many bytes.
    pub(crate) fn positions_in(&self, bytes: u64) -> u64 {
        let (whole, windows) = (self.kv_bytes_per_position, self.window_bytes_per_position);
        let positions = bytes / whole.saturating_add(windows).max(1);
        let most = self.window_positions as u64;
        if windows == 0 || positions < most {
            return positions;
        }
        bytes.saturating_sub(windows.saturating_mul(most)) / whole.max(1)
    }

    /// Bytes of a slot of the cache: a record and the pages that its ranges begin and end in.
    pub(crate) fn slot_bytes(&self) -> u64 {
        (self.record_bytes + 2 * 4096 * 9).next_multiple_of(4096)
    }

    /// Bytes of a cache that has all experts: slots have room for the largest of all layers.
    pub(crate) fn whole_cache_bytes(&self) -> u64 {
        self.n_experts.saturating_mul(self.slot_bytes())
    }
}

impl ScratchFacts {
    /// Bytes of the activations of a step with `rows` rows, and of the kernels' buffers: rounded inputs,
    /// the inner rows of experts, scores and logits.
    pub(crate) fn bytes(&self, rows: usize) -> u64 {
        let activations = self.per_row * rows as u64;
        let inner = EXPERT_ROWS.max(rows as u64) * self.intermediate * 3 * 4;
        activations + activations / 4 + inner + 8 * self.vocab
    }
}

struct Resident {
    total: u64,
    /// All of it but the rows of the embedding that no token looks up.
    per_token: u64,
}

impl Resident {
    fn of(checkpoint: &Checkpoint, manifest: &Manifest) -> Result<Resident, LoadError> {
        let mut claims = Claims::new(checkpoint);
        let mut resident = Resident { total: 0, per_token: 0 };
        let is_tied = !manifest.matrices.iter().any(|matrix| matrix.name == "lm_head");
        for decl in &manifest.matrices {
            let source = claims.matrix(decl)?;
            let bytes = source.format.matrix_bytes(decl.rows, decl.cols) as u64;
            resident.total += bytes;
            let is_lookup = decl.role == Role::Embedding && !is_tied;
            if !checkpoint.is_optional(&decl.name) {
                let n_rows = if is_lookup { decl.rows as u64 } else { 1 };
                resident.per_token += bytes / n_rows;
            }
        }
        for decl in &manifest.vectors {
            let n_elements = decl.shapes.first().map_or(0, |dims| dims.iter().product::<usize>());
            resident.total += 4 * n_elements as u64;
            resident.per_token += 4 * n_elements as u64;
        }
        // A token looks up a row.
        for decl in &manifest.indices {
            resident.total += 4 * decl.cols as u64 * decl.rows as u64;
            resident.per_token += 4 * decl.cols as u64;
        }
        Ok(resident)
    }
}

fn sum(caches: &[CacheSpec], bytes: fn(&CacheSpec) -> usize) -> u64 {
    caches.iter().map(|cache| bytes(cache) as u64).sum()
}

fn working_set(bank: &ExpertBank, shape: &ModelShape) -> u64 {
    let layers = bank.layers.iter().take(shape.n_layers).flatten();
    layers
        .map(|layer| layer.layout.record_bytes() as u64 * shape.top_k.min(layer.n_experts) as u64)
        .sum()
}

/// Memory that the tokenizer takes.
fn tokenizer_bytes(checkpoint: &Checkpoint) -> u64 {
    if let Some(metadata) = checkpoint.gguf() {
        return moeflux_text::tokenizer_bytes(metadata);
    }
    let bytes = |name: &str| {
        let path = checkpoint.companion(name)?;
        Some(path.metadata().ok()?.len())
    };
    VOCABULARIES
        .iter()
        .find_map(|names| {
            names.iter().map(|name| bytes(name)).sum::<Option<u64>>().zip(names.first())
        })
        .map_or(0, |(bytes, first)| match *first {
            "tokenizer.json" => TOKENIZER_JSON_FACTOR * bytes,
            _ => VOCABULARY_FACTOR * bytes,
        })
}
