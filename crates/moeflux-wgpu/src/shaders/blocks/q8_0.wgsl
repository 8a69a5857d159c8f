// d, 32 signed bytes. A unit is half of them: what lanes read is closer together.

fn codes(at: u32, four: u32) -> u32 {
    return four_at(at + 2u + 4u * four);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at), 0.0);
}

fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 1> {
    return array<vec4<u32>, 1>(sixteen_at(at + 2u + 16u * unit));
}

fn unit_half(unit: u32, nth: u32) -> u32 {
    return unit;
}
