// Brings an expert from the host's memory into a slot: elements as they are, and
// scales with the bias beside each. A thread has 16 bytes of the slot.

struct Params {
    n_parts: u32,
    unused_a: u32,
    unused_b: u32,
    unused_c: u32,
    // Of each part: what is done with it, and the first words there, of biases or
    // 0, and here in 16 bytes; then the thread behind its last, counted from the
    // first part's first.
    parts: array<array<vec4<u32>, 2>, 6>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> wide: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> x: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<u32>>;

// 16 bytes as they are, which begin at a multiple of 16, or of 4.
const WIDE: u32 = 0u;
const WORDS: u32 = 1u;
// Pairs of numbers of 16 bits, and of 32.
const HALVES: u32 = 2u;
const SINGLES: u32 = 3u;

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
            y[part.w + at - first] = sixteen(part, at - first);
            return;
        }
        first = end;
    }
}

fn sixteen(part: vec4<u32>, i: u32) -> vec4<u32> {
    if (part.x == WIDE) { return wide[(part.y >> 2u) + i]; }
    if (part.x == WORDS) {
        let at = part.y + 4u * i;
        return vec4<u32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
    }
    let scales = vec2<u32>(x[part.y + 2u * i], x[part.y + 2u * i + 1u]);
    let biases = vec2<u32>(x[part.z + 2u * i], x[part.z + 2u * i + 1u]);
    if (part.x == SINGLES) { return vec4<u32>(scales.x, biases.x, scales.y, biases.y); }
    let low = (scales & vec2<u32>(0xffffu)) | (biases << vec2<u32>(16u));
    let high = (scales >> vec2<u32>(16u)) | (biases & vec2<u32>(0xffff0000u));
    return vec4<u32>(low.x, high.x, low.y, high.y);
}
