// Puts together what tiles of positions gathered, one after the other, 64 columns of a query a
// workgroup. Where DIGITS is set, rows are rounded too, see `include/quantize.wgsl`: heads are
// one after the other and are whole multiples of these.

struct Params {
    n_heads: u32,
    v_dim: u32,
    start: u32,
    width: u32,
    stride: u32,
    gate_start: u32,
    gate_width: u32,
    gate_stride: u32,
    // Of each row: which of the batch it is, where its tiles begin, and how many a
    // head has.
    list: u32,
    n: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> parts: array<f32>;
@group(0) @binding(2) var<storage, read> sinks: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read> gate: array<f32>;
@group(0) @binding(5) var<storage, read> lists: array<u32>;
#if DIGITS
@group(0) @binding(6) var<storage, read_write> rounded: array<u32>;
@group(0) @binding(7) var<storage, read_write> sums: array<vec2<f32>>;
#end

const NONE: f32 = -3.0e38;
// Tiles whose factors are found together, and that are read together.
const ROUND: u32 = 64u;

var<workgroup> largest: array<f32, ROUND>;
// By what the sums so far, and those of a tile, are multiplied; its total.
var<workgroup> factors: array<vec4<f32>, ROUND>;

#main_in_subgroups idx ROUND p.n
    let n_blocks = (p.v_dim + 63u) / 64u;
    let col = (idx % n_blocks) * 64u + thread;
    let read_col = min(col, p.v_dim - 1u) + 2u;
    let head = (idx / n_blocks) % p.n_heads;
    let entry = p.list + 3u * (idx / (n_blocks * p.n_heads));
    let row = lists[entry];
    let n_tiles = lists[entry + 2u];
    let size = p.v_dim + 2u;
    let first = (lists[entry + 1u] + head * n_tiles) * size;
    var before = NONE;
    var sum = 0.0;
    if (SINKS != 0u) {
        before = sinks[head];
        sum = 1.0;
    }
    var mixed = 0.0;
    for (var tile = 0u; tile < n_tiles; tile += ROUND) {
        let len = min(ROUND, n_tiles - tile);
        let begin = first + tile * size;
        // Those that there are not count for nothing.
        var mine = vec2<f32>(NONE, 0.0);
        if (thread < len) {
            mine = vec2<f32>(parts[begin + thread * size], parts[begin + thread * size + 1u]);
        }
        workgroupBarrier();
        largest[thread] = mine.x;
        workgroupBarrier();
        var all = before;
        for (var s = 0u; s < len; s += 8u) {
#each u 8
            before = max(before, select(NONE, largest[s + $uu], s + $uu < thread));
            all = max(all, largest[s + $uu]);
#end
        }
        let both = max(before, mine.x);
        factors[thread] = vec4<f32>(exp_(before - both), exp_(mine.x - both), mine.y, 0.0);
        workgroupBarrier();
        before = all;
        for (var s = 0u; s < len; s += 16u) {
#each u 16
            let part$u = parts[begin + min(s + $uu, len - 1u) * size + read_col];
#end
#each u 16
            if (s + $uu < len) {
                let its = factors[s + $uu];
                sum = fma(its.z, its.y, sum * its.x);
                mixed = fma(part$u, its.y, mixed * its.x);
            }
#end
        }
    }
    if (col < p.v_dim) {
        let out = row * p.width + p.start + head * p.stride;
        var it = mixed * (1.0 / sum);
        if (GATED != 0u) {
            let gates = row * p.gate_width + p.gate_start + head * p.gate_stride;
            it *= sigmoid(gate[gates + col]);
        }
        y[out + col] = it;
    }
#if DIGITS
    storageBarrier();
    let first_col = head * p.v_dim + (idx % n_blocks) * 64u;
    let all_blocks = p.n_heads * p.v_dim / 32u;
    round_own(thread, row, all_blocks, first_col / 32u, row * p.width + p.start + first_col);
#end
}
