// d, 128 bits: -1 or 1. Codes are doubled bits.

fn codes(at: u32, four: u32) -> u32 {
    return spread((byte_at(at + 2u + (four >> 1u)) >> ((four & 1u) * 4u)) & 0xfu) << 1u;
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return centred(float_at(at));
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let bits = four_at(at + 2u + 4u * unit);
    return array<vec4<u32>, 2>(doubled_bits(bits), doubled_bits(bits >> 16u));
}

fn doubled_bits(bits: u32) -> vec4<u32> {
    let fours = (vec4<u32>(bits) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(0xfu);
    return (fours * vec4<u32>(0x00408102u)) & vec4<u32>(0x02020202u);
}
