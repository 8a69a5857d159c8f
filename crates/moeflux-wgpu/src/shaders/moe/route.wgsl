// The choice of experts of each row, one subgroup's lanes a row: lane l has the
// experts l, l + SUBGROUP, and so on, PER of them. SCORING: 0 softmax of all; 1
// softmax of the chosen; 2 sigmoids; 3 roots of softplus. GROUPED: experts are chosen from the best groups.

const SCORING_SOFTMAX: u32 = 0u;
const SCORING_SOFTMAX_OF_CHOSEN: u32 = 1u;
const SCORING_SIGMOID: u32 = 2u;
const SCORING_SQRT_SOFTPLUS: u32 = 3u;

struct Params {
    n_experts: u32,
    top_k: u32,
    start: u32,
    width: u32,
    scale: f32,
    renormalises: u32,
    // What `per_expert` has: 0 nothing, 1 biases of the choice, 2 factors of the weights.
    per_expert_kind: u32,
    n_groups: u32,
    n_kept: u32,
    n: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> per_expert: array<f32>;
// (rows, top_k): the experts, then (rows, top_k): their weights.
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;

const MAX_EXPERTS: u32 = 1024u;
const MAX_GROUPS: u32 = 128u;
const NOWHERE: u32 = 0xffffffffu;

// The experts chosen and their scores, by rank.
var<workgroup> ranked: array<vec2<u32>, MAX_EXPERTS>;

// Sums have one order on all devices: expert e is added to part e % 32, and parts as a tree, i and
// i + half of them first, as in reduce.wgsl. A lane has every SUBGROUP-th part.
const PARTS: u32 = 32u / SUBGROUP;

// The sum of the parts of all lanes.
fn all_parts(own: array<f32, PARTS>) -> f32 {
    var parts = own;
#each j 32/SUBGROUP/2
    parts[$j] += parts[${j+32/SUBGROUP/2}];
#end
#each j 32/SUBGROUP/4
    parts[$j] += parts[${j+32/SUBGROUP/4}];
#end
#each j 32/SUBGROUP/8
    parts[$j] += parts[${j+32/SUBGROUP/8}];
#end
    var sum = parts[0];
    if (SUBGROUP >= 32u) { sum += subgroupShuffleXor(sum, 16u); }
    if (SUBGROUP >= 16u) { sum += subgroupShuffleXor(sum, 8u); }
    if (SUBGROUP >= 8u) { sum += subgroupShuffleXor(sum, 4u); }
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 1u);
    return sum;
}

#if GROUPED
// What groups are chosen by, of each expert.
var<workgroup> biased: array<f32, MAX_EXPERTS>;
var<workgroup> group_keys: array<u32, MAX_GROUPS>;

// The best of a group of probabilities, the sum of the two best of sigmoids.
fn group_key(group: u32, len: u32) -> u32 {
    var first = -3.0e38;
    var second = -3.0e38;
    for (var i = group * len; i < (group + 1u) * len; i++) {
        let it = biased[i];
        if (is_nan(it)) { return 1u; }
        if (it > first) {
            second = first;
            first = it;
        } else if (it > second) {
            second = it;
        }
    }
    if (len == 1u || SCORING == SCORING_SOFTMAX) { return ordered(first); }
    return ordered(first + second);
}

// Whether a group is one of the best: those of equal keys in ascending order.
fn is_kept(group: u32) -> bool {
    var n_better = 0u;
    for (var other = 0u; other < p.n_groups; other++) {
        let key = group_keys[group];
        let its = group_keys[other];
        if (its > key || (its == key && other < group)) { n_better += 1u; }
    }
    return n_better < p.n_kept;
}
#end

@compute @workgroup_size(SUBGROUP)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let row = linear(id, n);
    if (row >= p.n) { return; }
    let begin = row * p.width + p.start;
    let last = p.n_experts - 1u;
#each j PER
    let i$j = lane + SUBGROUP * $ju;
    let counts$j = i$j <= last;
    var score$j = logits[begin + min(i$j, last)];
    var bias$j = 0.0;
    if (p.per_expert_kind == 1u) { bias$j = per_expert[min(i$j, last)]; }
#end
    if (SCORING == SCORING_SOFTMAX) {
        // What is not a number is no maximum.
        var largest = -3.0e38;
#each j PER
        if (score$j > largest) { largest = score$j; }
#end
        largest = subgroupMax(largest);
        var parts: array<f32, PARTS>;
#each j PER
        score$j = exp_(score$j - largest);
        if (counts$j) { parts[$ju % PARTS] += score$j; }
#end
        let sum = all_parts(parts);
#each j PER
        score$j /= sum;
#end
    } else if (SCORING == SCORING_SIGMOID) {
#each j PER
        score$j = sigmoid(score$j);
#end
    } else if (SCORING == SCORING_SQRT_SOFTPLUS) {
#each j PER
        score$j = sqrt(softplus(score$j));
#end
    }
    // What the choice goes by; 0 for what may not be chosen.
#each j PER
    var key$j = select(0u, ordered(score$j + bias$j), counts$j);
#end
    // A score that is NaN is never chosen, so it goes into all weights.
    var is_odd = false;
#each j PER
    is_odd = is_odd || (counts$j && is_nan(score$j + bias$j));
#end
    let spoils = subgroupMax(select(0u, 1u, is_odd)) != 0u;
#if GROUPED
#each j PER
    if (counts$j) { biased[i$j] = score$j + bias$j; }
#end
    workgroupBarrier();
    let len = p.n_experts / p.n_groups;
    for (var g = lane; g < p.n_groups; g += SUBGROUP) { group_keys[g] = group_key(g, len); }
    workgroupBarrier();
#each j PER
    if (counts$j && !is_kept(i$j / len)) { key$j = 0u; }
#end
#end
    var sum = 0.0;
    var first = 0.0;
    for (var rank = 0u; rank < p.top_k; rank++) {
        var key = 0u;
        var expert = NOWHERE;
        var mine = 0.0;
#each j PER
        if (key$j > key) {
            key = key$j;
            expert = i$j;
            mine = score$j;
        }
#end
        // The best, and of equal ones the first.
        let best = subgroupMax(key);
        expert = min(subgroupMin(select(NOWHERE, expert, key == best)), last);
        let score = subgroupShuffle(mine, expert % SUBGROUP);
#each j PER
        if (i$j == expert) { key$j = 0u; }
#end
        if (rank == 0u) { first = score; }
        if (SCORING == SCORING_SOFTMAX_OF_CHOSEN) { sum += exp_(score - first); } else { sum += score; }
        if (lane == 0u) { ranked[rank] = vec2<u32>(expert, bitcast<u32>(score)); }
    }
    workgroupBarrier();
    let out = row * p.top_k;
    let weights = p.n * p.top_k + out;
    for (var rank = lane; rank < p.top_k; rank += SUBGROUP) {
        var it = bitcast<f32>(ranked[rank].y);
        if (SCORING == SCORING_SOFTMAX_OF_CHOSEN) {
            it = exp_(it - first) / sum;
        } else {
            if (p.renormalises != 0u) { it /= sum + select(0.0, 1e-20, SCORING >= SCORING_SIGMOID); }
            it *= p.scale;
            if (p.per_expert_kind == 2u) { it *= per_expert[ranked[rank].x]; }
        }
        chosen[out + rank] = ranked[rank].x;
        chosen[weights + rank] = select(bitcast<u32>(it), 0x7fc00000u, spoils);
    }
}
