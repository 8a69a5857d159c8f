// What `attention/score_index.wgsl` computes, for many rows: a workgroup has SIDE rows and SIDE pools,
// a thread four of each, and DEPTH elements of all keys and of a head of all queries are in workgroup
// memory at once.

const SIDE: u32 = 64u;
const DEPTH: u32 = 16u;
const FOURS: u32 = SIDE / 4u;

// By element, then by row or pool.
var<workgroup> query_tile: array<vec4<f32>, DEPTH * FOURS>;
var<workgroup> key_tile: array<vec4<f32>, DEPTH * FOURS>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first_pool = (id.z * n.y + id.y) * SIDE;
    let first_row = id.x * SIDE;
    if (first_pool >= p.len) { return; }
    // What this thread brings: an element of four rows and of four pools. Threads after each other
    // bring elements after each other.
    let its_element = thread % DEPTH;
    let its_four = thread / DEPTH;
    var its_rows: array<u32, 4>;
    var its_keys: array<u32, 4>;
    for (var e = 0u; e < 4u; e++) {
        its_rows[e] = min(first_row + 4u * its_four + e, p.n_rows - 1u);
        its_keys[e] = key_of(min(first_pool + 4u * its_four + e, p.len - 1u));
    }
    // Four pools and four rows of its own.
    let pools = thread % FOURS;
    let rows = thread / FOURS;
#each r 4
    var sum$r = vec4<f32>();
#end
    for (var head = 0u; head < p.n_heads; head++) {
#each r 4
        var product$r = vec4<f32>();
#end
        for (var start = 0u; start < p.dim; start += DEPTH) {
            let i = start + its_element;
            var query = vec4<f32>();
            var key = vec4<f32>();
            if (i < p.dim) {
#each e 4
                query[$e] = q[query_of(its_rows[$e], head) + i];
                key[$e] = element(its_keys[$e], i);
#end
            }
            workgroupBarrier();
            query_tile[its_element * FOURS + its_four] = query;
            key_tile[its_element * FOURS + its_four] = key;
            workgroupBarrier();
#each d 16
            {
                let its_q = query_tile[$du * FOURS + rows];
                let its_k = key_tile[$du * FOURS + pools];
#each r 4
                product$r = fma(vec4<f32>(its_q[$r]), its_k, product$r);
#end
            }
#end
        }
#each r 4
        {
            let row = min(first_row + 4u * rows + $ru, p.n_rows - 1u);
#each e 4
            sum$r[$e] += share_of(row, head, product$r[$e]);
#end
        }
#end
    }
#each r 4
    {
        let row = first_row + 4u * rows + $ru;
        for (var e = 0u; e < 4u; e++) {
            let pool = first_pool + 4u * pools + e;
            if (row < p.n_rows && pool < p.len) {
                scores[row * p.stride + p.first_pool + pool] = sum$r[e];
            }
        }
    }
#end
}
