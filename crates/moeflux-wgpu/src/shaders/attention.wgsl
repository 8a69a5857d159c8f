// Attention of one query head of one row to some positions: what softmax and
// mixing have gathered, for `merge_attention.wgsl` to put together.

const THREADS: u32 = 64u;

var<workgroup> query: array<f32, Q_DIM>;
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> partial: array<f32, THREADS>;

fn highest(thread: u32, value: f32) -> f32 {
    partial[thread] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half = half >> 1u) {
        if (thread < half) { partial[thread] = max(partial[thread], partial[thread + half]); }
        workgroupBarrier();
    }
    let it = partial[0];
    workgroupBarrier();
    return it;
}

fn total(thread: u32, value: f32) -> f32 {
    partial[thread] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half = half >> 1u) {
        if (thread < half) { partial[thread] += partial[thread + half]; }
        workgroupBarrier();
    }
    let it = partial[0];
    workgroupBarrier();
    return it;
}

fn score(vector: u32) -> f32 {
    var sum = 0.0;
    if (KV == 0u) {
        for (var i = 0u; i < p.k_dim; i++) {
            sum = fma(query[i], bitcast<f32>(keys[vector + i]), sum);
        }
    } else if (KV == 1u) {
        for (var i = 0u; i < p.k_dim; i += 2u) {
            let word = keys[vector + i / 2u];
            sum = fma(query[i], stored(word, 0u), sum);
            // The query has a zero behind its last element.
            sum = fma(query[i + 1u], stored(word, 1u), sum);
        }
    } else {
        for (var first = 0u; first < p.k_dim; first += 64u) {
            let at = vector + (first / 64u) * 17u;
            var products = 0.0;
            let len = min(64u, p.k_dim - first);
            for (var i = 0u; i < len; i += 4u) {
                let word = keys[at + 1u + i / 4u];
                for (var e = 0u; e < 4u; e++) {
                    products = fma(query[first + i + e], stored(word, e), products);
                }
            }
            sum = fma(products, bitcast<f32>(keys[at]), sum);
        }
    }
    return sum * p.scale;
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let idx = linear(id, n);
    if (idx >= p.n) { return; }
    let split = idx % p.n_splits;
    let head = (idx / p.n_splits) % p.n_heads;
    let row = idx / (p.n_splits * p.n_heads);
    let n_kv_heads = p.n_heads / p.group;
    let kv_head = head / p.group;
    let begin = (p.first_row + row) * p.q_width + p.q_start + head * p.q_stride;
    for (var i = thread; i < Q_DIM; i += THREADS) {
        var it = 0.0;
        if (i < p.k_dim) { it = q[begin + i]; }
        query[i] = it;
    }
    workgroupBarrier();
    let seen_end = p.position + row + 1u;
    let split_start = p.seen_from + split * p.split_len;
    let end = min(min(split_start + p.split_len, p.seen_to), seen_end);
    let start = max(split_start, first_seen(row));
    // Tiles begin at the same positions whatever the window.
    let skipped = (start - split_start) / THREADS * THREADS;
    var largest = NONE;
    var sum = 0.0;
    var acc: array<f32, COLS>;
    for (var first = split_start + skipped; first < end; first += THREADS) {
        let position = first + thread;
        var it = NONE;
        var is_seen = position >= start && position < end;
#if MASKED
        if (is_seen) {
            let word = chosen[(p.first_row + row) * p.mask_words + position / 32u];
            is_seen = ((word >> (position & 31u)) & 1u) != 0u;
        }
#end
        if (is_seen) {
            it = score(((position - p.piece_start) * n_kv_heads + kv_head) * p.k_words);
        }
        // Read back, it is rounded whatever it goes into.
        weights[thread] = it;
        let new_largest = max(largest, highest(thread, it));
        var weight = 0.0;
        if (is_seen) { weight = exp_(weights[thread] - new_largest); }
        weights[thread] = weight;
        let tile_sum = total(thread, weight);
        let factor = exp_(largest - new_largest);
        sum = fma(sum, factor, tile_sum);
        largest = new_largest;
        let len = min(THREADS, end - first);
        for (var c = 0u; c < COLS; c++) {
            let col = c * THREADS + thread;
            if (col < p.v_dim) {
                var mixed = acc[c] * factor;
                for (var j = 0u; j < len; j++) {
                    let at = ((first + j - p.piece_start) * n_kv_heads + kv_head) * p.v_words;
                    if (weights[j] > 0.0) { mixed = fma(weights[j], value_at(at, col), mixed); }
                }
                acc[c] = mixed;
            }
        }
        workgroupBarrier();
    }
    let out = ((row * p.n_heads + head) * p.all_splits + p.first_split + split) * (p.v_dim + 2u);
    if (thread == 0u) {
        parts[out] = largest;
        parts[out + 1u] = sum;
    }
    for (var c = 0u; c < COLS; c++) {
        let col = c * THREADS + thread;
        if (col < p.v_dim) { parts[out + 2u + col] = acc[c]; }
    }
}
