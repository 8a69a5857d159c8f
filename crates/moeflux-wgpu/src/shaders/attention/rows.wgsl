// What `attention/tiles.wgsl` and `attention/merge.wgsl` do, to the bit, for 32 queries
// a workgroup that share their keys: those of neighbouring rows, and of all heads
// of a group. Each key and value is read once for all of them, tile by tile.

const QUERIES: u32 = 32u;
// Fours of a value's floats, as threads hold them.
const FOURS: u32 = VC * 32u;
// First of `block` after scores and weights.
const VALUES: u32 = QUERIES * TILE / 4u;

// While scores are added up: 32 columns of the queries, fours by queries, then
// of the keys, fours by positions. After that: the weights, queries by positions,
// then VP values.
var<workgroup> block: array<vec4<f32>, 768>;
// By query: of all tiles so far, and what `factors_of` says of the last one.
var<workgroup> largest: array<f32, QUERIES>;
var<workgroup> sums: array<f32, QUERIES>;
var<workgroup> factors: array<vec3<f32>, QUERIES>;

// Scores and weights are floats of `block`, queries by positions.
fn put_score(query: u32, position: u32, score: f32) {
    block[(query * TILE + position) >> 2u][position & 3u] = score;
}

fn score(query: u32, position: u32) -> f32 {
    return block[(query * TILE + position) >> 2u][position & 3u];
}

#main_per_workgroup idx 256 p.n
    let n_kv_heads = p.n_heads / p.group;
    let kv_head = (idx / p.n_blocks) % n_kv_heads;
    seen = Seen(p.first_row, p.position, p.n_queries, p.seen_to, p.ahead_to);
    let first_query = (idx % p.n_blocks) * QUERIES;
    let last_query = min(first_query + QUERIES, p.n_queries) - 1u;
    let end = seen_end(last_query / p.group);
    let skipped = max(first_seen(first_query / p.group), p.seen_from) - p.seen_from;
    // When softmax is computed eight threads share a query.
    let mine = thread >> 3u;
    let eighth = thread & 7u;
    let my_query = min(first_query + mine, last_query);
    let my_head = head_of(kv_head, my_query);
    let my_q = query_at(kv_head, my_query);
    let my_state = state_of(kv_head, my_query);
    // Otherwise a thread has four queries, and two positions or fours of values.
    let lane = thread & 31u;
    let four = thread >> 5u;
    if (eighth == 0u) {
        var before = begun(my_head);
        if (p.went_on != 0u) { before = vec2<f32>(parts[my_state], parts[my_state + 1u]); }
        largest[mine] = before.x;
        sums[mine] = before.y;
    }
#each i 4
#each c VC
    var acc$i_$c = vec4<f32>();
#end
    if (p.went_on != 0u) {
        let at = state_of(kv_head, min(first_query + 4u * four + $iu, last_query)) + 2u;
#each c VC
        acc$i_$c = part_four(at, 4u * (lane + $cu * 32u));
#end
    }
#end
    for (var first = p.seen_from + skipped / TILE * TILE; first < end; first += TILE) {
        let tile = p.list + 2u * ((first - p.seen_from) / TILE);
        tile_keys = lists[tile];
        tile_values = lists[tile + 1u];
        // By which of the fours of columns.
#each i 4
#each l 4
        var near$i_$l = 0.0;
        var far$i_$l = 0.0;
#if KV/2
        var near_block$i_$l = 0.0;
        var far_block$i_$l = 0.0;
#end
#end
#end
        let near_at = key_at(min(first + lane, p.seen_to - 1u), kv_head);
        let far_at = key_at(min(first + lane + 32u, p.seen_to - 1u), kv_head);
        for (var col = 0u; col < K_DIM; col += 32u) {
            workgroupBarrier();
            block[eighth * 32u + mine] = query_four(my_q, col + 4u * eighth);
#each h 2
            block[256u + eighth * 64u + mine + $hu * 32u] = key_four(
                key_at(min(first + mine + $hu * 32u, p.seen_to - 1u), kv_head), col + 4u * eighth);
#end
            workgroupBarrier();
#each h 2
#each l 4
            {
                let near_key = block[256u + (4u * $hu + $lu) * 64u + lane];
                let far_key = block[256u + (4u * $hu + $lu) * 64u + lane + 32u];
#each i 4
                {
                    let x = block[(4u * $hu + $lu) * 32u + 4u * four + $iu];
#if KV/2
                    near_block$i_$l = dot_from(near_block$i_$l, x, near_key);
                    far_block$i_$l = dot_from(far_block$i_$l, x, far_key);
#else
                    near$i_$l = dot_from(near$i_$l, x, near_key);
                    far$i_$l = dot_from(far$i_$l, x, far_key);
#end
                }
#end
            }
#end
#end
#if KV/2
            // Integers that share a scale are multiplied by it together.
            if ((col & 32u) != 0u || col + 32u >= K_DIM) {
                let near_scale = key_scale(near_at, col);
                let far_scale = key_scale(far_at, col);
#each i 4
#each l 4
                near$i_$l = fma(near_block$i_$l, near_scale, near$i_$l);
                far$i_$l = fma(far_block$i_$l, far_scale, far$i_$l);
                near_block$i_$l = 0.0;
                far_block$i_$l = 0.0;
#end
#end
            }
#end
        }
        workgroupBarrier();
#each i 4
        let near$i = (near$i_0 + near$i_1) + (near$i_2 + near$i_3);
        let far$i = (far$i_0 + far$i_1) + (far$i_2 + far$i_3);
        put_score(4u * four + $iu, lane, near$i * p.scale);
        put_score(4u * four + $iu, lane + 32u, far$i * p.scale);
#end
        workgroupBarrier();
        let softened = softmax(thread, my_query / p.group, first);
        if (eighth == 0u) {
            let its = factors_of(largest[mine], softened.x);
            sums[mine] = fma(softened.y, its.y, sums[mine] * its.x);
            largest[mine] = its.z;
            factors[mine] = its;
        }
#each i 4
#each c VC
        var tile$i_$c = vec4<f32>();
#end
#end
        let len = min(TILE, p.seen_to - first);
        for (var j = 0u; j < len; j += VP) {
            workgroupBarrier();
            if (thread < VP * FOURS) {
                let position = min(first + j + thread / FOURS, p.seen_to - 1u);
                block[VALUES + thread] =
                    value_four(value_at(position, kv_head), 4u * (thread % FOURS));
            }
            workgroupBarrier();
#each u VP
            {
#each c VC
                let v$c = block[VALUES + $uu * FOURS + $cu * 32u + lane];
#end
#each i 4
                let w$i = vec4<f32>(score(4u * four + $iu, j + $uu));
#each c VC
                tile$i_$c = fma(w$i, v$c, tile$i_$c);
#end
#end
            }
#end
        }
#each i 4
        {
            let its = factors[4u * four + $iu];
#each c VC
            acc$i_$c = fma(tile$i_$c, vec4<f32>(its.y), acc$i_$c * its.x);
#end
        }
#end
    }
    workgroupBarrier();
#each i 4
    {
        let mine = 4u * four + $iu;
        let query = first_query + mine;
        if (query <= last_query) {
            if (p.goes_on != 0u) {
                let at = state_of(kv_head, query);
                if (lane == 0u) {
                    parts[at] = largest[mine];
                    parts[at + 1u] = sums[mine];
                }
#each c VC
                put_part(at + 2u, 4u * (lane + $cu * 32u), acc$i_$c);
#end
            } else {
                let row = query / p.group;
                let head = head_of(kv_head, query);
                let inverse = 1.0 / sums[mine];
#each c VC
                put_y(row, head, 4u * (lane + $cu * 32u), acc$i_$c * inverse);
#end
            }
        }
    }
#end
}
