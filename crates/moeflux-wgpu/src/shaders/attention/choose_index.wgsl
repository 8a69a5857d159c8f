// The positions of the pools of the highest scores of each row, or entries, as bits; among equals the
// lower ones; and the positions after the last whole pool. One workgroup a row: the score that still counts is found digit
// by digit of eight bits.

struct Params {
    top_k: u32,
    first_row: u32,
    // Of the first row.
    position: u32,
    // Scores of a row.
    stride: u32,
    mask_words: u32,
    // Positions of a pool.
    size: u32,
    // Positions of a vector: more than one where entries are chosen, which then stand for positions.
    per_vector: u32,
    n: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read_write> chosen: array<u32>;

var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> prefix: u32;
var<workgroup> wanted: u32;
var<workgroup> equals: array<u32, 256>;

#main_per_workgroup row 256 p.n
    let n_positions = (p.position + row + 1u) / p.per_vector;
    let n_seen = n_positions / p.size;
    let first = row * p.stride;
    let out = (p.first_row + row) * p.mask_words;
    if (thread == 0u) {
        prefix = 0u;
        wanted = p.top_k;
    }
    workgroupBarrier();
    let takes_all = n_seen <= p.top_k;
    for (var shift = 32u; shift > 0u; shift -= 8u) {
        atomicStore(&counts[thread], 0u);
        workgroupBarrier();
        let high = prefix;
        if (!takes_all) {
            for (var i = thread; i < n_seen; i += 256u) {
                let key = ordered(scores[first + i]);
                if (shift == 32u || (key >> (shift & 31u)) == high) {
                    atomicAdd(&counts[(key >> (shift - 8u)) & 255u], 1u);
                }
            }
        }
        workgroupBarrier();
        if (thread == 0u) {
            var left = wanted;
            var digit = 255u;
            loop {
                let here = atomicLoad(&counts[digit]);
                if (here >= left || digit == 0u) { break; }
                left -= here;
                digit -= 1u;
            }
            wanted = left;
            prefix = (high << 8u) | digit;
        }
        workgroupBarrier();
    }
    // Of those that equal the last, this many of the lowest positions.
    let last = prefix;
    let n_words = (n_positions + 31u) / 32u;
    let per_thread = (n_words + 255u) / 256u;
    let begin = min(thread * per_thread, n_words);
    let to = min(begin + per_thread, n_words);
    var mine = 0u;
    // Those pools whose first positions the thread has.
    let own = (begin * 32u + p.size - 1u) / p.size;
    if (!takes_all) {
        for (var i = own; i < min((to * 32u + p.size - 1u) / p.size, n_seen); i++) {
            if (ordered(scores[first + i]) == last) { mine += 1u; }
        }
    }
    equals[thread] = mine;
    workgroupBarrier();
    var before = 0u;
    for (var i = 0u; i < thread; i++) { before += equals[i]; }
    let n_equal = wanted;
    // Whether the pool at hand is chosen: at first one that begins before the thread's positions,
    // which `before` counts already where it equals the last.
    var is_chosen = takes_all;
    if (!takes_all && own > 0u && own * p.size > begin * 32u && own <= n_seen) {
        let key = ordered(scores[first + own - 1u]);
        is_chosen = key > last || (key == last && before <= n_equal);
    }
    for (var word = begin; word < to; word++) {
        var bits = 0u;
        for (var k = 0u; k < 32u; k++) {
            let position = word * 32u + k;
            let i = position / p.size;
            if (i < n_seen) {
                if (!takes_all && position == i * p.size) {
                    let key = ordered(scores[first + i]);
                    is_chosen = key > last;
                    if (key == last) {
                        is_chosen = before < n_equal;
                        before += 1u;
                    }
                }
                if (is_chosen) { bits |= 1u << k; }
            } else if (position < n_positions) {
                bits |= 1u << k;
            }
        }
        chosen[out + word] = bits;
    }
}
