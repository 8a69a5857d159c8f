// The choice of experts of each row, one workgroup a row. SCORING: 0 softmax of
// all; 1 softmax of the chosen; 2 sigmoids.

struct Params {
    n_experts: u32,
    top_k: u32,
    start: u32,
    width: u32,
    scale: f32,
    renormalises: u32,
    has_bias: u32,
    // 0 for no groups.
    n_groups: u32,
    n_kept: u32,
    n: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
// (rows, top_k): the experts, then (rows, top_k): their weights.
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;

const THREADS: u32 = 128u;
const MAX_EXPERTS: u32 = 1024u;

var<workgroup> scores: array<f32, MAX_EXPERTS>;
// What the choice goes by; 0 for what may not be chosen.
var<workgroup> keys: array<u32, MAX_EXPERTS>;
var<workgroup> best: array<vec2<u32>, THREADS>;
var<workgroup> partial: array<f32, THREADS>;
var<workgroup> group_keys: array<u32, THREADS>;
// The experts chosen, by rank.
var<workgroup> ranked: array<u32, MAX_EXPERTS>;

const NOWHERE: u32 = 0xffffffffu;

// Where a thread stands.
struct Place {
    thread: u32,
    lane: u32,
    subgroup: u32,
    n_subgroups: u32,
}

fn total(thread: u32, value: f32) -> f32 {
    partial[thread] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half = half >> 1u) {
        if (thread < half) { partial[thread] += partial[thread + half]; }
        workgroupBarrier();
    }
    let sum = partial[0];
    workgroupBarrier();
    return sum;
}

fn highest(at: Place, value: f32) -> f32 {
    let mine = subgroupMax(value);
    if (at.lane == 0u) { partial[at.subgroup] = mine; }
    workgroupBarrier();
    var it = partial[0];
    for (var s = 1u; s < at.n_subgroups; s++) { it = max(it, partial[s]); }
    workgroupBarrier();
    return it;
}

// Whether `a` goes before `b`: a higher key, or a lower place.
fn is_better(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

fn best_of(at: Place) -> u32 {
    var mine = vec2<u32>(0u, NOWHERE);
    for (var i = at.thread; i < p.n_experts; i += THREADS) {
        let it = vec2<u32>(keys[i], i);
        if (it.x > 0u && is_better(it, mine)) { mine = it; }
    }
    let key = subgroupMax(mine.x);
    let place = subgroupMin(select(NOWHERE, mine.y, mine.x == key));
    if (at.lane == 0u) { best[at.subgroup] = vec2<u32>(key, place); }
    workgroupBarrier();
    var it = best[0];
    for (var s = 1u; s < at.n_subgroups; s++) {
        if (is_better(best[s], it)) { it = best[s]; }
    }
    return it.y;
}

// The sum of a group's two best, by which groups are chosen.
fn group_key(group: u32) -> u32 {
    let len = p.n_experts / p.n_groups;
    var first = -3.0e38;
    var second = -3.0e38;
    for (var i = group * len; i < (group + 1u) * len; i++) {
        var it = scores[i];
        if (p.has_bias != 0u) { it += bias[i]; }
        if (is_nan(it)) { return 1u; }
        if (it > first) {
            second = first;
            first = it;
        } else if (it > second) {
            second = it;
        }
    }
    if (len == 1u) { return ordered(first); }
    return ordered(first + second);
}

fn keep_groups(thread: u32) {
    let len = p.n_experts / p.n_groups;
    for (var g = thread; g < p.n_groups; g += THREADS) { group_keys[g] = group_key(g); }
    workgroupBarrier();
    for (var g = thread; g < p.n_groups; g += THREADS) {
        var n_better = 0u;
        for (var other = 0u; other < p.n_groups; other++) {
            if (is_better(vec2<u32>(group_keys[other], other), vec2<u32>(group_keys[g], g))) {
                n_better += 1u;
            }
        }
        if (n_better >= p.n_kept) {
            for (var i = g * len; i < (g + 1u) * len; i++) { keys[i] = 0u; }
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(num_subgroups) n_subgroups: u32,
) {
    let row = linear(id, n);
    if (row >= p.n) { return; }
    let thread = subgroup * subgroup_size + lane;
    let at = Place(thread, lane, subgroup, n_subgroups);
    let begin = row * p.width + p.start;
    var largest = -3.0e38;
    for (var i = thread; i < p.n_experts; i += THREADS) {
        let it = logits[begin + i];
        scores[i] = it;
        if (it > largest) { largest = it; }
    }
    if (SCORING == 0u) {
        largest = highest(at, largest);
        var sum = 0.0;
        for (var i = thread; i < p.n_experts; i += THREADS) {
            scores[i] = exp_(scores[i] - largest);
            sum += scores[i];
        }
        sum = total(thread, sum);
        for (var i = thread; i < p.n_experts; i += THREADS) { scores[i] /= sum; }
    } else if (SCORING == 2u) {
        for (var i = thread; i < p.n_experts; i += THREADS) { scores[i] = sigmoid(scores[i]); }
    }
    for (var i = thread; i < p.n_experts; i += THREADS) {
        var it = scores[i];
        if (SCORING == 2u && p.has_bias != 0u) { it += bias[i]; }
        keys[i] = ordered(it);
    }
    workgroupBarrier();
    if (SCORING == 2u && p.n_groups > 0u) { keep_groups(thread); }
    let out = row * p.top_k;
    let weights = p.n * p.top_k + out;
    var sum = 0.0;
    var first = 0.0;
    for (var rank = 0u; rank < p.top_k; rank++) {
        let expert = best_of(at);
        let score = scores[min(expert, p.n_experts - 1u)];
        if (rank == 0u) { first = score; }
        if (SCORING == 1u) { sum += exp_(score - first); } else { sum += score; }
        // Everybody has seen which it is before anybody looks for the next.
        workgroupBarrier();
        if (thread == 0u) {
            ranked[rank] = expert;
            if (expert < p.n_experts) { keys[expert] = 0u; }
        }
        workgroupBarrier();
    }
    for (var rank = thread; rank < p.top_k; rank += THREADS) {
        let expert = min(ranked[rank], p.n_experts - 1u);
        var it = scores[expert];
        if (SCORING == 1u) {
            it = exp_(it - first) / sum;
        } else {
            if (p.renormalises != 0u) { it /= sum + select(0.0, 1e-20, SCORING == 2u); }
            it *= p.scale;
        }
        chosen[out + rank] = expert;
        chosen[weights + rank] = bitcast<u32>(it);
    }
}
