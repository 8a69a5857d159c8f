// A unit has 16 bytes, and of them bits 0 to 3 or 4 to 7. First the byte.
fn unit_byte(unit: u32) -> u32 {
    return 32u * (unit >> 2u) + 16u * (unit & 1u);
}

fn two_bits_of(bytes: vec4<u32>, unit: u32) -> array<vec4<u32>, 2> {
    let both = bytes >> vec4<u32>((unit & 2u) * 2u);
    let mask = vec4<u32>(0x03030303u);
    return array<vec4<u32>, 2>(both & mask, (both >> vec4<u32>(2u)) & mask);
}

fn unit_half(unit: u32, nth: u32) -> u32 {
    return 8u * (unit >> 2u) + 2u * (unit & 2u) + 2u * nth + (unit & 1u);
}
