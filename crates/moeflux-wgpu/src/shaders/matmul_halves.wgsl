// Products of matrices of 4 bits with many rows of activations on the units for
// matrices of halves: tiles of 128 rows of the matrix and 128 of activations.
//
// Products are exact: an integer less 8 has three bits (or is -8), a BF16 scale
// eight, a half eleven, and activations are PARTS halves each. What a group's
// bias then lacks, bias + 8 scale, meets the sum of its activations in columns
// behind the others, once with its upper bits and once with its lower ones.
// Scales are taken 128 times, so that small ones stay whole; above 60 they are
// no halves.
//
// EMULATED: by plain loops, for devices without such units.

enable f16;
#if EMULATED
#else
enable wgpu_cooperative_matrix;
#end

struct Params {
    m: Matrix,
    jobs: u32,
    // Pairs: a job, and its first row of activations.
    tiles: u32,
    n_tiles: u32,
    // Rows of activations, and fours of each.
    n_x: u32,
    stride: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(2) var<storage, read> lists: array<u32>;
// (parts, rows, fours)
@group(0) @binding(3) var<storage, read> x: array<vec4<f16>>;
@group(0) @binding(4) var<storage, read> factors: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

// Fours between two rows of a tile of 32 columns: eight and two, so that rows
// begin at different banks.
const LD: u32 = 10u;
var<workgroup> w_tile: array<vec4<f16>, 1280>;
var<workgroup> x_tile: array<vec4<f16>, 1280u * PARTS>;
// 16 rows of 32 outputs for each of eight subgroups.
var<workgroup> out: array<f32, 4096>;

// Eight integers less eight, times a scale.
fn eight(v: u32, scale: f32, at: u32) {
    let low = (vec4<u32>(v) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    let high = (vec4<u32>(v) >> vec4<u32>(16u, 20u, 24u, 28u)) & vec4<u32>(15u);
    let offset = vec4<f32>(8388616.0);
    let a = bitcast<vec4<f32>>(low | vec4<u32>(0x4b000000u)) - offset;
    let b = bitcast<vec4<f32>>(high | vec4<u32>(0x4b000000u)) - offset;
    w_tile[at] = vec4<f16>(a * scale);
    w_tile[at + 1u] = vec4<f16>(b * scale);
}

// Upper or lower bits of what is left of four groups' biases.
fn biases(job: Job, row: u32, group: u32, is_low: bool) -> vec4<f16> {
    var left: vec4<f32>;
    for (var e = 0u; e < 4u; e++) {
        let blk = (group + e) << p.m.group_shift;
        if (blk < p.m.n_blocks) {
            let pair = affine_pair(p.m, job.scales, row, blk);
            left[e] = 128.0 * fma(8.0, pair.x, pair.y);
        }
    }
    // Cut off, as in `halves.wgsl`.
    let upper = bitcast<vec4<f32>>(bitcast<vec4<u32>>(left) & vec4<u32>(0xffffe000u));
    if (is_low) { return vec4<f16>(left - upper); }
    return vec4<f16>(upper);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
) {
    // Who is beyond the last does the last again, and rows beyond a job's are not
    // written: matrix units want everybody to come along.
    let tile = min(id.z * n.y + id.y, p.n_tiles - 1u);
    let job = job_at(p.jobs, lists[p.tiles + 2u * tile]);
    let x_first = lists[p.tiles + 2u * tile + 1u];
    let w_first = id.x * 128u;
    // What a thread loads: half a block of a row of the matrix, and of a row of
    // activations as many columns.
    let row = thread >> 1u;
    let half = thread & 1u;
    let w_row = job.first_row + min(w_first + row, job.n_rows - 1u);
    let x_row = lists[job.list + 2u * min(x_first + row, job.n_list - 1u)] + job.x;
    let words = job.elements + w_row * p.m.n_blocks * 4u + 2u * half;
    let fours = x_row * p.stride + 4u * half;
    let store = row * LD + 4u * half;
    let n_groups = p.m.n_blocks >> p.m.group_shift;
    let n_extra = (n_groups + 31u) / 32u;
#if EMULATED
    let em = 8u * (thread >> 4u);
    let en = 8u * (thread & 15u);
    var sums: array<f32, 64>;
#else
    let sm = 64u * (subgroup & 1u);
    let sn = 32u * (subgroup >> 1u);
#each a 4
#each b 2
    var c_$a_$b = coop_mat16x16<f32, C>();
#end
#end
#end
    // Jobs without rows take no step; everybody comes along all the same.
    let n_steps = select(p.m.n_blocks + 2u * n_extra, 0u, w_first >= job.n_rows);
    for (var step = 0u; step < n_steps; step++) {
        var col = step;
        if (step >= p.m.n_blocks + n_extra) { col = step - n_extra; }
        // Loaded before the others are done with the last tile.
#each q PARTS
#each i 4
        let x_$q_$i = x[fours + $qu * p.n_x * p.stride + 8u * col + $iu];
#end
#end
        if (step < p.m.n_blocks) {
            let a = w[words + 4u * step];
            let b = w[words + 4u * step + 1u];
            let scale = 128.0 * affine_pair(p.m, job.scales, w_row, step).x;
            workgroupBarrier();
            eight(a, scale, store);
            eight(b, scale, store + 2u);
        } else {
            let group = 32u * (col - p.m.n_blocks) + 16u * half;
            let is_low = step >= p.m.n_blocks + n_extra;
            workgroupBarrier();
#each i 4
            w_tile[store + $iu] = biases(job, w_row, group + 4u * $iu, is_low);
#end
        }
#each q PARTS
#each i 4
        x_tile[store + $qu * 1280u + $iu] = x_$q_$i;
#end
#end
        workgroupBarrier();
#if EMULATED
        for (var part = 0u; part < PARTS; part++) {
            // Software devices stop loops, nested ones together, after 65,535 times.
            for (var i = 0u; i < 64u; i++) {
                let x_at = part * 1280u + (em + (i >> 3u)) * LD;
                let w_at = (en + (i & 7u)) * LD;
                var sum = sums[i];
#each k 8
                sum += dot(vec4<f32>(x_tile[x_at + $ku]), vec4<f32>(w_tile[w_at + $ku]));
#end
                sums[i] = sum;
            }
        }
#else
#each k 2
#each b 2
        let b_$k_$b = coopLoad<coop_mat16x16<f16, B>>(&w_tile[(sn + 16u * $bu) * LD + 4u * $ku], LD);
#end
#each q PARTS
#each a 4
        let a_$k_$q_$a = coopLoadT<coop_mat16x16<f16, A>>(
            &x_tile[$qu * 1280u + (sm + 16u * $au) * LD + 4u * $ku], LD,
        );
#each b 2
        c_$a_$b = coopMultiplyAdd(a_$k_$q_$a, b_$k_$b, c_$a_$b);
#end
#end
#end
#end
#end
    }
#if EMULATED
    for (var i = 0u; i < 64u; i++) {
        put(job, x_first + em + (i >> 3u), w_first + en + (i & 7u), sums[i]);
    }
#else
    let lane = thread & 31u;
    let mine = 512u * subgroup;
    let ld = 32u;
#each a 4
    {
        let left = mine;
        let right = mine + 16u;
        workgroupBarrier();
        coopStoreT(c_$a_0, &out[left], ld);
        coopStoreT(c_$a_1, &out[right], ld);
        workgroupBarrier();
        for (var i = 0u; i < 16u; i++) {
            put(job, x_first + sm + 16u * $au + i, w_first + sn + lane, out[mine + 32u * i + lane]);
        }
    }
#end
#end
}

fn put(job: Job, x_idx: u32, row: u32, sum: f32) {
    if (x_idx >= job.n_list || row >= job.n_rows) { return; }
    let at = job.list + 2u * x_idx;
    y[lists[at + 1u] + job.out + row] = sum * (factors[lists[at]] / 128.0);
}
