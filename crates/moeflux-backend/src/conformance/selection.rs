//! The choice of positions for as many rows as a prompt has.

use super::suite::{Numbers, Suite, filled, read};
use crate::{
    Attention, Backend, Cache, CacheSpec, KeysValues, KvType, PoolFunction, PoolKeys, PositionPart,
    RopePairs, RopeSpec, SelectPositions, Span,
};

/// Rows of each step. Devices have tiles of 64 rows and of as many positions, of which all steps but one
/// need several or a part.
const STEPS: [usize; 4] = [70, 131, 1, 19];

/// Most rows of a step.
const ROWS: usize = 131;

/// Columns of keys and values.
const DIM: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Shape {
    n_heads: usize,
    dim: usize,
    is_weighted: bool,
    pool: Option<usize>,
    top_k: usize,
    dtype: KvType,
}

pub(super) fn check(suite: &Suite<'_>) {
    let weighted =
        Shape { n_heads: 3, dim: 17, is_weighted: true, pool: None, top_k: 40, dtype: KvType::F32 };
    let pooled = Shape { n_heads: 18, is_weighted: false, pool: Some(3), top_k: 15, ..weighted };
    for shape in [
        weighted,
        Shape { dim: 70, dtype: KvType::Q8, ..weighted },
        Shape { n_heads: 33, dim: 16, dtype: KvType::Bf16, ..weighted },
        pooled,
        Shape { dim: 32, pool: Some(2), ..pooled },
    ] {
        suite.case(&format!("choice for many rows {shape:?}"), &|b| choice(b, shape));
    }
}

/// Means of keys, which are normalised and rotated by equal positions.
fn mean(b: &mut dyn Backend, dim: usize) -> PoolFunction {
    let rope = RopeSpec {
        inv_freq: (0..5).map(|i| 0.5f32.powi(i)).collect(),
        pairs: RopePairs::Halves,
        scale: 1.0,
        parts: vec![PositionPart::Temporal; 5],
    };
    PoolFunction::Mean {
        weight: b.load_vector(&Numbers::new(94).floats(dim)),
        eps: 1e-6,
        rope: b.load_rope(rope),
    }
}

/// What attention over the chosen positions gives.
fn choice(b: &mut dyn Backend, shape: Shape) -> Vec<f32> {
    let Shape { n_heads, dim, is_weighted, pool, top_k, dtype } = shape;
    let index = filled(b, ROWS, n_heads * dim + dim + n_heads, 90);
    let kv = filled(b, ROWS, 3 * DIM, 91);
    let out = filled(b, ROWS, DIM, 92);
    let select = SelectPositions {
        out: b.new_selection(),
        q: index.slice(0, n_heads * dim).heads(n_heads),
        k: Some(index.slice(n_heads * dim, dim)),
        weights: is_weighted.then(|| index.slice(n_heads * dim + dim, n_heads)),
        cache: Cache(1),
        scale: 0.4,
        top_k,
        pools: pool.map(|size| PoolKeys { size, function: mean(b, dim) }),
    };
    let attention = Attention {
        out: out.heads(1),
        q: kv.slice(0, DIM).heads(1),
        append: Some(KeysValues {
            k: kv.slice(DIM, DIM).heads(1),
            v: Some(kv.slice(2 * DIM, DIM).heads(1)),
        }),
        cache: Cache(0),
        scale: 0.7,
        window: None,
        sinks: None,
        selection: Some(select.out),
        looks_ahead: false,
        entries: None,
    };
    let pages = |k_dim, v_dim| CacheSpec::Pages { n_heads: 1, k_dim, v_dim, dtype, window: None };
    let sequence = b.new_sequence(&[pages(DIM, DIM), pages(dim, 0)]);
    let (mut all, mut position) = (Vec::new(), 0);
    for (seed, rows) in STEPS.into_iter().enumerate() {
        for (cols, first) in [(index, 95), (kv, 105)] {
            b.write(cols.buf, &Numbers::new(first + seed as u64).floats(ROWS * cols.len));
        }
        let spans = [Span::new(sequence, 0..rows, position)];
        b.select_positions(select, &spans);
        b.attention(attention, &spans);
        all.extend(read(b, out.buf, rows));
        position += rows;
    }
    all
}
