// Eight sign bits from seven: the number of minuses is even.
fn even_signs(field: u32) -> u32 {
    let seven = field & 127u;
    return seven | ((countOneBits(seven) & 1u) << 7u);
}

// Of four fields of seven bits each.
fn four_even_signs(fields: u32) -> vec4<u32> {
    return vec4<u32>(
        even_signs(fields), even_signs(fields >> 7u),
        even_signs(fields >> 14u), even_signs(fields >> 21u),
    );
}

// Four values, none of them 0, with a minus where one of four bits is set.
fn signed(values: u32, minus: u32) -> u32 {
    let ones = spread(minus & 15u);
    return (values ^ (ones * 255u)) + ones;
}
