// Products of matrices with few rows of activations.
//
// VLANES lanes share a row of the matrix: lane v has the units v, v + VLANES, and so on, in
// ascending order, and their sums are added as a tree, v and v ^ VLANES / 2 first. A unit is 32
// columns, or 16 bytes of floats, or what a type of ggml says. So the order of a sum follows from the row's length. What is left
// to choose is who does it: LANES lanes stand for VLANES, one after the other, with DEPTH units a
// step, for ROWS rows of the matrix and X_ROWS rows of activations at once.
//
// DIGITS: 0 for activations as they are, else of how many digits of 8 bits their integers are
// (`matmul/quantize_activations.wgsl`). Dots of a block are whole numbers, by dots of bytes or,
// where FMA is set, by floats, in which they are below 2^24 and so the same. BLOCKS: a unit of
// blocks of ggml is HALVES times sixteen columns, each of which may have its own scale. ALIGNED: rows of
// floats begin at multiples of 16 bytes and end with their last block.
//
// ONCE: rows are so short, and activations so few, that a workgroup reads these once for all its
// rows.
//
// CHOSEN: jobs name one of an expert's matrices (in the place of their elements), and those of a
// matrix have the choices in turn: the device's, then the expert that every row gets, once a row.
//
// BOTH: jobs whose phase is set, which no integers have, read activations as they are, whatever
// DIGITS says.
//
// ACTIVATES: the row of activations of a choice is computed first, see
// `include/fused_activation.wgsl`: that of its number.
//
// PACKED: jobs differ in their rows, and each has the workgroups that it needs, up to its end
// among all; else all have as many.
//
// Everything is unrolled as text: arrays indexed in loops would be in memory.

struct Params {
    m: Matrix,
    jobs: u32,
    n_jobs: u32,
    // Experts of the layer, and the number of the buffer that the dispatch reads.
    n_experts: u32,
    buffer: u32,
    // Choices that every matrix meets, one after the other, and those of them that
    // the device made.
    n_choices: u32,
    n_chosen: u32,
    // Of activations.
    alpha: f32,
    limit: f32,
    ends: array<vec4<u32>, 2>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
#if DIGITS
#if ACTIVATES
#else
#if FMA
// (rows, 8, blocks): four integers, see `matmul/quantize_activations.wgsl`.
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
#else
// (rows, digits, halves of blocks, blocks)
@group(0) @binding(4) var<storage, read> x: array<vec4<u32>>;
#end
// (rows, blocks), or (rows, blocks, 2): the scale, and the scale times the sum of the integers.
@group(0) @binding(5) var<storage, read> sums: array<vec2<f32>>;
#end
#else
#if ALIGNED
@group(0) @binding(4) var<storage, read> plain: array<vec4<f32>>;
#else
@group(0) @binding(4) var<storage, read> plain: array<f32>;
#end
#end
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

#if BOTH
#if ALIGNED
@group(0) @binding(7) var<storage, read> plain: array<vec4<f32>>;
#else
@group(0) @binding(7) var<storage, read> plain: array<f32>;
#end
#end

#if CHOSEN
// The experts chosen.
@group(0) @binding(7) var<storage, read> chosen: array<u32>;
// (n_experts + 1, matrices, 2): elements and scales; then (n_experts + 1): the
// buffer. The last is the one that every row gets.
@group(0) @binding(8) var<storage, read> table: array<u32>;

const MATRICES: u32 = 3u;
#end

const SLOTS: u32 = VLANES / LANES;
// Rows of the matrix that a workgroup has at once, side by side.
const GROUPS: u32 = THREADS / LANES;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
) {
#if PACKED
    let among_all = linear(id, n);
    var job_idx = 0u;
    var before = 0u;
#each i 2
#each j 4
    if (among_all >= p.ends[$i][$j]) {
        job_idx = 4u * $iu + $ju + 1u;
        before = p.ends[$i][$j];
    }
#end
#end
    if (job_idx >= p.n_jobs) { return; }
    let nth = among_all - before;
    let of_job = p.ends[job_idx >> 2u][job_idx & 3u] - before;
#else
    let job_idx = id.z * n.y + id.y;
    if (job_idx >= p.n_jobs) { return; }
    let nth = id.x;
    let of_job = n.x;
#end
#if CHOSEN
    // The choice follows from the number of the job, so nothing waits for the job's words.
    let choice = job_idx % p.n_choices;
    let its = chosen[min(choice, p.n_chosen - 1u)];
    var job = job_at(p.jobs, job_idx);
    let expert = select(p.n_experts, min(its, p.n_experts - 1u), choice < p.n_chosen);
    let place = (expert * MATRICES + job.elements) * 2u;
    job.elements = table[place];
    job.scales = table[place + 1u];
    // Another dispatch has this expert's buffer: no rows here.
    if (table[(p.n_experts + 1u) * MATRICES * 2u + expert] != p.buffer) { job.n_rows = 0u; }
#else
    let job = job_at(p.jobs, job_idx);
#end
    let thread = subgroup * subgroup_size + in_subgroup;
#if STAGED
    stage(thread);
#end
#if BOTH
    if (job.phase != 0u) {
        multiply_plain(job, nth, of_job, thread / LANES, thread % LANES);
        return;
    }
#end
#if ACTIVATES
    activate(thread, choice, min(its, p.n_experts - 1u));
#end
#if DIGITS
    multiply(job, nth, of_job, thread / LANES, thread % LANES);
#else
    multiply_plain(job, nth, of_job, thread / LANES, thread % LANES);
#end
}

#if ACTIVATES
#else
// Where the `nth` row of activations of a job is.
fn row_of(job: Job, nth: u32) -> u32 {
    return lists[job.list + 2u * min(nth, job.n_list - 1u)] + job.x;
}
#if DIGITS
#if FMA
fn inputs_at(i: u32) -> vec4<f32> { return x[i]; }
#else
fn inputs_at(i: u32) -> vec4<u32> { return x[i]; }
#end
#end
#end

// The sum over the lanes of a row.
fn tree(mine: f32) -> f32 {
    var sum = mine;
    if (LANES >= 32u) { sum += subgroupShuffleXor(sum, 16u); }
    if (LANES >= 16u) { sum += subgroupShuffleXor(sum, 8u); }
    if (LANES >= 8u) { sum += subgroupShuffleXor(sum, 4u); }
    if (LANES >= 4u) { sum += subgroupShuffleXor(sum, 2u); }
    if (LANES >= 2u) { sum += subgroupShuffleXor(sum, 1u); }
    return sum;
}

#if BLOCKS
#else
// 16 bytes of a unit's elements; all of them, but for integers that are not of
// 4 bits.
fn raw(elements: u32, row: u32, unit: u32) -> vec4<u32> {
    if (FORMAT == FORMAT_AFFINE && BITS != 4u) { return vec4<u32>(0u); }
    return w4[(elements >> 2u) + row * (p.m.n_blocks * (32u / UNIT)) + unit];
}
#end
