// d; of each eight columns eight bits of an entry; then, of each 32, 16 bits: three upper bits of
// each entry, a scale, the shift. Codes are nine more than eight times what entries say, one more
// or, where shifted, one less.

fn codes(at: u32, four: u32) -> u32 {
    let octet = four >> 1u;
    let fields = half_at(at + 34u + 2u * (octet >> 2u));
    let upper = (fields >> (3u * (octet & 3u))) & 7u;
    let entry = byte_at(at + 2u + octet) | (upper << 8u);
    return codebook_at(2u * entry + (four & 1u)) + select(0x02020202u, 0u, fields >= 0x8000u);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let scale = (half_at(at + 34u + (half & ~1u)) >> 12u) & 7u;
    return centred(float_at(at) * f32(2u * scale + 1u) * 0.125);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let fields = half_at(at + 34u + 2u * unit);
    let upper = vec4<u32>(fields) << vec4<u32>(8u, 5u, 2u, 0u);
    let last = vec4<u32>(upper.xyz, fields >> 1u);
    let entries = bytes_of(four_at(at + 2u + 4u * unit)) | (last & vec4<u32>(0x700u));
    return octets(entries, vec4<bool>(fields >= 0x8000u));
}
