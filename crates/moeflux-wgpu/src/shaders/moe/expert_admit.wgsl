// Makes room for the experts that rows chose and that are not on the device, by one subgroup.
// Lane l has the slots l, l + SUBGROUP, and so on, PER of them. The expert leaves that was chosen
// least often lately: each choice counts as one, half of it after this many steps of the layer.
// What this step chose stays.

struct Params {
    n_choices: u32,
    n_experts: u32,
    n_slots: u32,
    // Of an expert in 16 bytes.
    size: u32,
    // Halvings of a count with every step.
    decay: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> chosen: array<u32>;
// (n_slots, 8): elements and scales of three matrices, the buffer, and the first 16
// bytes there.
@group(0) @binding(2) var<storage, read> slots: array<u32>;
// Steps so far; (n_experts): the slot, or NOWHERE; (n_experts): counts, as they were
// at the step of the same place in the next (n_experts); (n_slots): the expert.
@group(0) @binding(3) var<storage, read_write> state: array<u32>;
// As `matmul/matvec.wgsl` reads it.
@group(0) @binding(4) var<storage, read_write> table: array<u32>;
// How many come; then each with its slot.
@group(0) @binding(5) var<storage, read_write> admitted: array<u32>;
// How many have come so far, and 16 bytes of these.
@group(0) @binding(6) var<storage, read_write> tally: array<u32>;

const MOST: u32 = 256u;
const MATRICES: u32 = 3u;
const NOWHERE: u32 = 0xffffffffu;
const STAYS: u32 = 0xffffffffu;

// The choices' experts; then which of them are absent, of equal ones the first alone.
var<workgroup> wanted: array<u32, MOST>;
var<workgroup> is_absent: array<u32, MOST>;
var<workgroup> absent: array<u32, MOST>;
var<workgroup> slot_of: array<u32, MOST>;

fn count_now(expert: u32, now: u32) -> f32 {
    let then = state[1u + 2u * p.n_experts + expert];
    return bitcast<f32>(state[1u + p.n_experts + expert]) * exp2(-p.decay * f32(now - then));
}

@compute @workgroup_size(SUBGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
    let now = state[0] + 1u;
    let n = min(p.n_choices, MOST);
    let experts = 1u + 3u * p.n_experts;
    for (var i = lane; i < n; i += SUBGROUP) { wanted[i] = min(chosen[i], p.n_experts - 1u); }
    workgroupBarrier();
    for (var i = lane; i < n; i += SUBGROUP) {
        let expert = wanted[i];
        var is_first = true;
        for (var before = 0u; before < i; before++) { is_first = is_first && wanted[before] != expert; }
        is_absent[i] = 0u;
        if (is_first) {
            is_absent[i] = u32(state[1u + expert] == NOWHERE);
            state[1u + p.n_experts + expert] = bitcast<u32>(count_now(expert, now) + 1.0);
            state[1u + 2u * p.n_experts + expert] = now;
        }
    }
    workgroupBarrier();
    storageBarrier();
    var n_absent = 0u;
    for (var i = 0u; i < n; i++) {
        if (is_absent[i] != 0u) {
            if (lane == 0u) { absent[n_absent] = wanted[i]; }
            n_absent++;
        }
    }
#each j PER
    let slot$j = lane + $ju * SUBGROUP;
    var key$j = STAYS;
    if (slot$j < p.n_slots) {
        let expert = state[experts + slot$j];
        if (expert >= p.n_experts) {
            key$j = 0u;
        } else if (state[1u + 2u * p.n_experts + expert] != now) {
            key$j = 1u + bitcast<u32>(count_now(expert, now));
        }
    }
#end
    for (var i = 0u; i < n_absent; i++) {
        var key = STAYS;
        var slot = NOWHERE;
#each j PER
        if (key$j < key) {
            key = key$j;
            slot = slot$j;
        }
#end
        let least = subgroupMin(key);
        slot = min(subgroupMin(select(NOWHERE, slot, key == least)), p.n_slots - 1u);
#each j PER
        if (slot$j == slot) { key$j = STAYS; }
#end
        if (lane == 0u) { slot_of[i] = slot; }
    }
    workgroupBarrier();
    for (var i = lane; i < n_absent; i += SUBGROUP) {
        let expert = absent[i];
        let slot = slot_of[i];
        let left = state[experts + slot];
        if (left < p.n_experts) { state[1u + left] = NOWHERE; }
        state[experts + slot] = expert;
        state[1u + expert] = slot;
        for (var word = 0u; word < 2u * MATRICES; word++) {
            table[2u * MATRICES * expert + word] = slots[8u * slot + word];
        }
        table[2u * MATRICES * (p.n_experts + 1u) + expert] = slots[8u * slot + 6u];
        admitted[1u + 2u * i] = expert;
        admitted[2u + 2u * i] = slot;
    }
    if (lane == 0u) {
        state[0] = now;
        admitted[0] = n_absent;
        tally[0] += n_absent;
        tally[1] += n_absent * p.size;
    }
}
