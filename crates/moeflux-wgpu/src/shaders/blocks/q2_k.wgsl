// 16 bytes, of each sixteen columns four bits of a scale and four of a minimum, then 64 bytes of
// two bits, d, dmin.

fn codes(at: u32, four: u32) -> u32 {
    let bytes = w[(at + 16u + two_bits_byte(four)) >> 2u];
    return (bytes >> two_bits_shift(four)) & 0x03030303u;
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let both = byte_at(at + half);
    let factors = w[(at >> 2u) + 20u];
    let scale = float_of(factors & 0xffffu) * f32(both & 15u);
    return vec2<f32>(scale, -(float_of(factors >> 16u) * f32(both >> 4u)));
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    return two_bits_of(words_at((at + 16u + unit_byte(unit)) >> 2u), unit);
}
