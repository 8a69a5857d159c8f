// Eight entries of four columns, and the signs of each two.
fn signed_quartets(first: vec4<u32>, last: vec4<u32>, signs: vec4<u32>) -> array<vec4<u32>, 2> {
    let upper = signs >> vec4<u32>(4u);
    return array<vec4<u32>, 2>(
        vec4<u32>(
            signed(codebook_at(first.x), signs.x), signed(codebook_at(first.y), upper.x),
            signed(codebook_at(first.z), signs.y), signed(codebook_at(first.w), upper.y),
        ),
        vec4<u32>(
            signed(codebook_at(last.x), signs.z), signed(codebook_at(last.y), upper.z),
            signed(codebook_at(last.z), signs.w), signed(codebook_at(last.w), upper.w),
        ),
    );
}
