// d; of each four columns an entry; then, of each 32, four times seven sign bits and a scale in 32
// bits.

fn codes(at: u32, four: u32) -> u32 {
    let fields = four_at(at + 66u + 4u * (four >> 3u));
    let signs = even_signs(fields >> (7u * ((four >> 1u) & 3u)));
    return signed(codebook_at(byte_at(at + 2u + four)), signs >> ((four & 1u) * 4u));
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let scale = four_at(at + 66u + 4u * (half >> 1u)) >> 28u;
    return vec2<f32>(float_at(at) * (0.5 + f32(scale)) * 0.5, 0.0);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let first_byte = at + 2u + 8u * unit;
    let signs = four_even_signs(four_at(at + 66u + 4u * unit));
    return signed_quartets(bytes_of(four_at(first_byte)), bytes_of(four_at(first_byte + 4u)), signs);
}
