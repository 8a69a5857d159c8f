//! Kernels of attention.

use crate::kernels::kernel::Include::{
    IndexKeys, KvFormats, KvTiles, QuantizeOwn, Reduce, Visibility,
};
use crate::kernels::kernel::{NamedConstants, constants, kernel};
use crate::kernels::shared::Quant;
use crate::kernels::template::value;

kernel! {
    StoreKv in "attention/store_kv"("wrrwrrrr") include [Reduce { kind: "f32", threads: "THREADS" }];
    {}
    {
        kv: u32 = KV,
        k_dim: u32 = K_DIM,
        v_dim: u32 = V_DIM,
        /// The larger of both.
        dim: u32 = DIM,
        is_normed: bool = NORMED,
        values_are_normed: bool = NORMED_VALUES,
        /// Those that `norm/norm.wgsl` has for heads of `dim` elements.
        threads: u32 = THREADS,
        /// Pairs that are rotated; 0 for no rotation.
        n_pairs: u32 = PAIRS,
        is_adjacent: bool = ADJACENT,
        /// Keys and values are in the buffer of the queries.
        is_one_buffer: bool = ONE,
    }
}

constants! {
    /// Keys and values as tiles read them.
    KvShape {
        kv: u32 = KV,
        /// Words that are read at once.
        width: u32 = WIDTH,
        is_masked: bool = MASKED,
        k_dim: u32 = K_DIM,
        v_dim: u32 = V_DIM,
    }
}

kernel! {
    /// Few queries of several sequences, a tile of keys each.
    AttentionTiles in "attention/tiles"("rrrrrwwr") include [KvFormats, KvTiles, Visibility];
    { shape: KvShape, }
    {
        queries: u32 = QUERIES,
        steps: u32 = STEPS,
        later: u32 = LATER,
        fours: u32 = FOURS,
        parts: u32 = PARTS,
        cols: u32 = COLS,
    }
}

kernel! {
    /// Many queries that share their keys.
    AttentionRows in "attention/rows"("rrrrrwwr") include [KvFormats, KvTiles, Visibility];
    { shape: KvShape, }
    { value_fours: u32 = VC, values_at_once: u32 = VP, }
}

kernel! {
    /// Splits queries, keys or values into f16 parts for cooperative matrices.
    SplitF16Qkv in "attention/split_f16_qkv"("rrww") include [KvFormats];
    {}
    {
        kv: u32 = KV,
        is_cached: bool = CACHED,
        dim: u32 = DIM,
        /// Columns that are written, those beyond `dim` as zeros.
        places: u32 = PLACES,
        parts: u32 = PARTS,
    }
}

kernel! {
    /// Many queries that share their keys, on cooperative matrices of f16.
    AttentionCoopMatrix in "attention/coop_matrix"("rrrrrwwr") include [Visibility]
        feature [WritesFirst] derived coop_tiles;
    {}
    {
        is_emulated: bool = EMULATED,
        is_masked: bool = MASKED,
        k_dim: u32 = K_DIM,
        /// Squares of a key's columns that are not zeros only.
        k_squares: u32 = K_SQUARES,
        /// Columns of a value that a workgroup has, and how many such parts there are.
        v_dim: u32 = V_DIM,
        v_parts: u32 = V_PARTS,
        /// Columns of such a part that are written.
        y_dim: u32 = Y_DIM,
        /// Halves that elements of queries and weights are the sums of, and those of keys and
        /// values.
        q_parts: u32 = Q_PARTS,
        parts: u32 = PARTS,
        /// Columns of a square in workgroup memory.
        block: u32 = BLOCK,
        subgroups: u32 = SUBGROUPS,
    }
}

kernel! {
    /// Merges the tiles of rows.
    MergeAttention in "attention/merge"("rrwrrww") include [QuantizeOwn];
    { quant: Quant, }
    { has_sinks: bool = SINKS, is_gated: bool = GATED, }
}

kernel! {
    /// Scores of index keys for few rows.
    ScoreIndex in "attention/score_index"("rrrrw") include [KvFormats, IndexKeys];
    {}
    { kv: u32 = KV, is_weighted: bool = WEIGHTED, }
}

kernel! {
    /// Scores of index keys for many rows.
    ScoreIndexTiles in "attention/score_index_tiles"("rrrrw") include [KvFormats, IndexKeys];
    {}
    { kv: u32 = KV, is_weighted: bool = WEIGHTED, }
}

kernel! {
    /// Sums of index keys of pools.
    SumPools in "attention/sum_pools"("wrr");
    {}
    {}
}

kernel! {
    /// Keys of pools in their places.
    PutPools in "attention/put_pools"("wrrr") include [Reduce { kind: "f32", threads: "64" }];
    {}
    { is_adjacent: bool = ADJACENT, }
}

kernel! {
    /// Sums of the gated values of pools' slots.
    GatePools in "attention/gate_pools"("wrrr");
    {}
    {}
}

kernel! {
    /// Gated keys of pools in their places.
    PutGatedPools in "attention/put_gated_pools"("wrr");
    {}
    {}
}

kernel! {
    /// Entries of pools in their places.
    PutEntries in "attention/put_entries"("wrrr") include [Reduce { kind: "f32", threads: "64" }];
    {}
    { kv: u32 = KV, is_adjacent: bool = ADJACENT, }
}

kernel! {
    ChooseIndex in "attention/choose_index"("rw");
    {}
    {}
}

/// Threads, blocks and squares of columns, squares of vectors in workgroup memory, and what a
/// thread loads of them.
fn coop_tiles(constants: &NamedConstants) -> NamedConstants {
    let of = |text| value(text, constants);
    let threads = 32 * of("SUBGROUPS");
    let v_blocks = of("V_DIM/BLOCK");
    vec![
        ("THREADS", threads),
        ("STEPS", of("BLOCK/16")),
        ("K_BLOCKS", of("K_DIM/BLOCK")),
        ("V_BLOCKS", v_blocks),
        ("V_SQUARES", of("Y_DIM").div_ceil(16)),
        ("ZEROS", u32::from(of("K_SQUARES") < of("K_DIM/16"))),
        ("FULL_BLOCKS", of("K_SQUARES*16/BLOCK")),
        ("LAST_STEPS", of("K_SQUARES") % of("BLOCK/16")),
        ("SQUARES", v_blocks.max(of("SUBGROUPS") + 4)),
        ("MOST_PARTS", of("PARTS").max(of("Q_PARTS"))),
        ("Q_LOADS", of("BLOCK*Q_PARTS") / 16),
        ("K_LOADS", 8 * of("BLOCK*PARTS") / threads),
        ("V_LOADS", (2 * of("V_DIM*PARTS")).div_ceil(threads)),
    ]
}
