// 64 bytes of two bits, one more than what they stand for, d.

fn codes(at: u32, four: u32) -> u32 {
    return (four_at(at + two_bits_byte(four)) >> two_bits_shift(four)) & 0x03030303u;
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return centred(float_at(at + 64u));
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    return two_bits_of(sixteen_at(at + unit_byte(unit)), unit);
}
