// The likeliest of many tokens: of each group of them, a workgroup's, the first of the
// highest logits. A lane has PER_LANE of them, SUBGROUP apart.

struct Params {
    // Logits of a row, and their groups.
    n: u32,
    n_groups: u32,
    // Groups of all rows.
    n_all: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<u32>;
// (rows, groups, 2): the key, see below, and the token.
@group(0) @binding(2) var<storage, read_write> best: array<u32>;

const NOWHERE: u32 = 0xffffffffu;

// Orders floats as integers; what is no number, or infinite, is beyond all.
fn key_of(bits: u32) -> u32 {
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) { return 0xffffffffu; }
    return select(~bits, bits | 0x80000000u, (bits >> 31u) == 0u);
}

@compute @workgroup_size(SUBGROUP)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let group = linear(id, n);
    if (group >= p.n_all) { return; }
    let begin = group / p.n_groups * p.n;
    let first = group % p.n_groups * SUBGROUP * PER_LANE + lane;
#each i PER_LANE
    let at$i = first + SUBGROUP * $iu;
    let bits$i = logits[begin + min(at$i, p.n - 1u)];
#end
    var key = 0u;
    var token = NOWHERE;
#each i PER_LANE
    {
        let its = key_of(bits$i);
        if (at$i < p.n && its > key) {
            key = its;
            token = at$i;
        }
    }
#end
    let highest = subgroupMax(key);
    let first_of_them = subgroupMin(select(NOWHERE, token, key == highest));
    if (lane == 0u) {
        best[2u * group] = highest;
        best[2u * group + 1u] = first_of_them;
    }
}
