//! What the kernels of attention are compiled for.

use moeflux_backend::{ActivationPrecision, Attention, KvType};

use crate::kernels::attention::{AttentionCoopMatrix, AttentionRows, AttentionTiles, KvShape};
use crate::kernels::kernel::Variant;
use crate::memory::caches::pages::{Pages, Plane};
use crate::ops::attention::inputs::{Source, values};
use crate::words::word;

/// Queries of a workgroup of `attention/rows.wgsl`.
const ROWS_QUERIES: usize = 32;

/// Subgroups of a workgroup of `attention/coop_matrix.wgsl`, fewer where workgroups are, and
/// queries of each.
const SUBGROUPS: usize = 8;
const FEW_SUBGROUPS: usize = 4;
const SUBGROUP_QUERIES: usize = 16;
/// Columns of a cooperative matrix.
const SQUARE: usize = 16;
/// Columns of its squares, more where vectors are one half an element; most of a value that a
/// workgroup has, as many sums as threads have room for; and most parts of values: each multiplies
/// queries with keys once more.
const COOP_BLOCK: usize = 32;
const COOP_WIDE_BLOCK: usize = 64;
const COOP_MAX_V_DIM: usize = 256;
const COOP_MAX_V_PARTS: usize = 2;

/// Most queries of a workgroup of `attention/tiles.wgsl`, its threads, the fours of
/// their columns that it has room for, and sixteens of columns of a key that it
/// reads at once.
const QUERIES: usize = 8;
const THREADS: usize = 256;
const QUERY_FOURS: usize = 640;
const STEPS: usize = 16;

/// Workgroups up to which fewer queries share one: half of an H200's multiprocessors.
const ENOUGH: usize = 64;

/// Attention on cooperative matrices.
pub(crate) struct CoopAttention {
    pub(crate) kernel: AttentionCoopMatrix,
    /// Queries of a workgroup.
    pub(crate) queries: usize,
    /// Columns of keys and of values, zeros behind their own included.
    pub(crate) k_dim: usize,
    pub(crate) v_dim: usize,
    /// Parts of values, each of which has workgroups of its own.
    pub(crate) v_parts: usize,
    /// f16 parts of an element of queries, and of keys and values.
    pub(crate) q_parts: usize,
    pub(crate) parts: usize,
}

/// What the kernels of attention are compiled for.
pub(crate) struct Shape<'a> {
    pages: &'a Pages,
    values: Plane,
    v_dim: usize,
    is_masked: bool,
    /// Those that share their keys.
    n_queries: usize,
    /// Tiles of all key heads.
    n_tiles: usize,
}

/// Columns of a vector in whole blocks for each of `n_parts`, with zeros behind its own; `None` where these
/// would be more than half as many, or it does not consist of fours.
fn coop_columns(dim: usize, n_parts: usize) -> Option<usize> {
    let columns = dim.next_multiple_of(COOP_BLOCK * n_parts);
    let is_worth_it = 2 * columns <= 3 * dim && dim.is_multiple_of(4);
    // Parts of values have the same columns.
    (columns == dim || is_worth_it && n_parts == 1).then_some(columns)
}

/// Of at most this many queries, a power of two, those that share a workgroup: as many as leave
/// workgroups enough, and two, which have the threads for their values.
fn shared_by(most: usize, n_queries: usize, n_tiles: usize) -> usize {
    let leaves_enough = |n_rows: &usize| n_tiles * n_queries.div_ceil(*n_rows) >= ENOUGH;
    let halves = std::iter::successors(Some(most), |n_rows| Some(n_rows / 2))
        .take_while(|n_rows| *n_rows > 2);
    halves.into_iter().find(leaves_enough).unwrap_or(most.min(2))
}

impl<'a> Shape<'a> {
    pub(crate) fn of(
        op: &Attention,
        source: &Source,
        pages: &'a Pages,
        n_queries: usize,
        n_tiles: usize,
    ) -> Self {
        let (values, v_dim) = (values(pages), op.out.head_dim);
        let is_masked = source.selection.is_some();
        Shape { pages, values, v_dim, is_masked, n_queries, n_tiles }
    }

    /// Words that are read at once: four columns, where vectors consist of such.
    fn width(&self) -> u32 {
        let are_fours = [self.pages.k.dim, self.values.dim].iter().all(|dim| dim.is_multiple_of(4));
        match self.pages.dtype {
            KvType::F32 if are_fours => 4,
            KvType::Bf16 if are_fours => 2,
            _ => 1,
        }
    }

    fn constants(&self) -> KvShape {
        let Shape { pages, v_dim, is_masked, .. } = *self;
        KvShape {
            kv: pages.kind(),
            width: self.width(),
            is_masked,
            k_dim: word(pages.k.dim),
            v_dim: word(v_dim),
        }
    }

    /// The kernel for many queries, and how many a workgroup has.
    pub(crate) fn of_rows(&self) -> (Variant, usize) {
        let fours = self.v_dim.div_ceil(4 * ROWS_QUERIES);
        let at_once = 1 << (8 / fours).ilog2();
        let kernel = AttentionRows {
            shape: self.constants(),
            value_fours: word(fours),
            values_at_once: at_once,
        };
        (kernel.into(), ROWS_QUERIES)
    }

    /// The kernel for many queries on cooperative matrices, how many a workgroup has, and halves
    /// of an element of keys and values; `None` where vectors do not suit it.
    ///
    /// Elements are one half each, unless inputs of products are as they are: then two.
    pub(crate) fn of_coop_matrix(
        &self,
        is_emulated: bool,
        inputs: ActivationPrecision,
    ) -> Option<CoopAttention> {
        let Shape { pages, v_dim: y_dim, is_masked, .. } = *self;
        let k_dim = coop_columns(pages.k.dim, 1)?;
        let v_parts = y_dim.div_ceil(COOP_MAX_V_DIM);
        let v_dim = coop_columns(y_dim, v_parts)?;
        if v_parts > COOP_MAX_V_PARTS {
            return None;
        }
        let q_parts = if inputs == ActivationPrecision::F32 { 2 } else { 1 };
        // A half holds all bits of a bfloat16.
        let parts = if pages.dtype == KvType::Bf16 { 1 } else { q_parts };
        let v_dim_of_part = v_dim / v_parts;
        let are_wide = [k_dim, v_dim_of_part].iter().all(|dim| dim % COOP_WIDE_BLOCK == 0);
        let block = if q_parts == 1 && are_wide { COOP_WIDE_BLOCK } else { COOP_BLOCK };
        let n_groups = v_parts * pages.n_heads * self.n_queries / (SUBGROUPS * SUBGROUP_QUERIES);
        let subgroups = if n_groups >= 2 * ENOUGH { SUBGROUPS } else { FEW_SUBGROUPS };
        let kernel = AttentionCoopMatrix {
            is_emulated,
            is_masked,
            k_dim: word(k_dim),
            k_squares: word(pages.k.dim.div_ceil(SQUARE)),
            v_dim: word(v_dim_of_part),
            v_parts: word(v_parts),
            y_dim: word(y_dim / v_parts),
            q_parts: word(q_parts),
            parts: word(parts),
            block: word(block),
            subgroups: word(subgroups),
        };
        let queries = subgroups * SUBGROUP_QUERIES;
        Some(CoopAttention { kernel, queries, k_dim, v_dim, v_parts, q_parts, parts })
    }

    /// The kernel for a tile, and how many queries a workgroup has.
    pub(crate) fn of_tiles(&self) -> (Variant, usize) {
        let sixteens = self.pages.k.dim.div_ceil(16);
        let n_bursts = sixteens.div_ceil(STEPS);
        let steps = sixteens.div_ceil(n_bursts).next_multiple_of(4);
        let fit = (QUERY_FOURS / (4 * steps * n_bursts)).max(1);
        let queries = self.n_queries.next_power_of_two().min(1 << fit.ilog2()).min(QUERIES);
        let queries = shared_by(queries, self.n_queries, self.n_tiles);
        let fours = self.v_dim.div_ceil(4).next_power_of_two();
        let (fours, cols) = (fours.min(THREADS), fours.div_ceil(THREADS));
        let parts = queries.min(THREADS / fours);
        let kernel = AttentionTiles {
            shape: self.constants(),
            queries: word(queries),
            steps: word(steps),
            later: word(n_bursts - 1),
            fours: word(fours),
            parts: word(parts),
            cols: word(cols),
        };
        (kernel.into(), queries)
    }
}

#[cfg(test)]
mod tests {
    use super::{coop_columns, shared_by};

    #[test]
    fn vectors_take_whole_blocks() {
        let columns = [(64, 1), (72, 1), (80, 1), (24, 1), (16, 1), (40, 1), (74, 1)];
        let want = [Some(64), Some(96), Some(96), Some(32), None, None, None];
        assert_eq!(columns.map(|(dim, n_parts)| coop_columns(dim, n_parts)), want);
        assert_eq!([512, 300].map(|dim| coop_columns(dim, 2)), [Some(512), None]);
    }

    #[test]
    fn queries_share_workgroups_where_there_are_enough_of_these() {
        assert_eq!(shared_by(8, 8, 64), 8);
        assert_eq!(shared_by(8, 8, 32), 4);
        assert_eq!(shared_by(8, 8, 20), 2);
        assert_eq!(shared_by(8, 8, 1), 2);
        assert_eq!(shared_by(1, 1, 1), 1);
    }
}
