// Brings experts from the host's memory into slots: elements as they are, and scales
// with the bias beside each. A thread has 16 bytes of a slot.
//
// CHOSEN: those that `admit.wgsl` made room for, whichever these are; else one.

struct Params {
    n_parts: u32,
    // Where experts are chosen: the buffer that is written, and the first slab.
    buffer: u32,
    first_slab: u32,
    unused_a: u32,
    // Of each part: what is done with it, and the first words there, of biases or
    // 0, and here in 16 bytes; then the thread behind its last, counted from the
    // first part's first. Where experts are chosen the first three are in `sources`,
    // and the fourth counts from the room.
    parts: array<array<vec4<u32>, 2>, 6>,
}

@group(0) @binding(0) var<uniform> p: Params;
#if CHOSEN
// How many come; then each with its room.
@group(0) @binding(1) var<storage, read> coming: array<u32>;
// As `admit.wgsl` has them.
@group(0) @binding(2) var<storage, read> rooms: array<u32>;
// (n_experts, 20): the slab, and the first three words of each part.
@group(0) @binding(3) var<storage, read> sources: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> slab0: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read> slab1: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read> slab2: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read> slab3: array<vec4<u32>>;
#else
@group(0) @binding(1) var<storage, read> wide: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> x: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<u32>>;
#end

#if CHOSEN
const SLABS: u32 = 4u;
#end

// 16 bytes as they are, which begin at a multiple of 16, or of 4.
const WIDE: u32 = 0u;
const WORDS: u32 = 1u;
// Pairs of numbers of 16 bits, and of 32.
const HALVES: u32 = 2u;
const SINGLES: u32 = 3u;

#if CHOSEN
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let nth = id.z * n.y + id.y;
    if (nth >= coming[0]) { return; }
    let room = 8u * coming[2u + 2u * nth];
    if (rooms[room + 6u] != p.buffer) { return; }
    let source = 20u * coming[1u + 2u * nth];
    // Another dispatch has this expert's slab.
    let slab = sources[source] - p.first_slab;
    if (slab >= SLABS) { return; }
    let size = p.parts[p.n_parts - 1u][1].x;
    for (var at = id.x * 256u + thread; at < size; at += n.x * 256u) {
        var first = 0u;
        for (var nth_part = 0u; nth_part < p.n_parts; nth_part++) {
            let end = p.parts[nth_part][1].x;
            if (at < end) {
                let its = source + 1u + 3u * nth_part;
                let to = rooms[room + 7u] + p.parts[nth_part][0].w;
                let part = vec4<u32>(sources[its], sources[its + 1u], sources[its + 2u], to);
                y[to + at - first] = sixteen(slab, part, at - first);
                break;
            }
            first = end;
        }
    }
}

fn wide_at(slab: u32, at: u32) -> vec4<u32> {
    switch slab {
        case 0u: { return slab0[at]; }
        case 1u: { return slab1[at]; }
        case 2u: { return slab2[at]; }
        default: { return slab3[at]; }
    }
}

fn word_at(slab: u32, at: u32) -> u32 { return wide_at(slab, at >> 2u)[at & 3u]; }
#else
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let at = linear(id, n) * 256u + thread;
    var first = 0u;
    for (var nth = 0u; nth < p.n_parts; nth++) {
        let part = p.parts[nth][0];
        let end = p.parts[nth][1].x;
        if (at < end) {
            y[part.w + at - first] = sixteen(0u, part, at - first);
            return;
        }
        first = end;
    }
}

fn wide_at(slab: u32, at: u32) -> vec4<u32> { return wide[at]; }
fn word_at(slab: u32, at: u32) -> u32 { return x[at]; }
#end

fn sixteen(slab: u32, part: vec4<u32>, i: u32) -> vec4<u32> {
    if (part.x == WIDE) { return wide_at(slab, (part.y >> 2u) + i); }
    if (part.x == WORDS) {
        let at = part.y + 4u * i;
        return vec4<u32>(
            word_at(slab, at), word_at(slab, at + 1u), word_at(slab, at + 2u), word_at(slab, at + 3u),
        );
    }
    let at = part.y + 2u * i;
    let scales = vec2<u32>(word_at(slab, at), word_at(slab, at + 1u));
    let bias = part.z + 2u * i;
    let biases = vec2<u32>(word_at(slab, bias), word_at(slab, bias + 1u));
    if (part.x == SINGLES) { return vec4<u32>(scales.x, biases.x, scales.y, biases.y); }
    let low = (scales & vec2<u32>(0xffffu)) | (biases << vec2<u32>(16u));
    let high = (scales >> vec2<u32>(16u)) | (biases & vec2<u32>(0xffff0000u));
    return vec4<u32>(low.x, high.x, low.y, high.y);
}
