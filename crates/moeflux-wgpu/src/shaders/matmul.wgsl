// Products of matrices with many rows of activations, in tiles of 64 rows of
// the matrix and 16 * TILE rows of activations.

struct Params {
    m: Matrix,
    jobs: u32,
    // Pairs: a job, and its first row of activations.
    tiles: u32,
    n_tiles: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(2) var<storage, read> lists: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Columns of a block, then rows: 16 KiB together.
var<workgroup> w_tile: array<f32, 2048>;
var<workgroup> x_tile: array<f32, 512u * TILE>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = id.z * n.y + id.y;
    if (tile >= p.n_tiles) { return; }
    let job = job_at(p.jobs, lists[p.tiles + 2u * tile]);
    let x_first = lists[p.tiles + 2u * tile + 1u];
    let w_first = id.x * 64u;
    if (w_first >= job.n_rows) { return; }
    let load_row = thread >> 2u;
    let load_part = thread & 3u;
    let w_row = job.first_row + min(w_first + load_row, job.n_rows - 1u);
    let loads_x = load_row < 16u * TILE;
    let x_row = lists[job.list + 2u * min(x_first + load_row, job.n_list - 1u)] + job.x;
    let tn = thread & 15u;
    let tm = thread >> 4u;
    var acc: array<vec4<f32>, TILE>;
    for (var blk = 0u; blk < p.m.n_blocks; blk++) {
        let b = block_of(p.m, job.elements, job.scales, job.phase, w_row, blk);
        for (var half = 0u; half < 2u; half++) {
            let c = 2u * load_part + half;
            let v = four(p.m, b, c);
            for (var e = 0u; e < 4u; e++) {
                let k = 4u * c + e;
                w_tile[k * 64u + load_row] = v[e];
                let col = blk * 32u + k;
                if (loads_x) {
                    var value = 0.0;
                    if (col < p.m.cols) { value = x[x_row + col]; }
                    x_tile[k * 16u * TILE + load_row] = value;
                }
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < 32u; k++) {
            let w_at = k * 64u + 4u * tn;
            let v = vec4<f32>(
                w_tile[w_at], w_tile[w_at + 1u], w_tile[w_at + 2u], w_tile[w_at + 3u],
            );
            for (var i = 0u; i < TILE; i++) {
                let value = x_tile[k * 16u * TILE + tm * TILE + i];
                acc[i] = fma(v, vec4<f32>(value), acc[i]);
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < TILE; i++) {
        let x_idx = x_first + tm * TILE + i;
        if (x_idx < job.n_list) {
            let first = lists[job.list + 2u * x_idx + 1u] + job.out;
            for (var e = 0u; e < 4u; e++) {
                let row = w_first + 4u * tn + e;
                if (row < job.n_rows) { y[first + row] = acc[i][e]; }
            }
        }
    }
}
