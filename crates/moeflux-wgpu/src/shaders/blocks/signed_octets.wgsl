// Four of the eight columns of a codebook's entry, and of their signs.
fn signed_four(entry: u32, signs: u32, four: u32) -> u32 {
    return signed(codebook_at(2u * entry + (four & 1u)), signs >> ((four & 1u) * 4u));
}

// All of four entries.
fn signed_octets(entries: vec4<u32>, signs: vec4<u32>) -> array<vec4<u32>, 2> {
    return array<vec4<u32>, 2>(
        vec4<u32>(
            signed_four(entries.x, signs.x, 0u), signed_four(entries.x, signs.x, 1u),
            signed_four(entries.y, signs.y, 0u), signed_four(entries.y, signs.y, 1u),
        ),
        vec4<u32>(
            signed_four(entries.z, signs.z, 0u), signed_four(entries.z, signs.z, 1u),
            signed_four(entries.w, signs.w, 0u), signed_four(entries.w, signs.w, 1u),
        ),
    );
}

fn quarter_scale(d: f32, scale: u32) -> vec2<f32> {
    return vec2<f32>(d * (0.5 + f32(scale)) * 0.25, 0.0);
}
