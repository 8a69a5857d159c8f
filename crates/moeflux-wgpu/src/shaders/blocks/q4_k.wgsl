// d, dmin, scales and minima, then 32 bytes for each 64 columns: their lower halves, then the upper
// ones. Blocks begin at multiples of 16 bytes. A unit has 16 bytes.

fn codes(at: u32, four: u32) -> u32 {
    let both = w[(at >> 2u) + 4u + 8u * (four >> 4u) + (four & 7u)];
    return (both >> ((four & 8u) >> 1u)) & 0x0f0f0f0fu;
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return k_scale_and_bias(w4[at >> 4u], half >> 1u);
}

fn unit_nibbles(at: u32, unit: u32) -> vec4<u32> {
    return w4[(at >> 4u) + 1u + unit];
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    return nibbles(unit_nibbles(at, unit));
}
