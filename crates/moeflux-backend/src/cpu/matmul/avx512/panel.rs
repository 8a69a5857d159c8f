//! Scales and biases of a panel of the matrix.

use std::ops::Range;

use super::params::{GROUPS, param_tile};
use super::vector::{ROWS, store_floats};
use crate::cpu::matmul::lane_params::{LaneParams, TileParams};
use crate::cpu::matmul::product::IntegerProduct;

/// Those of `rows`: the product's own where it has them, filled into `params` otherwise.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(in crate::cpu::matmul) fn params_of_rows<'a>(
    params: &'a mut LaneParams,
    product: &IntegerProduct<'a>,
    rows: Range<usize>,
) -> TileParams<'a> {
    if let Some(all) = product.params {
        return all.tiles(rows.start / ROWS);
    }
    fill(params, product, rows);
    params.tiles(0)
}

#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn fill(out: &mut LaneParams, product: &IntegerProduct<'_>, rows: Range<usize>) {
    let n_groups = product.n_groups();
    out.resize(rows.len().div_ceil(ROWS), n_groups);
    for (tile, row) in rows.clone().step_by(ROWS).enumerate() {
        let rows = row..rows.end.min(row + ROWS);
        for first in (0..n_groups).step_by(GROUPS) {
            let params = param_tile(product, rows.clone(), first);
            for g in 0..GROUPS.min(n_groups - first) {
                let [scale, bias] = out.group_mut(tile, first + g);
                store_floats(&mut scale.0, params.scale[g]);
                store_floats(&mut bias.0, params.bias[g]);
            }
        }
    }
}
