// d; of each four columns eight bits of an entry; then their ninth bits; signs; four bits of a scale
// for each 32 columns.

fn codes(at: u32, four: u32) -> u32 {
    let ninth = (byte_at(at + 66u + (four >> 3u)) >> (four & 7u)) & 1u;
    let entry = byte_at(at + 2u + four) | (ninth << 8u);
    let signs = byte_at(at + 74u + (four >> 1u)) >> ((four & 1u) * 4u);
    return signed(codebook_at(entry), signs);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let group = half >> 1u;
    let scale = (byte_at(at + 106u + (group >> 1u)) >> ((group & 1u) * 4u)) & 15u;
    return vec2<f32>(float_at(at) * (1.0 + 2.0 * f32(scale)), 0.0);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let first_byte = at + 2u + 8u * unit;
    let ninths = vec4<u32>(byte_at(at + 66u + unit));
    let bit = vec4<u32>(0x100u);
    let first = bytes_of(four_at(first_byte)) | ((ninths << vec4<u32>(8u, 7u, 6u, 5u)) & bit);
    let last = bytes_of(four_at(first_byte + 4u)) | ((ninths << vec4<u32>(4u, 3u, 2u, 1u)) & bit);
    return signed_quartets(first, last, bytes_of(four_at(at + 74u + 4u * unit)));
}
