// Adds what a slab has of the keys of pools' positions to their means; a thread has one element of
// a pool. Slabs come in the order of their positions.

struct Params {
    n: u32,
    dim: u32,
    // Positions of a pool.
    size: u32,
    // Where lists begin: for each position of each pool, where its key begins in the slab, or NONE.
    list: u32,
    is_first: u32,
}

const NONE: u32 = 0xffffffffu;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> means: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<f32>;
@group(0) @binding(3) var<storage, read> lists: array<u32>;

#main_per_element idx p.n
    let i = idx % p.dim;
    let pool = idx / p.dim;
    var mean = 0.0;
    if (p.is_first == 0u) { mean = means[idx]; }
    for (var k = 0u; k < p.size; k++) {
        let vector = lists[p.list + pool * p.size + k];
        if (vector != NONE) { mean += keys[vector + i] / f32(p.size); }
    }
    means[idx] = mean;
}
