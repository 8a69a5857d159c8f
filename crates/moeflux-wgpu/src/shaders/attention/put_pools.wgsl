// Turns means into keys of pools, normalised and rotated, and puts those into a slab whose last
// positions it has. A workgroup has one pool.

struct Params {
    n: u32,
    dim: u32,
    n_pairs: u32,
    eps: f32,
    // Where lists begin: for each pool, where its key belongs in the slab, or NONE.
    list: u32,
    // Sines and cosines, (pools, pairs).
    table: u32,
}

const NONE: u32 = 0xffffffffu;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> keys: array<f32>;
@group(0) @binding(2) var<storage, read> means: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read> lists: array<u32>;

#main_in_subgroups pool 64 p.n
    let first = pool * p.dim;
    var squares = 0.0;
    for (var i = thread; i < p.dim; i += 64u) {
        squares = fma(means[first + i], means[first + i], squares);
    }
    let inverse = 1.0 / sqrt(total(thread, squares) / f32(p.dim) + p.eps);
    let out = lists[p.list + pool];
    if (out == NONE) { return; }
    for (var i = thread; i < p.dim; i += 64u) {
        if (i >= 2u * p.n_pairs) { keys[out + i] = means[first + i] * inverse * weight[i]; }
    }
    for (var pair = thread; pair < p.n_pairs; pair += 64u) {
        var at = pair;
        var other = pair + p.n_pairs;
        if (ADJACENT != 0u) {
            at = 2u * pair;
            other = at + 1u;
        }
        let angle = p.table + 2u * (pool * p.n_pairs + pair);
        let sine = bitcast<f32>(lists[angle]);
        let cosine = bitcast<f32>(lists[angle + 1u]);
        let a = means[first + at] * inverse * weight[at];
        let b = means[first + other] * inverse * weight[other];
        keys[out + at] = fma(a, cosine, -(b * sine));
        keys[out + other] = fma(b, cosine, a * sine);
    }
}
