// d, 128 bits: -1 or 1.

fn codes(at: u32, four: u32) -> u32 {
    return spread((byte_at(at + 2u + (four >> 1u)) >> ((four & 1u) * 4u)) & 0xfu) << 1u;
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return centred(float_at(at), 1.0);
}
