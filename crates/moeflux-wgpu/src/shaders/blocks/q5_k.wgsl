// d, dmin, scales and minima, 32 bytes of fifth bits, bit i of all of them being that of the i-th 32
// columns, then 32 bytes for each 64 columns: their lower halves, then the upper ones. Blocks begin
// at multiples of 16 bytes. A unit has 16 bytes.

fn codes(at: u32, four: u32) -> u32 {
    let first = at >> 2u;
    let both = w[first + 12u + 8u * (four >> 4u) + (four & 7u)];
    let fifth = (w[first + 4u + (four & 7u)] >> (four >> 3u)) & 0x01010101u;
    return ((both >> ((four & 8u) >> 1u)) & 0x0f0f0f0fu) | (fifth << 4u);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return k_scale_and_bias(w4[at >> 4u], half >> 1u);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let first = at >> 4u;
    let low = nibbles(w4[first + 3u + unit]);
    let fifths = w4[first + 1u + (unit & 1u)] >> vec4<u32>(unit & 6u);
    let bit = vec4<u32>(0x10101010u);
    return array<vec4<u32>, 2>(
        low[0] | ((fifths << vec4<u32>(4u)) & bit),
        low[1] | ((fifths << vec4<u32>(3u)) & bit),
    );
}
