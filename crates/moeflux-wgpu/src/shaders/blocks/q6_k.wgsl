// 64 bytes for each 128 columns: their lower halves, then the upper ones; 64 bytes of two upper
// bits, 16 signed scales, d. Codes are 32 more than what they stand for. A unit has 16 bytes.

fn codes(at: u32, four: u32) -> u32 {
    let low = four_at(at + 64u * (four >> 5u) + 4u * (four & 15u)) >> ((four & 16u) >> 2u);
    let high = four_at(at + 128u + two_bits_byte(four)) >> two_bits_shift(four);
    return (low & 0x0f0f0f0fu) | ((high & 0x03030303u) << 4u);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let scale = bitcast<i32>(byte_at(at + 192u + half) << 24u) >> 24u;
    return centred(float_at(at + 208u) * f32(scale));
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let low = nibbles(sixteen_at(at + 16u * unit));
    let upper = sixteen_at(at + 128u + 32u * (unit >> 2u) + 16u * (unit & 1u)) >> vec4<u32>(unit & 2u);
    let bits = vec4<u32>(0x30303030u);
    return array<vec4<u32>, 2>(
        low[0] | ((upper << vec4<u32>(4u)) & bits),
        low[1] | (upper & bits),
    );
}

fn unit_half(unit: u32, nth: u32) -> u32 {
    return 8u * (unit >> 2u) + 4u * nth + (unit & 3u);
}
