// Makes jobs of grouped choices (`moe/sort_by_expert.wgsl`): one for every matrix of every
// expert, with the rows that chose it and are in a range of the order.
//
// Whether few rows chose an expert depends on all of them, not on those in the range: so does the
// kernel that multiplies them. Experts of the other kernel, or that are in another buffer, have
// no rows of the matrix here.

struct Params {
    // Choices, experts of the layer, and matrices of each.
    n: u32,
    n_experts: u32,
    n_matrices: u32,
    // The range of the order.
    first: u32,
    n_places: u32,
    // Choices of a row of activations; 0 where these are in the order of the range, and outputs
    // in that of the choices, and not the other way round.
    top_k: u32,
    // Where a row of activations begins: its number times this, and this; and
    // outputs.
    x_stride: u32,
    x_start: u32,
    out_stride: u32,
    // Up to this many rows are few, and whether these jobs are for more.
    few: u32,
    are_many: u32,
    // Rows of activations in a tile, and tiles of all experts at most.
    tile: u32,
    n_tiles: u32,
    // The buffer that the products read.
    buffer: u32,
    unused_a: u32,
    unused_b: u32,
    // Of each matrix: which one it is in the table, its rows, its phase, and
    // where its outputs begin in a row.
    matrices: array<vec4<u32>, 2>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> grouped: array<u32>;
// (n_experts + 1, matrices, 2): elements and scales; then (n_experts + 1): the
// buffer. The last is the one that every row gets.
@group(0) @binding(2) var<storage, read> table: array<u32>;
// (n_places): pairs; (n_matrices, n_experts): jobs, and one without rows;
// (n_matrices, n_tiles): tiles.
@group(0) @binding(3) var<storage, read_write> jobs: array<u32>;

const WORDS: u32 = 9u;
const MATRICES: u32 = 3u;
const THREADS: u32 = 64u;

// Of each expert: the tiles of it and of those before it. A thread's experts are side by side,
// and so do these sums.
var<workgroup> ends: array<u32, MOST_EXPERTS>;
var<workgroup> sums: array<u32, THREADS>;

// The rows of an expert that are in the range and are multiplied here: from where, and how many.
fn rows_of(expert: u32) -> vec2<u32> {
    let count = grouped[expert];
    let start = grouped[p.n_experts + expert];
    let is_here = table[2u * MATRICES * (p.n_experts + 1u) + expert] == p.buffer
        && (count > p.few) == (p.are_many != 0u);
    let first = clamp(start, p.first, p.first + p.n_places);
    let end = clamp(start + count, p.first, p.first + p.n_places);
    return vec2<u32>(first - p.first, select(0u, end - first, is_here));
}

fn put_pair(i: u32) {
    let choice = grouped[2u * p.n_experts + p.first + i];
    var x_row = i;
    var out_row = choice;
    if (p.top_k > 0u) {
        x_row = choice / p.top_k;
        out_row = i;
    }
    jobs[2u * i] = x_row * p.x_stride + p.x_start;
    jobs[2u * i + 1u] = out_row * p.out_stride;
}

fn put_job(i: u32) {
    let at = 2u * p.n_places + WORDS * i;
    if (i == p.n_matrices * p.n_experts) {
        for (var word = 0u; word < WORDS; word++) { jobs[at + word] = 0u; }
        return;
    }
    let expert = i % p.n_experts;
    let matrix = p.matrices[i / p.n_experts];
    let rows = rows_of(expert);
    let place = (expert * MATRICES + matrix.x) * 2u;
    jobs[at] = table[place];
    jobs[at + 1u] = table[place + 1u];
    jobs[at + 2u] = 0u;
    jobs[at + 3u] = select(matrix.y, 0u, rows.y == 0u);
    jobs[at + 4u] = 2u * rows.x;
    jobs[at + 5u] = rows.y;
    jobs[at + 6u] = matrix.z;
    jobs[at + 7u] = matrix.w;
    jobs[at + 8u] = 0u;
}

fn find_ends(thread: u32) {
    let per_thread = (p.n_experts + THREADS - 1u) / THREADS;
    let first = min(thread * per_thread, p.n_experts);
    let behind = min(first + per_thread, p.n_experts);
    var mine = 0u;
    for (var expert = first; expert < behind; expert++) {
        mine += (rows_of(expert).y + p.tile - 1u) / p.tile;
        ends[expert] = mine;
    }
    sums[thread] = mine;
    workgroupBarrier();
    var before = 0u;
    for (var i = 0u; i < THREADS; i++) { before += select(0u, sums[i], i < thread); }
    for (var expert = first; expert < behind; expert++) { ends[expert] += before; }
    workgroupBarrier();
}

// The `i`-th tile: of the expert that it falls to, or of the job without rows.
fn put_tile(i: u32) {
    let matrix = i / p.n_tiles;
    let nth = i % p.n_tiles;
    // The first expert that ends after it.
    var expert = 0u;
    for (var behind = p.n_experts; expert < behind; ) {
        let middle = (expert + behind) / 2u;
        if (ends[middle] > nth) { behind = middle; } else { expert = middle + 1u; }
    }
    var job = p.n_matrices * p.n_experts;
    var first = 0u;
    if (expert < p.n_experts) {
        job = matrix * p.n_experts + expert;
        if (expert > 0u) { first = ends[expert - 1u]; }
        first = (nth - first) * p.tile;
    }
    let at = 2u * p.n_places + WORDS * (p.n_matrices * p.n_experts + 1u) + 2u * i;
    jobs[at] = job;
    jobs[at + 1u] = first;
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = linear(id, n) * THREADS + thread;
    if (p.n_tiles > 0u) { find_ends(thread); }
    if (i < p.n_places) { put_pair(i); }
    if (i < p.n_matrices * p.n_experts + 1u) { put_job(i); }
    if (i < p.n_matrices * p.n_tiles) { put_tile(i); }
}
