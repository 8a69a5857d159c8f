// d, m, 32 fifth bits, 16 bytes: their lower halves, then the upper ones. Blocks begin at words.

fn codes(at: u32, four: u32) -> u32 {
    let first = at >> 2u;
    let fifth = (w[first + 1u] >> (4u * four)) & 0xfu;
    let both = w[first + 2u + (four & 3u)];
    return ((both >> (four & 4u)) & 0x0f0f0f0fu) | (spread(fifth) << 4u);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let both = w[at >> 2u];
    return vec2<f32>(float_of(both & 0xffffu), float_of(both >> 16u));
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let first = at >> 2u;
    return with_fifth_bits(nibbles(words_at(first + 2u)), w[first + 1u]);
}
