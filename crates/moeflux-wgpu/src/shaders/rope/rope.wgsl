// Rotates pairs of a head's elements in place.

struct Params {
    n: u32,
    n_heads: u32,
    n_pairs: u32,
    start: u32,
    width: u32,
    stride: u32,
    // Sines and cosines, (rows, pairs).
    table: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> lists: array<u32>;

#main_per_element idx p.n
    let pair = idx % p.n_pairs;
    let head = (idx / p.n_pairs) % p.n_heads;
    let row = idx / (p.n_pairs * p.n_heads);
    let first = row * p.width + p.start + head * p.stride;
    var at = first + pair;
    var other = at + p.n_pairs;
    if (ADJACENT != 0u) {
        at = first + 2u * pair;
        other = at + 1u;
    }
    let angle = p.table + 2u * (row * p.n_pairs + pair);
    let sine = bitcast<f32>(lists[angle]);
    let cosine = bitcast<f32>(lists[angle + 1u]);
    let a = y[at];
    let b = y[other];
    y[at] = fma(a, cosine, -(b * sine));
    y[other] = fma(b, cosine, a * sine);
}
