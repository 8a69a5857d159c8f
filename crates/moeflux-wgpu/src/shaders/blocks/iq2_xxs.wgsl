// d; of each 32 columns four entries, one for eight columns, then four times seven sign bits and a
// scale in 32 bits.

fn codes(at: u32, four: u32) -> u32 {
    let first_byte = at + 2u + 8u * (four >> 3u);
    let octet = (four >> 1u) & 3u;
    let entry = byte_at(first_byte + octet);
    return signed_four(entry, even_signs(four_at(first_byte + 4u) >> (7u * octet)), four);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return quarter_scale(float_at(at), four_at(at + 6u + 8u * (half >> 1u)) >> 28u);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let first_byte = at + 2u + 8u * unit;
    let fields = four_at(first_byte + 4u);
    return signed_octets(bytes_of(four_at(first_byte)), four_even_signs(fields));
}
