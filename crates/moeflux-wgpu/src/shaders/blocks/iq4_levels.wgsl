// The levels of IQ4_NL and IQ4_XS that four integers of four bits stand for, chosen bit by bit.
fn chosen_levels(numbers: u32) -> u32 {
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

#if STAGED
// In each of the four bytes the levels: each sixteen lie in banks of their own, so that lanes never
// wait for each other.
var<workgroup> levels: array<u32, STAGED>;

fn stage(thread: u32) {
    if (thread < STAGED) {
        levels[thread] = (chosen_levels(thread & 15u) & 0xffu) << (8u * (thread >> 4u));
    }
    workgroupBarrier();
}

fn iq4_levels(numbers: u32) -> u32 {
    return levels[numbers & 15u]
        | levels[16u + ((numbers >> 8u) & 15u)]
        | levels[32u + ((numbers >> 16u) & 15u)]
        | levels[48u + ((numbers >> 24u) & 15u)];
}
#else
fn iq4_levels(numbers: u32) -> u32 {
    return chosen_levels(numbers);
}
#end

fn levels_of(both: vec4<u32>) -> array<vec4<u32>, 2> {
    let numbers = nibbles(both);
    let a = numbers[0];
    let b = numbers[1];
    return array<vec4<u32>, 2>(
        vec4<u32>(iq4_levels(a.x), iq4_levels(a.y), iq4_levels(a.z), iq4_levels(a.w)),
        vec4<u32>(iq4_levels(b.x), iq4_levels(b.y), iq4_levels(b.z), iq4_levels(b.w)),
    );
}
