// Products with the transpose of a matrix: its rows are inputs. A thread has
// four columns and X_ROWS rows of activations.

struct Params {
    m: Matrix,
    jobs: u32,
    n_jobs: u32,
    // Parts that the activations of every job are divided into.
    n_parts: u32,
    // Whether outputs are added to what is there.
    adds: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
@group(0) @binding(4) var<storage, read> x: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let part = id.z * n.y + id.y;
    if (part >= p.n_jobs * p.n_parts) { return; }
    let job = job_at(p.jobs, part / p.n_parts);
    let start = (part % p.n_parts) * X_ROWS;
    let c = id.x * 64u + thread;
    if (c >= 8u * p.m.n_blocks || start >= job.n_list) { return; }
    var sums: array<vec4<f32>, X_ROWS>;
    var rows: array<u32, X_ROWS>;
    for (var i = 0u; i < X_ROWS; i++) {
        rows[i] = lists[job.list + 2u * min(start + i, job.n_list - 1u)] + job.x;
    }
    for (var r = 0u; r < job.n_rows; r++) {
        let b = block_of(p.m, job.elements, job.scales, job.phase, job.first_row + r, c >> 3u);
        let v = four(p.m, b, c & 7u);
        for (var i = 0u; i < X_ROWS; i++) {
            sums[i] = fma(v, vec4<f32>(x[rows[i] + r]), sums[i]);
        }
    }
    for (var i = 0u; i < X_ROWS; i++) {
        if (start + i < job.n_list) {
            let first = lists[job.list + 2u * (start + i) + 1u] + job.out + 4u * c;
            for (var e = 0u; e < 4u; e++) {
                if (4u * c + e < p.m.cols) {
                    let before = select(0.0, y[first + e], p.adds != 0u);
                    y[first + e] = before + sums[i][e];
                }
            }
        }
    }
}
