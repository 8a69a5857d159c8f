// The levels of IQ4_NL and IQ4_XS that four integers of four bits stand for, chosen bit by bit.
fn iq4_levels(numbers: u32) -> u32 {
    let bit0 = (numbers & 0x01010101u) * 255u;
    let bit1 = ((numbers >> 1u) & 0x01010101u) * 255u;
    let bit2 = ((numbers >> 2u) & 0x01010101u) * 255u;
    let bit3 = ((numbers >> 3u) & 0x01010101u) * 255u;
    // -127 -104 -83 -65 -49 -35 -22 -10
    let low = pick(
        bit2,
        pick(bit1, pick(bit0, 0x81818181u, 0x98989898u), pick(bit0, 0xadadadadu, 0xbfbfbfbfu)),
        pick(bit1, pick(bit0, 0xcfcfcfcfu, 0xddddddddu), pick(bit0, 0xeaeaeaeau, 0xf6f6f6f6u)),
    );
    // 1 13 25 38 53 69 89 113
    let high = pick(
        bit2,
        pick(bit1, pick(bit0, 0x01010101u, 0x0d0d0d0du), pick(bit0, 0x19191919u, 0x26262626u)),
        pick(bit1, pick(bit0, 0x35353535u, 0x45454545u), pick(bit0, 0x59595959u, 0x71717171u)),
    );
    return pick(bit3, low, high);
}
