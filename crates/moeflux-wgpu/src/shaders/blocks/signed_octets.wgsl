// Four of the eight columns of a codebook's entry, and of their signs.
fn signed_four(entry: u32, signs: u32, four: u32) -> u32 {
    return signed(codebook[2u * entry + (four & 1u)], signs >> ((four & 1u) * 4u));
}

fn quarter_scale(d: f32, scale: u32) -> vec2<f32> {
    return vec2<f32>(d * (0.5 + f32(scale)) * 0.25, 0.0);
}
