// d; of each eight columns eight bits of an entry; then their signs; then two upper bits of entries;
// four bits of a scale for each sixteen columns.

fn codes(at: u32, four: u32) -> u32 {
    let octet = four >> 1u;
    let upper = (byte_at(at + 66u + (octet >> 2u)) >> ((octet & 3u) * 2u)) & 3u;
    let entry = byte_at(at + 2u + octet) | (upper << 8u);
    return signed_four(entry, byte_at(at + 34u + octet), four);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let scale = (byte_at(at + 74u + (half >> 1u)) >> ((half & 1u) * 4u)) & 15u;
    return quarter_scale(float_at(at), scale);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let upper = vec4<u32>(byte_at(at + 66u + unit)) << vec4<u32>(8u, 6u, 4u, 2u);
    let entries = bytes_of(four_at(at + 2u + 4u * unit)) | (upper & vec4<u32>(0x300u));
    return signed_octets(entries, bytes_of(four_at(at + 34u + 4u * unit)));
}
