// The gated delta rule's sums: ROW_LANES lanes share a row of a head's state, whose columns they
// have in turns, a four at a time.

fn row_sum(sums: vec4<f32>) -> f32 {
    var sum = (sums.x + sums.y) + (sums.z + sums.w);
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    if (ROW_LANES >= 8u) { sum += subgroupShuffleXor(sum, 4u); }
    if (ROW_LANES >= 16u) { sum += subgroupShuffleXor(sum, 8u); }
    return sum;
}

// Of the state's row that begins at an element.
fn state_four(at: u32, i: u32) -> vec4<f32> {
    if (i >= K_DIM) { return vec4<f32>(); }
#if WIDTH/4
    return state[(at + i) >> 2u];
#else
    var it = vec4<f32>();
    it.x = state[at + i];
    if (i + 1u < K_DIM) { it.y = state[at + i + 1u]; }
    if (i + 2u < K_DIM) { it.z = state[at + i + 2u]; }
    if (i + 3u < K_DIM) { it.w = state[at + i + 3u]; }
    return it;
#end
}

fn put_state(at: u32, i: u32, it: vec4<f32>) {
    if (i >= K_DIM) { return; }
#if WIDTH/4
    state[(at + i) >> 2u] = it;
#else
    state[at + i] = it.x;
    if (i + 1u < K_DIM) { state[at + i + 1u] = it.y; }
    if (i + 2u < K_DIM) { state[at + i + 2u] = it.z; }
    if (i + 3u < K_DIM) { state[at + i + 3u] = it.w; }
#end
}
