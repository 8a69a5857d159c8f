// Where two bits of a column are: twice 32 bytes, of which bits 0 and 1 are of the first 32
// columns, and so on. First the byte of four columns, then the bit.
fn two_bits_byte(four: u32) -> u32 {
    return 32u * (four >> 5u) + 4u * (four & 7u);
}

fn two_bits_shift(four: u32) -> u32 {
    return 2u * ((four >> 3u) & 3u);
}
