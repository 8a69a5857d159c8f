// An exponent, then 16 bytes: their lower halves, then the upper ones, are floats of E2M1. Blocks
// begin anywhere.

fn codes(at: u32, four: u32) -> u32 {
    let first_byte = at + 1u + 4u * (four & 3u);
    let shift = (first_byte & 3u) * 8u;
    let first = first_byte >> 2u;
    return e2m1_codes((joined(w[first], w[first + 1u], shift) >> (four & 4u)) & 0x0f0f0f0fu);
}

// What begins this many bits after the beginning of one of two words.
fn joined(low: u32, high: u32, shift: u32) -> u32 {
    return (low >> shift) | ((high << 1u) << (31u - shift));
}

// Half of the power of two, as codes are doubled.
fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    let exponent = byte_at(at);
    let bits = select((exponent - 1u) << 23u, 0x00200000u << (exponent & 1u), exponent < 2u);
    return vec2<f32>(bitcast<f32>(bits), 0.0);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let first = (at + 1u) >> 2u;
    let shift = ((at + 1u) & 3u) * 8u;
    let low = words_at(first);
    let high = vec4<u32>(low.yzw, w[first + 4u]);
    let numbers = nibbles(vec4<u32>(
        joined(low.x, high.x, shift), joined(low.y, high.y, shift),
        joined(low.z, high.z, shift), joined(low.w, high.w, shift),
    ));
    let a = numbers[0];
    let b = numbers[1];
    return array<vec4<u32>, 2>(
        vec4<u32>(e2m1_codes(a.x), e2m1_codes(a.y), e2m1_codes(a.z), e2m1_codes(a.w)),
        vec4<u32>(e2m1_codes(b.x), e2m1_codes(b.y), e2m1_codes(b.z), e2m1_codes(b.w)),
    );
}
