// d; of each four columns an entry; then, of each 32, four times seven sign bits and a scale in 32
// bits.

fn codes(at: u32, four: u32) -> u32 {
    let fields = four_at(at + 66u + 4u * (four >> 3u));
    let signs = even_signs(fields >> (7u * ((four >> 1u) & 3u)));
    return signed(codebook[byte_at(at + 2u + four)], signs >> ((four & 1u) * 4u));
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let scale = four_at(at + 66u + 4u * (half >> 1u)) >> 28u;
    return vec2<f32>(float_at(at) * (0.5 + f32(scale)) * 0.5, 0.0);
}
