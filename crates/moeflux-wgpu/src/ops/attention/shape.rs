//! What the kernels of attention are compiled for.

use moeflux_backend::{Attention, KvType};

use crate::caches::{Pages, Plane};
use crate::ops::attention::given::values;
use crate::shader::{Shader, Variant};
use crate::words::word;

/// Queries of a workgroup of `attention_rows.wgsl`.
const ROWS_QUERIES: usize = 32;

/// Subgroups of a workgroup of `attention_halves.wgsl`, fewer where workgroups are, and
/// queries of each.
const SUBGROUPS: usize = 8;
const FEW_SUBGROUPS: usize = 4;
const SUBGROUP_QUERIES: usize = 16;
/// Columns of its blocks, and most of a value: as many sums as threads have room for.
const HALVES_BLOCK: usize = 32;
const HALVES_VALUES: usize = 256;

/// Most queries of a workgroup of `attention.wgsl`, its threads, the fours of
/// their columns that it has room for, and sixteens of columns of a key that it
/// reads at once.
const QUERIES: usize = 8;
const THREADS: usize = 256;
const QUERY_FOURS: usize = 640;
const STEPS: usize = 16;

/// Workgroups up to which fewer queries share one: half of an H200's multiprocessors.
const ENOUGH: usize = 64;

/// What the kernels of attention are compiled for.
pub(super) struct Shape<'a> {
    pages: &'a Pages,
    values: Plane,
    v_dim: usize,
    is_masked: bool,
    /// Those that share their keys.
    n_queries: usize,
    /// Tiles of all key heads.
    n_tiles: usize,
}

/// Of at most so many queries, a power of two, those that share a workgroup: as many
/// as leave workgroups enough, and two, which have the threads for their values.
fn shared_by(most: usize, n_queries: usize, n_tiles: usize) -> usize {
    let leaves_enough = |it: &usize| n_tiles * n_queries.div_ceil(*it) >= ENOUGH;
    let halves = std::iter::successors(Some(most), |it| Some(it / 2)).take_while(|it| *it > 2);
    halves.into_iter().find(leaves_enough).unwrap_or(most.min(2))
}

impl<'a> Shape<'a> {
    pub(super) fn of(op: &Attention, pages: &'a Pages, n_queries: usize, n_tiles: usize) -> Self {
        let (values, v_dim) = (values(op, pages), op.out.head_dim);
        let is_masked = op.selection.is_some();
        Shape { pages, values, v_dim, is_masked, n_queries, n_tiles }
    }

    /// Words that are read at once: four columns, where vectors consist of such.
    fn width(&self) -> u32 {
        let are_fours = [self.pages.k.dim, self.values.dim].iter().all(|it| it.is_multiple_of(4));
        match self.pages.dtype {
            KvType::F32 if are_fours => 4,
            KvType::Bf16 if are_fours => 2,
            _ => 1,
        }
    }

    fn consts(&self) -> [u32; 5] {
        let Shape { pages, v_dim, is_masked, .. } = self;
        [pages.kind(), self.width(), u32::from(*is_masked), word(pages.k.dim), word(*v_dim)]
    }

    /// The kernel for many queries, and how many a workgroup has.
    pub(super) fn of_rows(&self) -> (Variant, usize) {
        let fours = self.v_dim.div_ceil(4 * ROWS_QUERIES);
        let at_once = 1 << (8 / fours).ilog2();
        let consts = [&self.consts()[..], &[word(fours), at_once]].concat();
        (Variant::new(Shader::AttentionRows, &consts), ROWS_QUERIES)
    }

    /// The kernel for many queries on units for matrices, how many a workgroup has, and
    /// halves of an element of keys and values; `None` where vectors do not suit it.
    pub(super) fn of_halves(&self, is_emulated: bool) -> Option<(Variant, usize, usize)> {
        let Shape { pages, v_dim, is_masked, .. } = *self;
        let are_blocks = [pages.k.dim, v_dim].iter().all(|it| it.is_multiple_of(HALVES_BLOCK));
        if !are_blocks || v_dim > HALVES_VALUES {
            return None;
        }
        // A half holds all bits of a bfloat16.
        let parts = if pages.dtype == KvType::Bf16 { 1 } else { 2 };
        let n_groups = pages.n_heads * self.n_queries / (SUBGROUPS * SUBGROUP_QUERIES);
        let subgroups = if n_groups >= 2 * ENOUGH { SUBGROUPS } else { FEW_SUBGROUPS };
        let own = [pages.k.dim, v_dim, parts, subgroups].map(word);
        let consts = [&[u32::from(is_emulated), u32::from(is_masked)], &own[..]].concat();
        let variant = Variant::new(Shader::AttentionHalves, &consts);
        Some((variant, subgroups * SUBGROUP_QUERIES, parts))
    }

    /// The kernel for a tile, and how many queries a workgroup has.
    pub(super) fn of_tiles(&self) -> (Variant, usize) {
        let sixteens = self.pages.k.dim.div_ceil(16);
        let n_bursts = sixteens.div_ceil(STEPS);
        let steps = sixteens.div_ceil(n_bursts).next_multiple_of(4);
        let fit = (QUERY_FOURS / (4 * steps * n_bursts)).max(1);
        let queries = self.n_queries.next_power_of_two().min(1 << fit.ilog2()).min(QUERIES);
        let queries = shared_by(queries, self.n_queries, self.n_tiles);
        let fours = self.v_dim.div_ceil(4).next_power_of_two();
        let (fours, cols) = (fours.min(THREADS), fours.div_ceil(THREADS));
        let parts = queries.min(THREADS / fours);
        let own = [queries, steps, n_bursts - 1, fours, parts, cols].map(word);
        let consts = [&self.consts()[..], &own].concat();
        (Variant::new(Shader::Attention, &consts), queries)
    }
}

#[cfg(test)]
mod tests {
    use super::shared_by;

    #[test]
    fn queries_share_workgroups_where_there_are_enough_of_these() {
        assert_eq!(shared_by(8, 8, 64), 8);
        assert_eq!(shared_by(8, 8, 32), 4);
        assert_eq!(shared_by(8, 8, 20), 2);
        assert_eq!(shared_by(8, 8, 1), 2);
        assert_eq!(shared_by(1, 1, 1), 1);
    }
}
