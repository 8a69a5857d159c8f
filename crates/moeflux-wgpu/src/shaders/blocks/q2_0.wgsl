// d, 64 times two bits, one more than what they stand for.

fn codes(at: u32, four: u32) -> u32 {
    let packed = byte_at(at + 2u + four);
    return (packed | (packed << 6u) | (packed << 12u) | (packed << 18u)) & 0x03030303u;
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return centred(float_at(at), 1.0);
}
