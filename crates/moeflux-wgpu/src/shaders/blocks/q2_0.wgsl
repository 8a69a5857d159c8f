// d, 64 times two bits, one more than what they stand for.

fn codes(at: u32, four: u32) -> u32 {
    return of_byte(byte_at(at + 2u + four));
}

fn of_byte(packed: u32) -> u32 {
    return (packed | (packed << 6u) | (packed << 12u) | (packed << 18u)) & 0x03030303u;
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return centred(float_at(at));
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let first_byte = at + 2u + 8u * unit;
    return array<vec4<u32>, 2>(of_bytes(four_at(first_byte)), of_bytes(four_at(first_byte + 4u)));
}

fn of_bytes(word: u32) -> vec4<u32> {
    let bytes = bytes_of(word);
    return vec4<u32>(of_byte(bytes.x), of_byte(bytes.y), of_byte(bytes.z), of_byte(bytes.w));
}
