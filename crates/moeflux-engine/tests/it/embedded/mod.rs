//! Rows of tokens and embeddings, and what transformers makes of them (`tools/golden/make_rows.py`).

use std::path::{Path, PathBuf};

use moeflux_engine::{EMBEDDED, Engine, InputRow, RowInput, RowPosition, Session, TokenId};
use safetensors::SafeTensors;

use crate::common::{floats, golden_dir, ids};

/// Largest difference of a logit, the logits' standard deviation being about 2.
const MAX_DIFFERENCE: f32 = 2e-3;

/// Sections of frequencies that take turns, and others one after the other.
pub(crate) fn cases() -> [PathBuf; 2] {
    ["qwen3_vl_moe-hf", "glm4v_moe-hf"].map(|case| golden_dir().join(case))
}

/// The rows of the golden data.
pub(crate) struct GoldenRows {
    /// Minus one, as an id, where a row is an embedding.
    tokens: Vec<TokenId>,
    embeddings: Vec<f32>,
    /// By layer.
    deepstack: Vec<f32>,
    /// Time, height and width of all rows, one after the other.
    positions: Vec<TokenId>,
    hidden: usize,
    expected: Vec<Expected>,
}

/// What the reference makes of them.
pub(crate) struct Expected {
    pub(crate) has_deepstack: bool,
    /// `(rows, vocab)`.
    logits: Vec<f32>,
    greedy: Vec<TokenId>,
    /// After each token of `greedy`.
    decoded: Vec<f32>,
}

impl GoldenRows {
    pub(crate) fn read(case: &Path) -> GoldenRows {
        let bytes = std::fs::read(case.join("rows.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = |name: &str| tensors.tensor(name).unwrap();
        let expected = |name: &str| Expected {
            has_deepstack: name == "deepstack",
            logits: floats(&tensor(&format!("{name}.logits"))),
            greedy: ids(&tensor(&format!("{name}.greedy"))),
            decoded: floats(&tensor(&format!("{name}.decoded"))),
        };
        let has = |name: &&str| tensors.tensor(&format!("{name}.logits")).is_ok();
        let names = ["plain", "deepstack"].into_iter().filter(has);
        GoldenRows {
            tokens: ids(&tensor("tokens")),
            hidden: tensor("embeddings").shape()[1],
            embeddings: floats(&tensor("embeddings")),
            deepstack: floats(&tensor("deepstack")),
            positions: ids(&tensor("positions")),
            expected: names.map(expected).collect(),
        }
    }

    pub(crate) fn expected(&self) -> &[Expected] {
        &self.expected
    }

    /// By embedded row, what the first layers add to it.
    pub(crate) fn deepstack(&self) -> Vec<Vec<&[f32]>> {
        let n = self.embeddings.len() / self.hidden;
        let layers = self.deepstack.chunks_exact(self.embeddings.len());
        let of_row = |row: usize| layers.clone().map(|all| self.of(all, row)).collect();
        (0..n).map(of_row).collect()
    }

    fn of<'a>(&self, all: &'a [f32], row: usize) -> &'a [f32] {
        &all[row * self.hidden..][..self.hidden]
    }

    /// The rows: embeddings with their positions, tokens without.
    pub(crate) fn rows<'a>(&'a self, deepstack: Option<&'a [Vec<&'a [f32]>]>) -> Vec<InputRow<'a>> {
        let (n, mut nth) = (self.tokens.len(), 0);
        let row = |(i, token): (usize, &TokenId)| {
            if token.0 != u32::MAX {
                return InputRow::token(*token);
            }
            let part = |part: usize| self.positions[part * n + i].0;
            let position = RowPosition { temporal: part(0), height: part(1), width: part(2) };
            let values = self.of(&self.embeddings, nth);
            let deepstack = deepstack.map_or(&[][..], |all| &all[nth]);
            nth += 1;
            let input = RowInput::Embedding { values, deepstack, token: EMBEDDED };
            InputRow { input, position: Some(position) }
        };
        self.tokens.iter().enumerate().map(row).collect()
    }

    /// Checks an engine against the reference; `n` rows are evaluated in each call. Returns the
    /// bits of all logits.
    pub(crate) fn check(&self, engine: &Engine, expected: &Expected, n: usize) -> Vec<u32> {
        let (vocab, deepstack) = (engine.shape().vocab, self.deepstack());
        let rows = self.rows(expected.has_deepstack.then_some(&deepstack));
        let (mut session, mut bits, mut worst) = (engine.session(), Vec::new(), 0.0f32);
        let mut see = |got: &[f32], want: &[f32]| {
            let differences = got.iter().zip(want).map(|(a, b)| (a - b).abs());
            worst = differences.fold(worst, f32::max);
            got.iter().map(|logit| logit.to_bits()).collect::<Vec<u32>>()
        };
        for rows in rows.chunks(n) {
            let logits = session.eval_rows(rows).unwrap();
            let last = session.position() - 1;
            bits = see(&logits, &expected.logits[last * vocab..][..vocab]);
        }
        for (token, want) in expected.greedy.iter().zip(expected.decoded.chunks_exact(vocab)) {
            bits.extend(see(&session.eval_token(*token).unwrap(), want));
        }
        assert!(worst <= MAX_DIFFERENCE, "{worst} in calls of {n} rows");
        check_truncated(&mut session, &rows, &bits[..vocab]);
        bits
    }
}

/// Checks that a session which returns into its rows goes on as if the others had not been.
fn check_truncated(session: &mut Session, rows: &[InputRow<'_>], want: &[u32]) {
    let kept = rows.len() / 2;
    assert_eq!(session.truncate(kept).unwrap(), 0);
    let got = session.eval_rows(&rows[kept..]).unwrap();
    assert!(got.iter().map(|logit| logit.to_bits()).eq(want.iter().copied()), "after a return");
}
