// What the delta rule needs of a row and key head: query and key of length one,
// the query divided by the root of its length, and the gates of the value heads
// that share them. DECAY: where it is not 0, columns of states have decays of their own.

struct Params {
    n_k_heads: u32,
    n_v_heads: u32,
    k_dim: u32,
    first_row: u32,
    q_start: u32,
    q_width: u32,
    q_stride: u32,
    k_start: u32,
    k_width: u32,
    k_stride: u32,
    a_start: u32,
    a_width: u32,
    b_start: u32,
    b_width: u32,
    n: u32,
    // Of decays: where those of columns begin, and the least logarithm.
    decays: u32,
    bound: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> a: array<f32>;
@group(0) @binding(4) var<storage, read> b: array<f32>;
// (value heads) logarithms of rates, then biases of decays.
@group(0) @binding(5) var<storage, read> of_heads: array<f32>;
// (rows, key heads): query, then key. Behind all of them (rows, value heads): decays of columns.
@group(0) @binding(6) var<storage, read_write> normalised: array<f32>;
// (rows, value heads): how much stays, how much is corrected.
@group(0) @binding(7) var<storage, read_write> gates: array<vec2<f32>>;

#main_in_subgroups idx 64 p.n
    let head = idx % p.n_k_heads;
    let row = idx / p.n_k_heads;
    let q_at = (p.first_row + row) * p.q_width + p.q_start + head * p.q_stride;
    let k_at = (p.first_row + row) * p.k_width + p.k_start + head * p.k_stride;
    var squares = vec2<f32>(0.0);
    for (var i = thread; i < p.k_dim; i += 64u) {
        let both = vec2<f32>(q[q_at + i], k[k_at + i]);
        squares = fma(both, both, squares);
    }
    let both = total(thread, squares);
    let q_factor = 1.0 / sqrt(both.x + 1e-6) / sqrt(f32(p.k_dim));
    let k_factor = 1.0 / sqrt(both.y + 1e-6);
    let out = idx * 2u * p.k_dim;
    for (var i = thread; i < p.k_dim; i += 64u) {
        normalised[out + i] = q[q_at + i] * q_factor;
        normalised[out + p.k_dim + i] = k[k_at + i] * k_factor;
    }
    // Gates do not depend on key heads: any division of the value heads will do.
    let group = p.n_v_heads / p.n_k_heads;
    for (var i = thread; i < group; i += 64u) {
        let v_head = head * group + i;
        let b_value = b[(p.first_row + row) * p.b_width + p.b_start + v_head];
#if DECAY
        let stays = 1.0;
#else
        let a_value = a[(p.first_row + row) * p.a_width + p.a_start + v_head];
        let stays = decay_of(of_heads[v_head], a_value + of_heads[p.n_v_heads + v_head], p.bound);
#end
        gates[row * p.n_v_heads + v_head] = vec2<f32>(stays, sigmoid(b_value));
    }
#if DECAY
    for (var i = thread; i < group * p.k_dim; i += 64u) {
        let column = head * group * p.k_dim + i;
        let a_value = a[(p.first_row + row) * p.a_width + p.a_start + column];
        let biased = a_value + of_heads[p.n_v_heads + column];
        let at = p.decays + row * p.n_v_heads * p.k_dim + column;
        normalised[at] = decay_of(of_heads[column / p.k_dim], biased, p.bound);
    }
#end
}
