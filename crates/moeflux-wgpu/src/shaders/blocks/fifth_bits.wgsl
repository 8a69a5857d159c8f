fn with_fifth_bits(low: array<vec4<u32>, 2>, bits: u32) -> array<vec4<u32>, 2> {
    return array<vec4<u32>, 2>(low[0] | four_fifths(bits), low[1] | four_fifths(bits >> 16u));
}

// Sixteen bits as the fifth ones of bytes.
fn four_fifths(bits: u32) -> vec4<u32> {
    let fours = (vec4<u32>(bits) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(0xfu);
    return (fours * vec4<u32>(0x02040810u)) & vec4<u32>(0x10101010u);
}
