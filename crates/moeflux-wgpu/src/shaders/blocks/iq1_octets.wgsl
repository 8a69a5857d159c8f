// All columns of four entries, of which those with a shift are two less.
fn octets(entries: vec4<u32>, are_shifted: vec4<bool>) -> array<vec4<u32>, 2> {
    let more = select(vec4<u32>(0x02020202u), vec4<u32>(), are_shifted);
    let first = entries * 2u;
    return array<vec4<u32>, 2>(
        vec4<u32>(
            codebook_at(first.x) + more.x, codebook_at(first.x + 1u) + more.x,
            codebook_at(first.y) + more.y, codebook_at(first.y + 1u) + more.y,
        ),
        vec4<u32>(
            codebook_at(first.z) + more.z, codebook_at(first.z + 1u) + more.z,
            codebook_at(first.w) + more.w, codebook_at(first.w + 1u) + more.w,
        ),
    );
}
