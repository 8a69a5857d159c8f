// What `matmul/matvec.wgsl` does first where ACTIVATES is set: the activations of the row that
// its job is for, COLS of them, computed and rounded as `moe/activation.wgsl` and
// `include/quantize.wgsl` have them, in memory of the workgroup. Every workgroup of a job
// repeats that; a kernel before it would cost more.

@group(0) @binding(4) var<storage, read> gate_up: array<f32>;
#if BIASED
@group(0) @binding(5) var<storage, read> gate_bias: array<f32>;
@group(0) @binding(9) var<storage, read> up_bias: array<f32>;
#end

const ROW_BLOCKS: u32 = COLS / 32u;

var<workgroup> sums: array<vec2<f32>, COLS / (4u * SUMMED_FOURS)>;
#if FLOAT
var<workgroup> rounded: array<u32, COLS>;

fn inputs_at(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(rounded_at(4u * i));
}
#else
var<workgroup> rounded: array<u32, DIGITS * COLS / 4u>;

fn inputs_at(i: u32) -> vec4<u32> {
    return rounded_at(4u * i);
}
#end

fn rounded_at(i: u32) -> vec4<u32> {
    return vec4<u32>(rounded[i], rounded[i + 1u], rounded[i + 2u], rounded[i + 3u]);
}

// There is but one.
fn row_of(job: Job, nth: u32) -> u32 {
    return 0u;
}

// The whole workgroup comes along; each thread has four columns a step.
fn activate(thread: u32, row: u32, expert: u32) {
#each k STEPS
    {
        let four = thread + THREADS * $ku;
        let block = four / 8u;
        let columns = columns_of(four % 8u);
        let first = 32u * block + columns.x;
        var v: vec4<f32>;
        if (block < ROW_BLOCKS) {
            v = vec4<f32>(
                activation(row, first, COLS, expert),
                activation(row, first + columns.y, COLS, expert),
                activation(row, first + 2u * columns.y, COLS, expert),
                activation(row, first + 3u * columns.y, COLS, expert),
            );
        }
        round_four(thread, 0u, ROW_BLOCKS, block, four % 8u, v, block < ROW_BLOCKS);
    }
#end
    workgroupBarrier();
}
