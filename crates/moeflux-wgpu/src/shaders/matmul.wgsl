// Products of matrices with many rows of activations, in tiles of 64 rows of
// the matrix and 64 rows of activations; a thread has four by four outputs.

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
var<workgroup> w_tile: array<vec4<f32>, 512>;
var<workgroup> x_tile: array<vec4<f32>, 512>;

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
    let x_row = lists[job.list + 2u * min(x_first + load_row, job.n_list - 1u)] + job.x;
    let tn = thread & 15u;
    let tm = thread >> 4u;
#each i 4
    var acc$i: vec4<f32>;
#end
    for (var blk = 0u; blk < p.m.n_blocks; blk++) {
        let b = block_of(p.m, job.elements, job.scales, job.phase, w_row, blk);
#each h 2
        {
            let c = 2u * load_part + $hu;
            let v = four(p.m, b, c);
#each e 4
            {
                let k = 4u * c + $eu;
                let at = k * 16u + (load_row >> 2u);
                w_tile[at][load_row & 3u] = v[$eu];
                let col = blk * 32u + k;
                var value = 0.0;
                if (col < p.m.cols) { value = x[x_row + col]; }
                x_tile[at][load_row & 3u] = value;
            }
#end
        }
#end
        workgroupBarrier();
        for (var k = 0u; k < 32u; k += 8u) {
#each u 8
            {
                let v = w_tile[(k + $uu) * 16u + tn];
                let xs = x_tile[(k + $uu) * 16u + tm];
#each i 4
                acc$i = fma(v, vec4<f32>(xs[$iu]), acc$i);
#end
            }
#end
        }
        workgroupBarrier();
    }
#each i 4
    put(job, x_first + 4u * tm + $iu, w_first + 4u * tn, acc$i);
#end
}

fn put(job: Job, x_idx: u32, row: u32, sums: vec4<f32>) {
    if (x_idx >= job.n_list) { return; }
    let first = lists[job.list + 2u * x_idx + 1u] + job.out + row;
    for (var e = 0u; e < 4u; e++) {
        if (row + e < job.n_rows) { y[first + e] = sums[e]; }
    }
}
