// Adds what a slab has of the keys of pools' positions, by the shares that their gates give them; a
// thread has one element of a pool. Slabs come in the order of their positions.

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
// Of each element the highest gate so far, the sum of shares, and that of keys by their shares.
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
// Keys, and as many gates behind each.
@group(0) @binding(2) var<storage, read> keys: array<f32>;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
// (size, dim)
@group(0) @binding(4) var<storage, read> bias: array<f32>;

#main_per_element idx p.n
    let i = idx % p.dim;
    let pool = idx / p.dim;
    // Below all numbers that gates may be.
    var highest = -3.0e38;
    var sum = 0.0;
    var weighted = 0.0;
    if (p.is_first == 0u) {
        highest = sums[3u * idx];
        sum = sums[3u * idx + 1u];
        weighted = sums[3u * idx + 2u];
    }
    for (var k = 0u; k < p.size; k++) {
        let vector = lists[p.list + pool * p.size + k];
        if (vector == NONE) { continue; }
        let gate = keys[vector + p.dim + i] + bias[k * p.dim + i];
        let now = max(highest, gate);
        let stays = exp_(highest - now);
        let share = exp_(gate - now);
        sum = fma(sum, stays, share);
        weighted = fma(weighted, stays, share * keys[vector + i]);
        highest = now;
    }
    sums[3u * idx] = highest;
    sums[3u * idx + 1u] = sum;
    sums[3u * idx + 2u] = weighted;
}
