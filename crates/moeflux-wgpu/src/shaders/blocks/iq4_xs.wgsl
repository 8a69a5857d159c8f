// d, two upper bits and, in 4 bytes, four lower bits of eight scales, then 16 bytes for each 32
// columns: their lower halves, then the upper ones, number levels. Blocks begin at words.

fn codes(at: u32, four: u32) -> u32 {
    let both = w[(at >> 2u) + 2u + 4u * (four >> 3u) + (four & 3u)];
    return iq4_levels((both >> (four & 4u)) & 0x0f0f0f0fu);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let group = half >> 1u;
    let first = w[at >> 2u];
    let low = (w[(at >> 2u) + 1u] >> (4u * group)) & 0xfu;
    let high = (first >> (16u + 2u * group)) & 3u;
    return vec2<f32>(float_of(first & 0xffffu) * (f32(low | (high << 4u)) - 32.0), 0.0);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    return levels_of(words_at((at >> 2u) + 2u + 4u * unit));
}
