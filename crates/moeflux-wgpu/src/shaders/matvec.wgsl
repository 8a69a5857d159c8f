// Products of matrices with few rows of activations: LANES lanes share ROWS
// rows of the matrix, block by block, and add up what they have in the end.
//
// DIGITS: 0 for activations as they are, else of how many digits of 8 bits
// their integers are (`round.wgsl`).

struct Params {
    m: Matrix,
    jobs: u32,
    n_jobs: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(2) var<storage, read> w4: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
#if DIGITS
// (rows, blocks, digits, 8 words)
@group(0) @binding(4) var<storage, read> x: array<vec4<u32>>;
// (rows, blocks): the scale, and the scale times the sum of the integers.
@group(0) @binding(5) var<storage, read> sums: array<vec2<f32>>;
#else
@group(0) @binding(4) var<storage, read> x: array<f32>;
#end
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

fn job_at(i: u32) -> Job {
    let at = p.jobs + JOB_WORDS * i;
    return Job(
        lists[at], lists[at + 1u], lists[at + 2u], lists[at + 3u],
        lists[at + 4u], lists[at + 5u], lists[at + 6u], lists[at + 7u],
        lists[at + 8u],
    );
}

#if DIGITS
// The integers of a block, four to a word, in the order of `round.wgsl`.
fn packed(word: u32) -> array<vec4<u32>, 2> {
    if (BITS == 4u) {
        let q = w4[word >> 2u];
        let low = q & vec4<u32>(0x0f0f0f0fu);
        let high = (q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
        return array<vec4<u32>, 2>(
            vec4<u32>(low.x, high.x, low.y, high.y),
            vec4<u32>(low.z, high.z, low.w, high.w),
        );
    }
    if (BITS == 8u) {
        // Signed, as the dot takes them: 128 less, which the bias gives back.
        return array<vec4<u32>, 2>(
            w4[word >> 2u] ^ vec4<u32>(0x80808080u),
            w4[(word >> 2u) + 1u] ^ vec4<u32>(0x80808080u),
        );
    }
    if (BITS == 2u) {
        let a = (vec4<u32>(w[word]) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
        let b = (vec4<u32>(w[word + 1u]) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
        return array<vec4<u32>, 2>(a, b);
    }
    return array<vec4<u32>, 2>(
        vec4<u32>(pack(word, 0u), pack(word, 1u), pack(word, 2u), pack(word, 3u)),
        vec4<u32>(pack(word, 4u), pack(word, 5u), pack(word, 6u), pack(word, 7u)),
    );
}

fn pack(word: u32, i: u32) -> u32 {
    let q = integers(word, i);
    return q.x | (q.y << 8u) | (q.z << 16u) | (q.w << 24u);
}

fn dot4(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y)
        + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}
#end

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
) {
    let job_idx = id.z * n.y + id.y;
    if (job_idx >= p.n_jobs) { return; }
    let job = job_at(job_idx);
    let thread = subgroup * subgroup_size + in_subgroup;
    let lane = thread % LANES;
    let per_group = (THREADS / LANES) * ROWS;
    for (var first = id.x * per_group; first < job.n_rows; first += n.x * per_group) {
        multiply(job, first + (thread / LANES) * ROWS, lane);
    }
}

// The products of ROWS rows from `row` on.
fn multiply(job: Job, row: u32, lane: u32) {
    for (var start = 0u; start < job.n_list; start += X_ROWS) {
        var acc: array<f32, ROWS * X_ROWS>;
        var at: array<u32, X_ROWS>;
        for (var i = 0u; i < X_ROWS; i++) {
            at[i] = lists[job.list + 2u * min(start + i, job.n_list - 1u)] + job.x;
        }
        for (var blk = lane; blk < p.m.n_blocks; blk += LANES) {
#if DIGITS
            var x_high: array<vec4<u32>, X_ROWS * 2u>;
            var x_low: array<vec4<u32>, X_ROWS * 2u>;
            var s: array<vec2<f32>, X_ROWS>;
            for (var i = 0u; i < X_ROWS; i++) {
                let block = at[i] * p.m.n_blocks + blk;
                s[i] = sums[block];
                let word = block * DIGITS * 2u;
                x_high[2u * i] = x[word];
                x_high[2u * i + 1u] = x[word + 1u];
                if (DIGITS == 2u) {
                    x_low[2u * i] = x[word + 2u];
                    x_low[2u * i + 1u] = x[word + 3u];
                }
            }
            for (var r = 0u; r < ROWS; r++) {
                let w_row = job.first_row + min(row + r, job.n_rows - 1u);
                let b = block_of(p.m, job.elements, job.scales, 0u, w_row, blk);
                let q = packed(b.word);
                let bias = select(b.b, fma(128.0, b.a, b.b), BITS == 8u);
                for (var i = 0u; i < X_ROWS; i++) {
                    var d = dot4(q[0], x_high[2u * i]) + dot4(q[1], x_high[2u * i + 1u]);
                    if (DIGITS == 2u) {
                        d = 256 * d + dot4(q[0], x_low[2u * i]) + dot4(q[1], x_low[2u * i + 1u]);
                    }
                    let k = r * X_ROWS + i;
                    acc[k] = fma(f32(d), b.a * s[i].x, fma(bias, s[i].y, acc[k]));
                }
            }
#else
            for (var r = 0u; r < ROWS; r++) {
                let w_row = job.first_row + min(row + r, job.n_rows - 1u);
                let b = block_of(p.m, job.elements, job.scales, job.phase, w_row, blk);
                for (var c = 0u; c < 8u; c++) {
                    let v = four(p.m, b, c);
                    let col = blk * 32u + 4u * c;
                    for (var i = 0u; i < X_ROWS; i++) {
                        let k = r * X_ROWS + i;
                        for (var e = 0u; e < 4u; e++) {
                            if (col + e < p.m.cols) {
                                acc[k] = fma(v[e], x[at[i] + col + e], acc[k]);
                            }
                        }
                    }
                }
            }
#end
        }
        for (var k = 0u; k < ROWS * X_ROWS; k++) {
            var sum = acc[k];
            for (var mask = LANES / 2u; mask > 0u; mask = mask >> 1u) {
                sum += subgroupShuffleXor(sum, mask);
            }
            let i = k % X_ROWS;
            let r = k / X_ROWS;
            if (lane == 0u && row + r < job.n_rows && start + i < job.n_list) {
                y[lists[job.list + 2u * (start + i) + 1u] + job.out + row + r] = sum;
            }
        }
    }
}
