// Stores keys and values, one vector a workgroup. On their way keys are normalised (NORMED) and
// rotated (PAIRS), and so are queries, in place; values are normalised (NORMED_VALUES). ONE: all of
// them are in the buffer of the queries.

struct Params {
    n: u32,
    // 0 where queries or values are left alone.
    n_queries: u32,
    n_keys: u32,
    n_values: u32,
    q_start: u32,
    q_width: u32,
    q_stride: u32,
    k_start: u32,
    k_width: u32,
    k_stride: u32,
    v_start: u32,
    v_width: u32,
    v_stride: u32,
    // Sines and cosines, (rows, pairs).
    table: u32,
    q_eps: f32,
    k_eps: f32,
    v_eps: f32,
    k_words: u32,
    v_words: u32,
    // Of each row: which of the batch it is, and where its keys and values go.
    list: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read_write> pages: array<u32>;
@group(0) @binding(5) var<storage, read> q_weight: array<f32>;
@group(0) @binding(6) var<storage, read> k_weight: array<f32>;
@group(0) @binding(7) var<storage, read> v_weight: array<f32>;
@group(0) @binding(8) var<storage, read> lists: array<u32>;

const QUERY: u32 = 0u;
const KEY: u32 = 1u;
const VALUE: u32 = 2u;

var<workgroup> vector: array<f32, DIM>;

// As `norm/norm.wgsl` does.
fn normalise(thread: u32, dim: u32, kind: u32) {
    var squares = 0.0;
    for (var i = 4u * thread; i < dim; i += 4u * THREADS) {
        for (var e = i; e < min(i + 4u, dim); e++) { squares = fma(vector[e], vector[e], squares); }
    }
    var eps = p.q_eps;
    if (kind == KEY) { eps = p.k_eps; }
    if (kind == VALUE) { eps = p.v_eps; }
    let inverse = 1.0 / sqrt(total(thread, squares) / f32(dim) + eps);
    for (var i = thread; i < dim; i += THREADS) {
        var weight = 0.0;
        if (kind == QUERY) {
            weight = q_weight[i];
        } else if (kind == KEY) {
            weight = k_weight[i];
        } else {
            weight = v_weight[i];
        }
        vector[i] = vector[i] * inverse * weight;
    }
    workgroupBarrier();
}

// As `rope/rope.wgsl` does.
fn rotate(thread: u32, row: u32) {
    for (var pair = thread; pair < PAIRS; pair += THREADS) {
        var at = pair;
        var other = pair + PAIRS;
        if (ADJACENT != 0u) {
            at = 2u * pair;
            other = at + 1u;
        }
        let angle = p.table + 2u * (row * PAIRS + pair);
        let sine = bitcast<f32>(lists[angle]);
        let cosine = bitcast<f32>(lists[angle + 1u]);
        let a = vector[at];
        let b = vector[other];
        vector[at] = fma(a, cosine, -(b * sine));
        vector[other] = fma(b, cosine, a * sine);
    }
    workgroupBarrier();
}

// A thread has four elements at a time; 16 threads share a scale where there
// are scales.
fn put_fours(thread: u32, at: u32, dim: u32) {
    for (var base = 0u; base < dim; base += 4u * THREADS) {
        let i = base + 4u * thread;
        var word = 0u;
        if (KV == KV_F32) {
            for (var e = i; e < min(i + 4u, dim); e++) {
                pages[at + e] = bitcast<u32>(vector[e]);
            }
        } else if (KV == KV_BF16) {
            for (var e = i; e < min(i + 4u, dim); e += 2u) {
                word = bf16(vector[e]);
                if (e + 1u < dim) { word |= bf16(vector[e + 1u]) << 16u; }
                pages[at + e / 2u] = word;
            }
        } else {
            var largest = 0.0;
            for (var e = i; e < min(i + 4u, dim); e++) {
                let magnitude = abs(vector[e]);
                if (magnitude > largest) { largest = magnitude; }
            }
            partial[thread] = largest;
            workgroupBarrier();
#each t 16
            largest = max(largest, partial[(thread & 240u) + $tu]);
#end
            workgroupBarrier();
            // Rounded up to a mantissa of 16 bits; nothing below the normal numbers.
            let bits = bitcast<u32>(largest / 127.0);
            var scale = bitcast<f32>((min(bits, 0x7effffffu) + 0xffu) & 0xffffff00u);
            scale = min(scale, bitcast<f32>(0x7c010200u));
            if (bits < 0x00800000u) { scale = 0.0; }
            for (var e = i; e < min(i + 4u, dim); e++) {
                if (scale > 0.0) {
                    let it = clamp(round(vector[e] / scale), -127.0, 127.0);
                    word |= (bitcast<u32>(i32(it)) & 255u) << (8u * (e & 3u));
                }
            }
            if (i < dim) {
                let group = at + (i >> 6u) * 17u;
                if ((i & 63u) == 0u) { pages[group] = bitcast<u32>(scale); }
                pages[group + 1u + ((i & 63u) >> 2u)] = word;
            }
        }
    }
}

#main_in_subgroups idx THREADS p.n
    let n_vectors = p.n_queries + p.n_keys + p.n_values;
    let nth = idx % n_vectors;
    let row = idx / n_vectors;
    let at = p.list + 3u * row;
    let batch_row = lists[at];
    let is_query = nth < p.n_queries;
    let is_value = nth >= p.n_queries + p.n_keys;
    if (is_value) {
        let head = nth - p.n_queries - p.n_keys;
        let begin = batch_row * p.v_width + p.v_start + head * p.v_stride;
        for (var i = thread; i < V_DIM; i += THREADS) {
            if (ONE != 0u) { vector[i] = q[begin + i]; } else { vector[i] = v[begin + i]; }
        }
        workgroupBarrier();
        if (NORMED_VALUES != 0u) { normalise(thread, V_DIM, VALUE); }
        put_fours(thread, lists[at + 2u] + head * p.v_words, V_DIM);
        return;
    }
    let head = select(nth - p.n_queries, nth, is_query);
    let q_at = batch_row * p.q_width + p.q_start + head * p.q_stride;
    let k_at = batch_row * p.k_width + p.k_start + head * p.k_stride;
    for (var i = thread; i < K_DIM; i += THREADS) {
        if (is_query) {
            vector[i] = q[q_at + i];
        } else if (ONE != 0u) {
            vector[i] = q[k_at + i];
        } else {
            vector[i] = k[k_at + i];
        }
    }
    workgroupBarrier();
    if (NORMED != 0u) { normalise(thread, K_DIM, select(KEY, QUERY, is_query)); }
    if (PAIRS != 0u) { rotate(thread, batch_row); }
    if (is_query) {
        for (var i = thread; i < K_DIM; i += THREADS) { q[q_at + i] = vector[i]; }
    } else {
        put_fours(thread, lists[at + 1u] + head * p.k_words, K_DIM);
    }
}
