//! A model as the engine runs it, and what it is built with.

use std::sync::Arc;

use moeflux_backend::{ActivationPrecision, Backend, Cols, KvType, Weight};

use crate::forward_error::ForwardError;
use crate::load::Weights;
use crate::rows::RowIds;
use crate::shape::ModelShape;
use crate::step::Step;

/// What a family is built with.
pub struct Build<'a> {
    /// Where weights come from and go to.
    pub weights: &'a mut dyn Weights,
    /// Rows of the largest batch.
    pub max_rows: usize,
    /// How large projections treat their inputs.
    pub inputs: ActivationPrecision,
    /// What the user chose.
    pub variant: Variant,
}

/// What a user may choose about a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variant {
    /// Replaces the config's `num_experts_per_tok`.
    pub top_k: Option<usize>,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Whether there is multi-token prediction.
    pub mtp: WithMtp,
}

/// When a model has multi-token prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithMtp {
    /// Where the checkpoint has it.
    #[default]
    IfStored,
    /// Wherever the family can.
    IfSupported,
    /// Even where the checkpoint has it.
    Never,
}

/// A model, loaded.
pub trait Model: Send {
    /// Its figures.
    fn shape(&self) -> &ModelShape;

    /// Runs the layers over a batch; the result is stored in [`Model::output`].
    fn forward(&self, step: &mut Step<'_>) -> Result<(), ForwardError>;

    /// Runs multi-token prediction over a batch whose tokens follow what the model made of the
    /// positions `before` them, a row of [`ModelShape::mtp_width`] floats each: the output of
    /// [`forward`](Model::forward), or for tokens that were drafted themselves, the output of
    /// this method. The caches of its layer grow. If `wants_output`, the result is stored in
    /// [`Model::output`]; otherwise no expert runs.
    ///
    /// # Panics
    /// Where the model has none.
    fn forward_mtp(
        &self,
        step: &mut Step<'_>,
        before: &[f32],
        wants_output: bool,
    ) -> Result<(), ForwardError>;

    /// The normalised hidden states that the head multiplies, and the head.
    fn output(&self) -> (Cols, Weight);

    /// Where present, a logit is `cap * tanh(product / cap)`, with this cap, of what the head
    /// gives.
    fn logit_softcap(&self) -> Option<f32> {
        None
    }

    /// Whether experts of some layers follow from tokens, so that no layer runs before these are known.
    fn routes_by_tokens(&self) -> bool {
        false
    }

    /// Which rows tokens need of each table that the family has declared, in that order. What is
    /// stored in [`Step::rows`](crate::Step::rows) gives their floats to a forward pass.
    fn row_ids(&self) -> Vec<Arc<dyn RowIds>> {
        Vec::new()
    }
}

impl Build<'_> {
    /// Device memory for the rows of a batch, `width` columns wide.
    pub fn cols(&mut self, width: usize) -> Cols {
        let buf = self.weights.backend().alloc(self.max_rows, width);
        Cols { buf, start: 0, len: width }
    }

    /// Device memory for what products with one input give, side by side in one
    /// buffer, so that devices may compute them together.
    pub fn cols_together<const N: usize>(&mut self, widths: [usize; N]) -> [Cols; N] {
        let all = self.cols(widths.iter().sum());
        let mut start = 0;
        widths.map(|len| {
            start += len;
            all.slice(start - len, len)
        })
    }

    /// The device.
    pub fn backend(&mut self) -> &mut dyn Backend {
        self.weights.backend()
    }
}
