// Brings experts from the host's memory into slots: elements as they are, and scales with the
// bias next to each, or after the scale that all of a matrix shares. A thread has 16 bytes of a slot at a time, and every workgroup one expert.
//
// CHOSEN: those that `moe/expert_admit.wgsl` admitted; else those of a
// list, which are in one slab.

struct Params {
    n_parts: u32,
#if CHOSEN
    // The buffer that is written, and the first slab that is bound.
    buffer: u32,
    first_slab: u32,
#else
    // Where the list begins, and how many it has.
    list: u32,
    n: u32,
#end
    unused_a: u32,
    // Of each part, in 16 bytes: where it begins in a slot, and the thread after its last,
    // counted from the first part's first.
    parts: array<vec4<u32>, 6>,
}

@group(0) @binding(0) var<uniform> p: Params;
// (20): of listed experts the slot, in 16 bytes, of others the slab; then of each part
// what is done with it, and its first words in the slab, of biases or 0.
@group(0) @binding(1) var<storage, read> sources: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> slab0: array<vec4<u32>>;
#if CHOSEN
@group(0) @binding(4) var<storage, read> slab1: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> slab2: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read> slab3: array<vec4<u32>>;
// How many come; then each with its slot.
@group(0) @binding(7) var<storage, read> admitted: array<u32>;
// As `moe/expert_admit.wgsl` has them.
@group(0) @binding(8) var<storage, read> slots: array<u32>;

const SLABS: u32 = 4u;
#end

// 16 bytes as they are, which begin at a multiple of 16, or of 4.
const WIDE: u32 = 0u;
const WORDS: u32 = 1u;
// Pairs of numbers of 16 bits, and of 32.
const HALVES: u32 = 2u;
const SINGLES: u32 = 3u;
// One word of what biases are else, then the others.
const AFTER_ONE: u32 = 4u;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let nth = id.z * n.y + id.y;
#if CHOSEN
    if (nth >= admitted[0]) { return; }
    let entry = 8u * admitted[2u + 2u * nth];
    if (slots[entry + 6u] != p.buffer) { return; }
    let source = 20u * admitted[1u + 2u * nth];
    let slot = slots[entry + 7u];
    // Another dispatch has this expert's slab.
    let slab = sources[source] - p.first_slab;
    if (slab >= SLABS) { return; }
#else
    if (nth >= p.n) { return; }
    let source = p.list + 20u * nth;
    let slot = sources[source];
    let slab = 0u;
#end
    let size = p.parts[p.n_parts - 1u].y;
    for (var at = id.x * 256u + thread; at < size; at += n.x * 256u) {
        var first = 0u;
        for (var nth_part = 0u; nth_part < p.n_parts; nth_part++) {
            let part = p.parts[nth_part];
            if (at < part.y) {
                let its = source + 1u + 3u * nth_part;
                let origin = vec3<u32>(sources[its], sources[its + 1u], sources[its + 2u]);
                y[slot + part.x + at - first] = sixteen(slab, origin, at - first);
                break;
            }
            first = part.y;
        }
    }
}

fn wide_at(slab: u32, at: u32) -> vec4<u32> {
#if CHOSEN
    switch slab {
        case 0u: { return slab0[at]; }
        case 1u: { return slab1[at]; }
        case 2u: { return slab2[at]; }
        default: { return slab3[at]; }
    }
#else
    return slab0[at];
#end
}

fn word_at(slab: u32, at: u32) -> u32 { return wide_at(slab, at >> 2u)[at & 3u]; }

fn sixteen(slab: u32, origin: vec3<u32>, i: u32) -> vec4<u32> {
    if (origin.x == WIDE) { return wide_at(slab, (origin.y >> 2u) + i); }
    if (origin.x == WORDS) {
        let at = origin.y + 4u * i;
        return vec4<u32>(
            word_at(slab, at), word_at(slab, at + 1u), word_at(slab, at + 2u), word_at(slab, at + 3u),
        );
    }
    if (origin.x == AFTER_ONE) {
        let at = origin.y + 4u * i;
        return vec4<u32>(
            word_at(slab, select(at - 1u, origin.z, i == 0u)),
            word_at(slab, at), word_at(slab, at + 1u), word_at(slab, at + 2u),
        );
    }
    let at = origin.y + 2u * i;
    let scales = vec2<u32>(word_at(slab, at), word_at(slab, at + 1u));
    let bias = origin.z + 2u * i;
    let biases = vec2<u32>(word_at(slab, bias), word_at(slab, bias + 1u));
    if (origin.x == SINGLES) { return vec4<u32>(scales.x, biases.x, scales.y, biases.y); }
    let low = (scales & vec2<u32>(0xffffu)) | (biases << vec2<u32>(16u));
    let high = (scales >> vec2<u32>(16u)) | (biases & vec2<u32>(0xffff0000u));
    return vec4<u32>(low.x, high.x, low.y, high.y);
}
