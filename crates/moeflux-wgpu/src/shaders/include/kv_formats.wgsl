// Keys and values as caches store them. KV: 0 singles; 1 bfloat16, two to a word; 2 integers of 8
// bits, each 64 after their scale.

// Element `i` of the vector that begins at word `first` of what `WORD` reads.
fn stored(word: u32, low: u32) -> f32 {
    if (KV == KV_F32) { return bitcast<f32>(word); }
    if (KV == KV_BF16) { return bitcast<f32>(select(word << 16u, word & 0xffff0000u, low != 0u)); }
    return f32(i32(word << (24u - 8u * low)) >> 24u);
}

// Where element `i` is after its vector's first word.
fn stored_word(i: u32) -> u32 {
    if (KV == KV_F32) { return i; }
    if (KV == KV_BF16) { return i >> 1u; }
    return (i >> 6u) * 17u + 1u + ((i & 63u) >> 2u);
}

// Which part of that word it is.
fn stored_part(i: u32) -> u32 {
    if (KV == KV_F32) { return 0u; }
    if (KV == KV_BF16) { return i & 1u; }
    return i & 3u;
}
