// Scores of pools of positions by their index keys, which are at the last position of each, for few
// rows. A position that is chosen alone is a pool of one. SLICES threads share a pool of a row, each
// with some of the heads.

const POOLS: u32 = 16u;
const SLICES: u32 = 16u;

var<workgroup> sums: array<f32, POOLS * SLICES>;

@compute @workgroup_size(POOLS * SLICES)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let slice = thread % SLICES;
    let first = (id.z * n.y + id.y) * POOLS;
    if (first >= p.len) { return; }
    let pool = first + thread / SLICES;
    let row = id.x;
    let key = key_of(min(pool, p.len - 1u));
    var sum = 0.0;
    for (var head = slice; head < p.n_heads; head += SLICES) {
        let query = query_of(row, head);
        var product = 0.0;
        for (var i = 0u; i < p.dim; i++) { product = fma(q[query + i], element(key, i), product); }
        sum += share_of(row, head, product);
    }
    sums[thread] = sum;
    for (var step = SLICES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (slice < step) { sums[thread] += sums[thread + step]; }
    }
    if (slice == 0u && pool < p.len) {
        scores[row * p.stride + p.first_pool + pool] = sums[thread];
    }
}
