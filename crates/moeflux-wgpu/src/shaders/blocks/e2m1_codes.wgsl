// Twice the values of four floats of E2M1: 0 1 2 3 4 6 8 12, or less than nothing.
fn e2m1_codes(numbers: u32) -> u32 {
    let low = numbers & 0x03030303u;
    let is_large = (numbers >> 2u) & 0x01010101u;
    // What values are more than their numbers: 0 1 2 5 of those from 4 on.
    let both = low & (low >> 1u) & 0x01010101u;
    let values = (numbers & 0x07070707u) + ((low + 2u * both) & (is_large * 7u));
    // A byte's upper bit keeps the subtraction inside it.
    let negative = (0x80808080u - values) ^ 0x80808080u;
    return pick(((numbers >> 3u) & 0x01010101u) * 255u, values, negative);
}
