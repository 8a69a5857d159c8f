fn unit_codes(at: u32, unit: u32) -> array<vec4<u32>, 2> {
    let first = 8u * unit;
    return array<vec4<u32>, 2>(
        vec4<u32>(
            codes(at, first), codes(at, first + 1u), codes(at, first + 2u), codes(at, first + 3u),
        ),
        vec4<u32>(
            codes(at, first + 4u), codes(at, first + 5u), codes(at, first + 6u), codes(at, first + 7u),
        ),
    );
}
