// The groups of a row's logits that hold its N highest: those with the N highest best
// ones, of equal ones the first, as `logits/top_logits_partial.wgsl` found them. One workgroup a row.

struct Params {
    // Logits of a row, their groups, and logits of a group.
    vocab: u32,
    n_groups: u32,
    per_group: u32,
    // At most MOST.
    n: u32,
    n_rows: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<u32>;
// (rows, groups, 2): the key, and the token.
@group(0) @binding(2) var<storage, read> best: array<u32>;
// (rows, N, 1 + per_group): the group's number, and its logits.
@group(0) @binding(3) var<storage, read_write> leading: array<u32>;

const THREADS: u32 = 256u;
const NOWHERE: u32 = 0xffffffffu;
const MINUS_INFINITY: u32 = 0xff800000u;

var<workgroup> keys: array<u32, THREADS>;
var<workgroup> order: array<u32, MOST>;

fn key_of(row: u32, group: u32) -> u32 {
    if (group >= p.n_groups) { return 0u; }
    return best[2u * (row * p.n_groups + group)];
}

#main_per_workgroup row THREADS p.n_rows
    if (thread < MOST) { order[thread] = NOWHERE; }
    for (var first = 0u; first < p.n_groups; first += THREADS) {
        let own = first + thread;
        let key = key_of(row, own);
        var rank = 0u;
        for (var base = 0u; base < p.n_groups; base += THREADS) {
            workgroupBarrier();
            keys[thread] = key_of(row, base + thread);
            workgroupBarrier();
            let len = min(THREADS, p.n_groups - base);
            for (var j = 0u; j < len; j++) {
                let other = keys[j];
                let comes_first = other > key || (other == key && base + j < own);
                rank += select(0u, 1u, comes_first);
            }
        }
        if (own < p.n_groups && rank < p.n) { order[rank] = own; }
    }
    workgroupBarrier();
    let out = row * p.n * (1u + p.per_group);
    if (thread < p.n) { leading[out + thread * (1u + p.per_group)] = order[thread]; }
    for (var i = thread; i < p.n * p.per_group; i += THREADS) {
        let nth = i / p.per_group;
        let inside = i % p.per_group;
        let group = order[nth];
        var logit = MINUS_INFINITY;
        if (group != NOWHERE && group * p.per_group + inside < p.vocab) {
            logit = logits[row * p.vocab + group * p.per_group + inside];
        }
        leading[out + nth * (1u + p.per_group) + 1u + inside] = logit;
    }
}
