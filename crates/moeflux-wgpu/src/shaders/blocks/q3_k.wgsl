// 32 bytes of third bits, bit i of all of them being that of the i-th 32 columns, 64 bytes of two
// bits, 12 bytes with scales of sixteen columns, d. Codes are four more than what they stand for.

fn codes(at: u32, four: u32) -> u32 {
    let low = (four_at(at + 32u + two_bits_byte(four)) >> two_bits_shift(four)) & 0x03030303u;
    let third = (four_at(at + 4u * (four & 7u)) >> (four >> 3u)) & 0x01010101u;
    return low | (third << 2u);
}

// Four lower bits of sixteen scales in eight bytes, two upper ones in four.
fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let low = (byte_at(at + 96u + (half & 7u)) >> ((half >> 3u) * 4u)) & 15u;
    let high = (byte_at(at + 104u + (half & 3u)) >> ((half >> 2u) * 2u)) & 3u;
    return centred(float_at(at + 108u) * (f32(low | (high << 4u)) - 32.0));
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let low = two_bits_of(sixteen_at(at + 32u + unit_byte(unit)), unit);
    let thirds = sixteen_at(at + 16u * (unit & 1u)) >> vec4<u32>(unit & 6u);
    let bit = vec4<u32>(0x04040404u);
    return array<vec4<u32>, 2>(
        low[0] | ((thirds << vec4<u32>(2u)) & bit),
        low[1] | ((thirds << vec4<u32>(1u)) & bit),
    );
}
