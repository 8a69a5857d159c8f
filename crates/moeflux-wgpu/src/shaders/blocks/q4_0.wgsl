// d, 16 bytes: their lower halves, then the upper ones, eight more than what they stand for.

fn codes(at: u32, four: u32) -> u32 {
    let both = four_at(at + 2u + 4u * (four & 3u));
    return (both >> (four & 4u)) & 0x0f0f0f0fu;
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return centred(float_at(at));
}

fn unit_nibbles(at: u32, unit: u32) -> vec4<u32> {
    return sixteen_at(at + 2u);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    return nibbles(unit_nibbles(at, unit));
}
