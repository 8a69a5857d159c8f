// An exponent, then 16 bytes: their lower halves, then the upper ones, are floats of E2M1. Blocks
// begin anywhere.

fn codes(at: u32, four: u32) -> u32 {
    let first_byte = at + 1u + 4u * (four & 3u);
    let shift = (first_byte & 3u) * 8u;
    let both = (w[first_byte >> 2u] >> shift) | ((w[(first_byte >> 2u) + 1u] << 1u) << (31u - shift));
    return e2m1_codes((both >> (four & 4u)) & 0x0f0f0f0fu);
}

// Half of the power of two, as codes are doubled.
fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let exponent = byte_at(at);
    let bits = select((exponent - 1u) << 23u, 0x00200000u << (exponent & 1u), exponent < 2u);
    return vec2<f32>(bitcast<f32>(bits), 0.0);
}
