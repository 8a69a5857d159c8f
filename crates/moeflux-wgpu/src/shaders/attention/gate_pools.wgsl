// Adds what a slab has of the values of pools' slots, by the shares that their gates give them; a
// thread has one element of a pool. A slot is a position, of which the last columns of values count, or one
// of the pool before, of which the first count. Slabs come in the order of their positions.

struct Params {
    n: u32,
    dim: u32,
    n_slots: u32,
    // Where lists begin: for each slot of each pool, where its values begin in the slab, or NONE.
    list: u32,
    is_first: u32,
    // Columns of values, as many as of gates, which stand behind them.
    width: u32,
    // Slots of the pool before.
    n_before: u32,
    // Positions of a pool.
    size: u32,
}

const NONE: u32 = 0xffffffffu;

@group(0) @binding(0) var<uniform> p: Params;
// Of each element the highest gate so far, the sum of shares, and that of values by their shares.
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
// Values, and as many gates behind each.
@group(0) @binding(2) var<storage, read> rows: array<f32>;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
// (size, width)
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
    for (var k = 0u; k < p.n_slots; k++) {
        let vector = lists[p.list + pool * p.n_slots + k];
        if (vector == NONE) { continue; }
        let col = select(p.width - p.dim, 0u, k < p.n_before) + i;
        let gate = rows[vector + p.width + col] + bias[(k % p.size) * p.width + col];
        let now = max(highest, gate);
        let stays = exp_(highest - now);
        let share = exp_(gate - now);
        sum = fma(sum, stays, share);
        weighted = fma(weighted, stays, share * rows[vector + col]);
        highest = now;
    }
    sums[3u * idx] = highest;
    sums[3u * idx + 1u] = sum;
    sums[3u * idx + 2u] = weighted;
}
