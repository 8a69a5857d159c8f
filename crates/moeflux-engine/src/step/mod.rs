//! One step of a model: its arguments, its results, and which step is recorded in advance.

mod core;

use std::ops::Deref;

use moeflux_backend::{Span, StateSnapshot, TokenLogit};
use moeflux_core::TokenId;
use moeflux_model::EmbeddedRow;
use smallvec::SmallVec;

use crate::error::EngineError;
use crate::sampler::likeliest_token;

pub(crate) use self::core::Core;

/// Rows whose logits are read back at once. Bounds the memory that they take: a row has a float
/// for every token of the vocabulary.
pub(crate) const LOGIT_ROWS: usize = 16;

/// The input of [`Core::step`]: tokens of one or more sequences, one span
/// for each sequence.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    /// The sequence, the rows and the first position of each run of tokens.
    pub(crate) spans: &'a [Span],
    /// A token for each row of the spans; any of the vocabulary where the row is embedded.
    pub(crate) tokens: &'a [TokenId],
    /// The rows that are embeddings, in order.
    pub(crate) embedded: &'a [EmbeddedRow<'a>],
    /// For each span, the tokens in front of it that rows of tables depend on.
    pub(crate) before: &'a [Vec<TokenId>],
    /// Recurrent states that are copied in the middle of spans.
    pub(crate) snapshots: &'a [StateSnapshot],
    /// Results that are read back.
    pub(crate) outputs: Outputs<'a>,
}

/// The input of [`Core::mtp_step`].
#[derive(Debug)]
pub(crate) struct MtpBatch<'a> {
    /// As in [`Batch`].
    pub(crate) spans: &'a [Span],
    /// A token for each row.
    pub(crate) tokens: &'a [TokenId],
    /// For each row, the hidden state that the model computed one position earlier.
    pub(crate) hidden: &'a [f32],
    /// Results that are read back; without logits only the key/value cache of the MTP layer is
    /// filled.
    pub(crate) outputs: Outputs<'a>,
}

/// The results that a step reads back from the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outputs<'a> {
    /// Rows whose logits are read back.
    pub(crate) rows: &'a [usize],
    /// How many of the highest logits of these rows suffice; `None` for all logits.
    pub(crate) n_top: Option<usize>,
    /// Hidden states are read back for this many rows, the first ones of the step.
    pub(crate) hidden_rows: usize,
}

/// Results that a step has read back.
#[derive(Debug, Default)]
pub(crate) struct StepOutput {
    /// In the order of [`Outputs::rows`].
    pub(crate) logits: LogitRows,
    /// One after the other, `mtp_width` floats of the model's shape each.
    pub(crate) hidden: Vec<f32>,
}

/// Logits of some rows. A step that decodes one token allocates nothing for the list.
pub(crate) type LogitRows = SmallVec<[RowLogits; 1]>;

/// The logits of the token after one row.
#[derive(Clone, Debug)]
pub(crate) enum RowLogits {
    /// The highest ones, descending, where the device selected them.
    Top(Vec<TokenLogit>),
    /// One for each token of the vocabulary.
    All(Logits),
}

impl RowLogits {
    /// The token with the highest logit.
    pub(crate) fn likeliest(&self) -> TokenId {
        match self {
            RowLogits::Top(top) => top.first().map_or(TokenId(0), |first| first.token),
            RowLogits::All(logits) => likeliest_token(logits),
        }
    }
}

/// One score for every entry of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits(pub(crate) Vec<f32>);

impl Deref for Logits {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

/// Receives the logits of a row, by the row's index in its step.
pub(crate) type RowSink<'a> = dyn FnMut(usize, &[f32]) -> Result<(), EngineError> + 'a;

/// The state of the device between two steps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Pipeline {
    /// Nothing.
    #[default]
    Idle,
    /// Multi-token prediction has drafted tokens since the last step. The step after the next
    /// is likely to check drafts too, so that a step of one row a sequence is not recorded.
    Drafted,
    /// The device holds a recorded step that continues these spans and lacks only its tokens.
    Prerecorded(Vec<Span>),
}
