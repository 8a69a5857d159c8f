//! Token embeddings.

use moeflux_backend::{Cols, Weight};
use moeflux_core::TokenId;

use crate::commands::grid::Grid;
use crate::kernels::matmul as kernels;
use crate::layouts::format::BLOCK;
use crate::state::gpu::Wgpu;
use crate::words::{ELEMENTS, word};

pub(crate) fn embed(b: &mut Wgpu, out: Cols, table: Weight, tokens: &[TokenId]) {
    b.encoder.begin();
    let y = b.written(out.buf);
    assert!(out.start + out.len <= y.width, "columns are inside their buffer");
    let matrix = b.matrix(table).clone();
    assert_eq!(matrix.cols, out.len, "columns of an embedding");
    let words: Vec<u32> = tokens.iter().map(|token| token.0).collect();
    let list = b.encoder.list(&words);
    b.encoder.prerecording.set_token_list(list, words.len());
    let arena = b.encoder.arena();
    for piece in &matrix.pieces {
        let mut params = matrix.decoder.params(matrix.cols).to_vec();
        params.extend([list, word(tokens.len()), piece.place.elements, piece.place.scales]);
        params.extend([word(piece.phase), word(piece.rows.start), word(piece.rows.len())]);
        params.extend([word(out.start), word(y.width)]);
        let tables = b.weights_or_codebook(matrix.decoder, &piece.mem);
        let n = tokens.len() * matrix.cols.div_ceil(BLOCK) * 8;
        b.encoder.dispatch(
            kernels::Embed { format: matrix.decoder.constants() },
            &params,
            &[&piece.mem, &tables, &arena, &y.mem],
            Grid::Linear(n.div_ceil(ELEMENTS)),
        );
    }
}
