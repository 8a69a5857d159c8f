// Eight scales and minima of six bits each in twelve bytes: of the first four groups scales, then
// minima; of the others their lower bits, whose two upper ones are those of the bytes before. Four
// scales or minima, the first group lowest.
fn k_scales(head: vec4<u32>, are_last: bool) -> u32 {
    let last = (head.w & 0x0f0f0f0fu) | ((head.y >> 2u) & 0x30303030u);
    return select(head.y & 0x3f3f3f3fu, last, are_last);
}

fn k_minima(head: vec4<u32>, are_last: bool) -> u32 {
    let last = ((head.w >> 4u) & 0x0f0f0f0fu) | ((head.z >> 2u) & 0x30303030u);
    return select(head.z & 0x3f3f3f3fu, last, are_last);
}

fn k_scale_and_bias(head: vec4<u32>, group: u32) -> vec2<f32> {
    let shift = 8u * (group & 3u);
    let scale = f32((k_scales(head, group >= 4u) >> shift) & 63u);
    let minimum = f32((k_minima(head, group >= 4u) >> shift) & 63u);
    return vec2<f32>(float_of(head.x & 0xffffu) * scale, -(float_of(head.x >> 16u) * minimum));
}

// Of the groups 2 i and 2 i + 1, which a unit has columns of.
fn unit_pairs(at: u32, unit: u32) -> array<vec2<f32>, 2> {
    let head = w4[at >> 4u];
    let shift = 16u * ((unit >> 1u) & 1u);
    let scales = k_scales(head, unit >= 4u) >> shift;
    let minima = k_minima(head, unit >= 4u) >> shift;
    let d = float_of(head.x & 0xffffu);
    let dmin = float_of(head.x >> 16u);
    return array<vec2<f32>, 2>(
        vec2<f32>(d * f32(scales & 63u), -(dmin * f32(minima & 63u))),
        vec2<f32>(d * f32((scales >> 8u) & 63u), -(dmin * f32((minima >> 8u) & 63u))),
    );
}

// The lower, or upper, halves of 32 bytes are 32 columns.
fn unit_half(unit: u32, nth: u32) -> u32 {
    return 4u * (unit >> 1u) + 2u * nth + (unit & 1u);
}
