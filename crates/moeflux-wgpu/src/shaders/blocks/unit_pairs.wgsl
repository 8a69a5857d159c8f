fn unit_pairs(at: u32, unit: u32) -> array<vec2<f32>, HALVES> {
    var pairs: array<vec2<f32>, HALVES>;
#each h HALVES
    pairs[$h] = scale_and_bias(at, unit_half(unit, $hu));
#end
    return pairs;
}
