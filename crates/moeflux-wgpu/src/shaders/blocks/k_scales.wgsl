// Scale and bias of 32 columns out of d, dmin, and eight scales and minima of six bits each in
// twelve bytes: of the first four groups scales, then minima; of the others their lower bits,
// whose two upper ones are those of the bytes before.
fn k_scale_and_bias(head: vec4<u32>, group: u32) -> vec2<f32> {
    let mask = 0x0f0f0f0fu;
    var scales = head.y & 0x3f3f3f3fu;
    var minima = head.z & 0x3f3f3f3fu;
    if (group >= 4u) {
        scales = (head.w & mask) | ((head.y >> 2u) & 0x30303030u);
        minima = ((head.w >> 4u) & mask) | ((head.z >> 2u) & 0x30303030u);
    }
    let shift = 8u * (group & 3u);
    let scale = float_of(head.x & 0xffffu) * f32((scales >> shift) & 63u);
    return vec2<f32>(scale, -(float_of(head.x >> 16u) * f32((minima >> shift) & 63u)));
}
