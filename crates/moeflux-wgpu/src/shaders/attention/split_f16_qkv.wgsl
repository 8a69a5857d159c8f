// Queries, or where CACHED keys or values, as sums of PARTS halves, for
// `attention/coop_matrix.wgsl`. Vectors of DIM columns get zeros up to PLACES of them. 64 vectors of a key head are divided by a power of two
// together, so that their largest element is between 2^14 and 2^15, and the power
// is noted: what is 2^-29 of it still has all its bits. A workgroup has such a tile.

enable f16;

struct Params {
    n_tiles: u32,
    n_kv_heads: u32,
    // Of a key head.
    n_vectors: u32,
    // What is written: places for vectors of a key head, the first of them that is written, and
    // where factors go, with those of a key head one after the other.
    n_places: u32,
    first_place: u32,
    factors: u32,
    // Where the first place is, in fours.
    to: u32,
    // Of queries: the first row, heads of a key head, where heads are.
    first_row: u32,
    group: u32,
    start: u32,
    width: u32,
    stride: u32,
    // Of what is cached: where tiles begin, and words of a vector.
    list: u32,
    words: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
#if CACHED
@group(0) @binding(1) var<storage, read> x: array<u32>;
#else
@group(0) @binding(1) var<storage, read> x: array<f32>;
#end
@group(0) @binding(2) var<storage, read> lists: array<u32>;
// (key heads, vectors, blocks of BLOCK columns, parts, fours)
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f16>>;
@group(0) @binding(4) var<storage, read_write> factors: array<f32>;

const THREADS: u32 = 256u;
const TILE: u32 = 64u;
const FOURS: u32 = DIM / 4u;
const OUT_FOURS: u32 = PLACES / 4u;

var<workgroup> highest: array<u32, THREADS>;

// Where a vector begins: element or word.
fn vector_at(kv_head: u32, tile: u32, in_tile: u32) -> u32 {
#if CACHED
    return lists[p.list + 2u * tile] + (in_tile * p.n_kv_heads + kv_head) * p.words;
#else
    let query = tile * TILE + in_tile;
    let head = kv_head * p.group + query % p.group;
    return (p.first_row + query / p.group) * p.width + p.start + head * p.stride;
#end
}

fn four_at(at: u32, i: u32) -> vec4<f32> {
#if CACHED
    var it: vec4<f32>;
#each k 4
    it[$k] = stored(x[at + stored_word(i + $ku)], stored_part(i + $ku));
#end
    if (KV == KV_Q8) { it *= bitcast<f32>(x[at + (i >> 6u) * 17u]); }
    return it;
#else
    return vec4<f32>(x[at + i], x[at + i + 1u], x[at + i + 2u], x[at + i + 3u]);
#end
}

#main_per_workgroup idx THREADS p.n_tiles * p.n_kv_heads
    let tile = idx % p.n_tiles;
    let kv_head = idx / p.n_tiles;
    let len = min(TILE, p.n_vectors - tile * TILE);
    var most = 0u;
    for (var i = thread; i < len * FOURS; i += THREADS) {
        let four = four_at(vector_at(kv_head, tile, i / FOURS), 4u * (i % FOURS));
        let bits = bitcast<vec4<u32>>(four) & vec4<u32>(0x7fffffffu);
        most = max(most, max(max(bits.x, bits.y), max(bits.z, bits.w)));
    }
    highest[thread] = most;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half = half >> 1u) {
        if (thread < half) { highest[thread] = max(highest[thread], highest[thread + half]); }
        workgroupBarrier();
    }
    // 2^14 / 2^exponent, both ways; what is tiny counts as 2^-100.
    let exponent = clamp(highest[0] >> 23u, 27u, 254u);
    let factor = bitcast<f32>((268u - exponent) << 23u);
    if (thread == 0u) {
        let n_all = p.n_places / TILE;
        factors[p.factors + kv_head * n_all + p.first_place / TILE + tile] =
            bitcast<f32>((exponent - 14u) << 23u);
    }
    // After the last vector there are zeros.
    for (var i = thread; i < TILE * OUT_FOURS; i += THREADS) {
        let in_tile = i / OUT_FOURS;
        let four = i % OUT_FOURS;
        let place = kv_head * p.n_places + p.first_place + tile * TILE + in_tile;
        let to = p.to + place * PARTS * OUT_FOURS + (four >> 3u) * 8u * PARTS + (four & 7u);
        var v = vec4<f32>();
        if (in_tile < len && four < FOURS) {
            v = four_at(vector_at(kv_head, tile, in_tile), 4u * four) * factor;
        }
#if PARTS/2
        // Cut off, not rounded: a compiler may take what was rounded for what it was.
        let high = bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) & vec4<u32>(0xffffe000u));
        out[to] = vec4<f16>(high);
        out[to + 8u] = vec4<f16>(v - high);
#else
        out[to] = vec4<f16>(nearest_halves(v));
#end
    }
}
