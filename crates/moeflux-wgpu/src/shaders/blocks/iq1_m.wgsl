// Of each eight columns eight bits of an entry; then four: three upper bits and the shift; then four
// words of four scales each, for sixteen columns, whose upper four bits are those of d. Codes are as
// those of IQ1_S. Blocks begin at words.

fn codes(at: u32, four: u32) -> u32 {
    let octet = four >> 1u;
    let field = byte_at(at + 32u + (octet >> 1u)) >> ((octet & 1u) * 4u);
    let entry = byte_at(at + octet) | ((field & 7u) << 8u);
    return codebook_at(2u * entry + (four & 1u)) + select(0x02020202u, 0u, (field & 8u) != 0u);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let first = (at >> 2u) + 12u;
    let words = vec2<u32>(w[first], w[first + 1u]);
    let nibbles = ((words >> vec2<u32>(12u)) & vec2<u32>(0xfu)) | ((words >> vec2<u32>(24u)) & vec2<u32>(0xf0u));
    let d = float_of(nibbles.x | (nibbles.y << 8u));
    let fields = half_at(at + 48u + 2u * (half >> 2u));
    let scale = (fields >> (3u * (half & 3u))) & 7u;
    return centred(d * f32(2u * scale + 1u) * 0.125);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let fields = (vec4<u32>(half_at(at + 32u + 2u * unit)) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    let entries = bytes_of(w[(at >> 2u) + unit]) | ((fields & vec4<u32>(7u)) << vec4<u32>(8u));
    return octets(entries, fields >= vec4<u32>(8u));
}
