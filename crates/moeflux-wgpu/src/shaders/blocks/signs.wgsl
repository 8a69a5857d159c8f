// Eight sign bits from seven: the number of minuses is even.
fn even_signs(field: u32) -> u32 {
    let seven = field & 127u;
    return seven | ((countOneBits(seven) & 1u) << 7u);
}

// Four values, none of them 0, with a minus where one of four bits is set.
fn signed(values: u32, minus: u32) -> u32 {
    let ones = spread(minus & 15u);
    return (values ^ (ones * 255u)) + ones;
}
