// Stores keys or values; a thread has 64 elements of a head, which share a
// scale where there are scales.

struct Params {
    n: u32,
    n_heads: u32,
    dim: u32,
    start: u32,
    width: u32,
    stride: u32,
    first_row: u32,
    // Of the first row, in this piece of the cache.
    position: u32,
    row_words: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> cache: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;

// The upper half, ties to even; what is not a number stays so.
fn bf16(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let rounded = bits + 0x7fffu + ((bits >> 16u) & 1u);
    return select(rounded, bits | 0x400000u, is_nan(value)) >> 16u;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let idx = linear(id, n) * 64u + thread;
    if (idx >= p.n) { return; }
    let n_parts = (p.dim + 63u) / 64u;
    let first = (idx % n_parts) * 64u;
    let head = (idx / n_parts) % p.n_heads;
    let row = idx / (n_parts * p.n_heads);
    let len = min(64u, p.dim - first);
    let begin = (p.first_row + row) * p.width + p.start + head * p.stride + first;
    let vector = ((p.position + row) * p.n_heads + head) * p.row_words;
    if (KV == 0u) {
        for (var i = 0u; i < len; i++) { cache[vector + first + i] = bitcast<u32>(x[begin + i]); }
    } else if (KV == 1u) {
        for (var i = 0u; i < len; i += 2u) {
            var word = bf16(x[begin + i]);
            if (i + 1u < len) { word |= bf16(x[begin + i + 1u]) << 16u; }
            cache[vector + (first + i) / 2u] = word;
        }
    } else {
        var largest = 0.0;
        for (var i = 0u; i < len; i++) {
            let magnitude = abs(x[begin + i]);
            if (magnitude > largest) { largest = magnitude; }
        }
        // Rounded up to a mantissa of 16 bits; nothing below the normal numbers.
        let bits = bitcast<u32>(largest / 127.0);
        var scale = bitcast<f32>((min(bits, 0x7effffffu) + 0xffu) & 0xffffff00u);
        scale = min(scale, bitcast<f32>(0x7c010200u));
        if (bits < 0x00800000u) { scale = 0.0; }
        let at = vector + (first / 64u) * 17u;
        cache[at] = bitcast<u32>(scale);
        for (var i = 0u; i < len; i += 4u) {
            var word = 0u;
            for (var k = 0u; k < 4u; k++) {
                if (i + k < len && scale > 0.0) {
                    let q = clamp(round(x[begin + i + k] / scale), -127.0, 127.0);
                    word |= (bitcast<u32>(i32(q)) & 255u) << (8u * k);
                }
            }
            cache[at + 1u + i / 4u] = word;
        }
    }
}
