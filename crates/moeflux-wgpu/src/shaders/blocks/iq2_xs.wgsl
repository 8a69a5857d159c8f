// d; of each eight columns nine bits of an entry and seven sign bits; four bits of a scale for each
// sixteen.

fn codes(at: u32, four: u32) -> u32 {
    let both = half_at(at + 2u + (four & ~1u));
    return signed_four(both & 511u, even_signs(both >> 9u), four);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let scale = (byte_at(at + 66u + (half >> 1u)) >> ((half & 1u) * 4u)) & 15u;
    return quarter_scale(float_at(at), scale);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let low = four_at(at + 2u + 8u * unit);
    let high = four_at(at + 6u + 8u * unit);
    let all = vec4<u32>(low & 0xffffu, low >> 16u, high & 0xffffu, high >> 16u);
    let fields = all >> vec4<u32>(9u);
    let signs = vec4<u32>(
        even_signs(fields.x), even_signs(fields.y), even_signs(fields.z), even_signs(fields.w),
    );
    return signed_octets(all & vec4<u32>(511u), signs);
}
