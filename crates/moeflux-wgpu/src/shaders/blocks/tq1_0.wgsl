// 48 bytes of five digits to the base of three each, 4 bytes of four, d. A byte is a fraction of
// 256: its digits are what is before the point after multiplying by three again and again. Digits
// are one more than what they stand for.

// The digit of four bytes after these were multiplied by a power of three.
fn digits(bytes: u32, power: u32) -> u32 {
    let mask = 0x00ff00ffu;
    let even = (((bytes & mask) * power) & mask) * 3u;
    let odd = ((((bytes >> 8u) & mask) * power) & mask) * 3u;
    return ((even >> 8u) & 0x00030003u) | (odd & 0x03000300u);
}

// Digits of 32 bytes, of 16, and of the last four, those of a place side by side.
fn codes(at: u32, four: u32) -> u32 {
    var first_byte = 4u * (four & 7u);
    var digit = four >> 3u;
    if (four >= 40u) {
        first_byte = 32u + 4u * (four & 3u);
        digit = (four - 40u) >> 2u;
    }
    if (four >= 60u) {
        first_byte = 48u;
        digit = four - 60u;
    }
    // 1 3 9 27 81
    let power = select((0x1b090301u >> (8u * digit)) & 0xffu, 81u, digit == 4u);
    return digits(four_at(at + first_byte), power);
}

fn scale_and_bias(at: u32, half: u32) -> vec2<f32> {
    return centred(float_at(at + 52u));
}
