//! The rows of tables that tokens need: requested as soon as tokens are known, gathered when a layer
//! asks for them.

use std::sync::Arc;

use moeflux_backend::Span;
use moeflux_core::{RowBank, TokenId};
use moeflux_model::{RowIds, RowSource};
use moeflux_store::{
    DEFAULT_ROW_READERS, IoMode, RowRequest, RowStats, RowStore, RowStoreOptions, StoreError,
};

/// The tables of a model, and which of their rows tokens need.
#[derive(Debug)]
pub(crate) struct TableRows {
    store: RowStore,
    /// By table.
    ids: Vec<Arc<dyn RowIds>>,
    /// Tokens in front of a token that its rows depend on, in any table.
    context: usize,
}

/// Requests for the rows of some tokens, one for each table. Rows that are not gathered before this
/// is dropped may leave the cache.
#[derive(Debug)]
pub(crate) struct RequestedRows {
    _requests: Vec<RowRequest>,
}

impl TableRows {
    /// Opens the tables of a model; `None` where it has none.
    ///
    /// # Errors
    /// Those of [`RowStore::open`].
    ///
    /// # Panics
    /// If the bank has other tables than the model asks rows of.
    pub(crate) fn open(
        bank: RowBank,
        ids: Vec<Arc<dyn RowIds>>,
        mode: IoMode,
        may_fall_back: bool,
        cache_bytes: u64,
    ) -> Result<Option<TableRows>, StoreError> {
        assert_eq!(bank.tables.len(), ids.len(), "a model has declared the tables that it uses");
        if ids.is_empty() {
            return Ok(None);
        }
        let n_readers = DEFAULT_ROW_READERS;
        let options = RowStoreOptions { mode, may_fall_back, cache_bytes, n_readers };
        let context = ids.iter().map(|ids| ids.context()).max().unwrap_or(0);
        Ok(Some(TableRows { store: RowStore::open(bank, options)?, ids, context }))
    }

    /// The tables.
    pub(crate) fn bank(&self) -> &RowBank {
        self.store.bank()
    }

    /// How many tokens in front of others [`TableRows::request`] has to know.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Has the rows of `tokens` read, which follow `before`.
    pub(crate) fn request(&self, before: &[TokenId], tokens: &[TokenId]) -> RequestedRows {
        let request = |table| {
            let mut ids = Vec::new();
            self.append_ids(table, before, tokens, &mut ids);
            self.store.request(table, ids)
        };
        RequestedRows { _requests: (0..self.ids.len()).map(request).collect() }
    }

    pub(crate) fn stats(&self) -> RowStats {
        self.store.stats()
    }

    pub(crate) fn reset_stats(&self) {
        self.store.reset_stats();
    }

    pub(crate) fn warning(&self) -> Option<&str> {
        self.store.warning()
    }

    fn append_ids(&self, table: usize, before: &[TokenId], tokens: &[TokenId], ids: &mut Vec<u64>) {
        let of_table = &self.ids[table];
        let before = &before[before.len().saturating_sub(of_table.context())..];
        ids.reserve(tokens.len() * of_table.per_token());
        of_table.append_ids(before, tokens, ids);
    }
}

/// Gives the layers of a step the rows of its tokens.
pub(crate) struct StepRows<'a> {
    pub(crate) tables: &'a TableRows,
    pub(crate) spans: &'a [Span],
    pub(crate) tokens: &'a [TokenId],
    /// The tokens in front of each span.
    pub(crate) before: &'a [Vec<TokenId>],
}

impl RowSource for StepRows<'_> {
    fn rows(&mut self, table: usize, out: &mut Vec<f32>) -> Result<(), StoreError> {
        let mut ids = Vec::new();
        for (span, before) in self.spans.iter().zip(self.before) {
            self.tables.append_ids(table, before, &self.tokens[span.rows.clone()], &mut ids);
        }
        self.tables.store.gather(table, &ids, out)
    }
}
