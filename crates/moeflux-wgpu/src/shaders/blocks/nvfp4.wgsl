// Four scales of E4M3, then 8 bytes for each 16 columns: their lower halves, then the upper ones,
// are floats of E2M1.

fn codes(at: u32, four: u32) -> u32 {
    let both = w[(at >> 2u) + 1u + 2u * (four >> 2u) + (four & 1u)];
    return e2m1_codes((both >> ((four & 2u) * 2u)) & 0x0f0f0f0fu);
}

// Half of the scale, as codes are doubled; the largest code reads as 0.
fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let code = (w[at >> 2u] >> (8u * half)) & 0xffu;
    let exponent = (code >> 3u) & 15u;
    let normal = bitcast<f32>(((exponent + 119u) << 23u) | ((code & 7u) << 20u));
    let scale = select(normal, f32(code & 7u) * 0.0009765625, exponent == 0u);
    return vec2<f32>(select(scale, 0.0, code == 0x7fu), 0.0);
}
