//! Rows of tables that tokens need, and where a forward pass gets them.

use std::fmt::Debug;

use moeflux_core::TokenId;
use moeflux_store::StoreError;

/// Which rows of a table tokens need: a function of token ids alone.
pub trait RowIds: Debug + Send + Sync {
    /// How many tokens before a token its rows depend on.
    fn context(&self) -> usize;

    /// Rows a token.
    fn per_token(&self) -> usize;

    /// Appends the rows of each of `tokens`, token by token. `before` has the tokens in front of the
    /// first, at most [`context`](RowIds::context) of them, fewer at the start of the sequence.
    fn append_ids(&self, before: &[TokenId], tokens: &[TokenId], ids: &mut Vec<u64>);
}

/// Where a forward pass gets the rows of its step, in the order of the step's tokens.
pub trait RowSource {
    /// Replaces `out` with the floats of all rows that the step's tokens need of a table, an index of
    /// [`Model::row_ids`](crate::Model::row_ids). Waits for reads.
    ///
    /// # Errors
    /// If a row cannot be read.
    fn rows(&mut self, table: usize, out: &mut Vec<f32>) -> Result<(), StoreError>;
}

/// The source of steps that need no rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRows;

impl RowSource for NoRows {
    /// # Panics
    /// Always: there is no table.
    fn rows(&mut self, table: usize, _out: &mut Vec<f32>) -> Result<(), StoreError> {
        panic!("a step without rows has no table {table}");
    }
}
