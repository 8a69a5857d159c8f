// Puts the gated keys of pools into a slab whose last positions it has; a thread has one element.

struct Params {
    n: u32,
    dim: u32,
    // Where lists begin: for each pool, where its key belongs in the slab, or NONE.
    list: u32,
}

const NONE: u32 = 0xffffffffu;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> keys: array<f32>;
// Of each element the highest gate, the sum of shares, and that of keys by their shares.
@group(0) @binding(2) var<storage, read> sums: array<f32>;
@group(0) @binding(3) var<storage, read> lists: array<u32>;

#main_per_element idx p.n
    let out = lists[p.list + idx / p.dim];
    if (out == NONE) { return; }
    keys[out + idx % p.dim] = sums[3u * idx + 2u] / sums[3u * idx + 1u];
}
