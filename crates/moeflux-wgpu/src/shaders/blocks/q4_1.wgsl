// d, m, 16 bytes: their lower halves, then the upper ones. Blocks begin at words.

fn codes(at: u32, four: u32) -> u32 {
    return (w[(at >> 2u) + 1u + (four & 3u)] >> (four & 4u)) & 0x0f0f0f0fu;
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let both = w[at >> 2u];
    return vec2<f32>(float_of(both & 0xffffu), float_of(both >> 16u));
}

fn unit_nibbles(at: u32, unit: u32) -> vec4<u32> {
    return words_at((at >> 2u) + 1u);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    return nibbles(unit_nibbles(at, unit));
}
