// Products of matrices with many rows of activations, in tiles of W_TILE rows of
// the matrix and X_TILE rows of activations. A thread has four of the one by
// X_FOURS fours of the other. Threads that this leaves over share out the columns
// of each step, of STEP blocks: as slices, whose sums are added up in their order.
//
// ALIGNED: rows of activations begin at multiples of 16 bytes and end with their
// last block.
//
// A sum's order follows from these constants but ALIGNED, and from its row's length.

struct Params {
    m: Matrix,
    jobs: u32,
    // Pairs: a job, and its first row of activations.
    tiles: u32,
    n_tiles: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
#if ALIGNED
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
#else
@group(0) @binding(4) var<storage, read> x: array<f32>;
#end
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

const THREADS: u32 = 256u;
// Threads of a slice along rows of the matrix and of activations, and together.
const ALONG_W: u32 = W_TILE / 4u;
const ALONG_X: u32 = X_TILE / 4u / X_FOURS;
const PER_SLICE: u32 = ALONG_W * ALONG_X;
const SLICES: u32 = THREADS / PER_SLICE;
// Fours of columns that a slice has of a step.
const QUADS: u32 = 8u * STEP / SLICES;

// Four columns, of each of which eight fours of rows are side by side: the n-th of the q-th four
// columns of a step at n ^ q, so that there are no bank conflicts, neither of stores of a row's
// columns nor of loads of a column's rows. Indices within a line are known, or the same for all
// its columns: each is checked once.
alias Line = array<array<vec4<f32>, 8>, 4>;
const W_LINES: u32 = (W_TILE + 31u) / 32u;
const X_LINES: u32 = (X_TILE + 31u) / 32u;
const X_FIRST: u32 = 8u * STEP * W_LINES;
// 16 KiB, for the weights and activations of a step, then for sums of slices.
var<workgroup> lines: array<Line, 32>;
const_assert 8u * STEP * (W_LINES + X_LINES) <= 32u;
const_assert W_TILE * STEP % 32u == 0u && X_TILE * STEP % 32u == 0u;
const_assert SLICES * PER_SLICE == THREADS && QUADS * SLICES == 8u * STEP;

// Four columns of the row of activations that is at an element, the last for those after it.
fn x_four(at: u32, col: u32) -> vec4<f32> {
#if ALIGNED
    return x[(at + min(col, p.m.cols - 4u)) >> 2u];
#else
    let cols = min(vec4<u32>(col) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(p.m.cols - 1u));
    return vec4<f32>(x[at + cols.x], x[at + cols.y], x[at + cols.z], x[at + cols.w]);
#end
}

// The four columns, zero after the last one: whatever weights they are multiplied with. The check
// does not wait for the loads.
fn inside(v: vec4<f32>, col: u32) -> vec4<f32> {
    let cols = vec4<u32>(col) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(), v, cols < vec4<u32>(p.m.cols));
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = id.z * n.y + id.y;
    if (tile >= p.n_tiles) { return; }
    let job = job_at(p.jobs, lists[p.tiles + 2u * tile]);
    let x_first = lists[p.tiles + 2u * tile + 1u];
    let w_first = id.x * W_TILE;
    if (w_first >= job.n_rows) { return; }
    let last_blk = p.m.n_blocks - 1u;
    // What a thread loads: of a row's block the four columns `mine`.
    let mine = thread & 7u;
#each i W_TILE*STEP/32
    let w_nth_$i = (thread >> 3u) + $iu * (THREADS / 8u);
    let w_in_tile_$i = w_nth_$i % W_TILE;
    let w_block_$i = w_nth_$i / W_TILE;
    let w_row_$i = job.first_row + min(w_first + w_in_tile_$i, job.n_rows - 1u);
    let w_line_$i = (8u * w_block_$i + mine) * W_LINES + (w_in_tile_$i >> 5u);
    let w_to_$i = ((w_in_tile_$i >> 2u) ^ mine) & 7u;
    var blk_$i = min(w_block_$i, last_blk);
    var w_$i = raw_four(place_of(p.m, job.elements, w_row_$i, blk_$i), mine);
    var scales_$i = raw_scales(
        p.m, job.elements, job.scales, job.phase, w_row_$i, blk_$i, mine,
    );
#end
#each i X_TILE*STEP/32
    let x_nth_$i = (thread >> 3u) + $iu * (THREADS / 8u);
    let x_in_tile_$i = x_nth_$i % X_TILE;
    let x_col_$i = 32u * (x_nth_$i / X_TILE) + 4u * mine;
    let x_pair_$i = job.list + 2u * min(x_first + x_in_tile_$i, job.n_list - 1u);
    let x_from_$i = lists[x_pair_$i] + job.x;
    let x_line_$i = X_FIRST + (x_col_$i >> 2u) * X_LINES + (x_in_tile_$i >> 5u);
    let x_to_$i = ((x_in_tile_$i >> 2u) ^ mine) & 7u;
    var x_$i = x_four(x_from_$i, x_col_$i);
#end
    // What it computes.
    let slice = thread / PER_SLICE;
    let in_slice = thread % PER_SLICE;
    let tn = in_slice % ALONG_W;
    let tm = in_slice / ALONG_W;
#each f X_FOURS
#each i 4
    var acc_$f_$i: vec4<f32>;
#end
#end
    let n_steps = (p.m.n_blocks + STEP - 1u) / STEP;
    for (var step = 0u; step < n_steps; step++) {
        workgroupBarrier();
#each i W_TILE*STEP/32
        {
            let b = block_with(
                p.m, job.elements, job.scales, job.phase, w_row_$i, blk_$i, scales_$i,
            );
            let v = decode(p.m, b, mine, w_$i);
#each e 4
            lines[w_line_$i][$e][w_to_$i][w_in_tile_$i & 3u] = v[$e];
#end
        }
#end
#each i X_TILE*STEP/32
        {
            let v = inside(x_$i, 32u * STEP * step + x_col_$i);
#each e 4
            lines[x_line_$i][$e][x_to_$i][x_in_tile_$i & 3u] = v[$e];
#end
        }
#end
        workgroupBarrier();
        // On their way while this step is computed.
        let ahead = min(step + 1u, n_steps - 1u) * STEP;
#each i W_TILE*STEP/32
        blk_$i = min(ahead + w_block_$i, last_blk);
        w_$i = raw_four(place_of(p.m, job.elements, w_row_$i, blk_$i), mine);
        scales_$i = raw_scales(
            p.m, job.elements, job.scales, job.phase, w_row_$i, blk_$i, mine,
        );
#end
#each i X_TILE*STEP/32
        x_$i = x_four(x_from_$i, 32u * ahead + x_col_$i);
#end
#each q STEP*W_TILE*X_TILE/512/X_FOURS
        {
            let quad = slice * QUADS + $qu;
            let w_line = quad * W_LINES + (tn >> 3u);
            let w_at = (tn ^ quad) & 7u;
#each f X_FOURS
            let four_$f = tm + $fu * ALONG_X;
            let line_$f = X_FIRST + quad * X_LINES + (four_$f >> 3u);
            let at_$f = (four_$f ^ quad) & 7u;
#end
#each k 4
            {
                let v = lines[w_line][$k][w_at];
#each f X_FOURS
                let xs_$f = lines[line_$f][$k][at_$f];
#each i 4
                acc_$f_$i = fma(v, vec4<f32>(xs_$f[$i]), acc_$f_$i);
#end
#end
            }
#end
        }
#end
    }
#each f X_FOURS
#if 2048*X_FOURS/W_TILE/X_TILE
    workgroupBarrier();
#each i 4
    {
        let at = (4u * slice + $iu) * PER_SLICE + in_slice;
        lines[at >> 5u][(at >> 3u) & 3u][at & 7u] = acc_$f_$i;
    }
#end
    workgroupBarrier();
    for (var nth = thread; nth < 4u * PER_SLICE; nth += THREADS) {
        var sum: vec4<f32>;
#each s 4096*X_FOURS/W_TILE/X_TILE
        {
            let at = $su * 4u * PER_SLICE + nth;
            sum += lines[at >> 5u][(at >> 3u) & 3u][at & 7u];
        }
#end
        let its = nth % PER_SLICE;
        let four = its / ALONG_W + $fu * ALONG_X;
        put(job, x_first + 4u * four + nth / PER_SLICE, w_first + 4u * (its % ALONG_W), sum);
    }
#else
#each i 4
    put(job, x_first + 4u * (tm + $fu * ALONG_X) + $iu, w_first + 4u * tn, acc_$f_$i);
#end
#end
#end
}

fn put(job: Job, x_idx: u32, row: u32, sums: vec4<f32>) {
    if (x_idx >= job.n_list) { return; }
    let first = lists[job.list + 2u * x_idx + 1u] + job.out + row;
    for (var e = 0u; e < 4u; e++) {
        if (row + e < job.n_rows) { y[first + e] = sums[e]; }
    }
}
