// Attention of QUERIES queries that share their keys (heads of a group, of some
// rows) to a tile of positions. `attention/merge.wgsl` puts tiles together,
// where there are several.
//
// Loads come in bursts that are written out: what the compiler would leave as a
// loop waits for memory at each step.

const THREADS: u32 = 256u;
// Fours of a query: STEPS sixteens of columns at a time, LATER times more.
const Q_FOURS: u32 = 4u * STEPS * (LATER + 1u);

var<workgroup> query: array<vec4<f32>, QUERIES * Q_FOURS>;
// Scores, then weights: queries by positions.
var<workgroup> weights: array<vec4<f32>, QUERIES * TILE / 4u>;
// Maximum and total of each query.
var<workgroup> softened: array<vec2<f32>, QUERIES>;

fn score(query: u32, position: u32) -> f32 {
    return weights[(query * TILE + position) >> 2u][position & 3u];
}

fn put_score(query: u32, position: u32, score: f32) {
    weights[(query * TILE + position) >> 2u][position & 3u] = score;
}

#main_in_subgroups idx THREADS p.n
    let n_kv_heads = p.n_heads / p.group;
    let kv_head = (idx / p.n_blocks) % n_kv_heads;
    // Eight words a tile.
    let tile = p.list + 8u * (idx / (p.n_blocks * n_kv_heads));
    let first = lists[tile];
    tile_keys = lists[tile + 1u];
    tile_values = lists[tile + 2u];
    seen.first_row = lists[tile + 3u];
    seen.position = lists[tile + 4u];
    seen.n_queries = lists[tile + 5u];
    seen.to = (seen.position + seen.n_queries / p.group) / p.size;
    seen.ahead_to = 0u;
    // Where a query gathers, among the tiles of its row.
    let own_part = lists[tile + 6u];
    let n_tiles = lists[tile + 7u];
    let first_query = (idx % p.n_blocks) * QUERIES;
    if (first_query >= seen.n_queries) { return; }
    let last_query = min(first_query + QUERIES, seen.n_queries) - 1u;

    // Four lanes have a position.
    let lane = thread & 3u;
    let quad = thread >> 2u;
    let key = key_at(min(first + quad, seen.to - 1u), kv_head);
#each h STEPS/4
#each u 4
    var k$h_$u = key_four(key, 64u * $hu + 16u * $uu + 4u * lane);
#end
#end
    for (var i = thread; i < QUERIES * Q_FOURS; i += THREADS) {
        let it = min(first_query + i / Q_FOURS, last_query);
        query[i] = query_four(query_at(kv_head, it), 4u * (i % Q_FOURS));
    }
    workgroupBarrier();
#each g QUERIES
    var sum$g = 0.0;
#end
    for (var i = 0u; i <= LATER; i++) {
        let at = 4u * STEPS * i + lane;
#each h STEPS/4
#if KV/2
        // Integers that share a scale are multiplied by it together.
        let scale$h = key_scale(key, 16u * STEPS * i + 64u * $hu);
#end
#each g QUERIES
        {
#if KV/2
            var sum = 0.0;
#else
            var sum = sum$g;
#end
#each u 4
            sum = dot_from(sum, query[at + $gu * Q_FOURS + 16u * $hu + 4u * $uu], k$h_$u);
#end
#if KV/2
            sum$g = fma(sum, scale$h, sum$g);
#else
            sum$g = sum;
#end
        }
#end
#end
        if (i < LATER) {
            let next = 16u * STEPS * (i + 1u) + 4u * lane;
#each h STEPS/4
#each u 4
            k$h_$u = key_four(key, next + 64u * $hu + 16u * $uu);
#end
#end
        }
    }
#each g QUERIES
    sum$g += subgroupShuffleXor(sum$g, 1u);
    sum$g += subgroupShuffleXor(sum$g, 2u);
    if (lane == ($gu & 3u)) { put_score($gu, quad, sum$g * p.scale); }
#end

    // FOURS threads have the columns of a value, COLS fours each, for the same
    // QUERIES / PARTS queries.
    let four = thread % FOURS;
    let mine = (thread / FOURS) * (QUERIES / PARTS);
    let last = seen.to - 1u;
    let len = min(TILE, seen.to - first);
    workgroupBarrier();
    let my_query = min(first_query + (thread >> 3u), last_query);
    let it = softmax(thread, my_query / p.group, first);
    if (thread < 8u * QUERIES) { softened[thread >> 3u] = it; }
    workgroupBarrier();
    if (mine >= QUERIES) { return; }
#each c COLS
#each g QUERIES/PARTS
    var acc$c_$g = vec4<f32>();
#end
#end
    for (var j = 0u; j < len; j += 16u) {
#each c COLS
#each h 4
#each u 4
        let v$c_$h_$u = value_four(
            value_at(min(first + j + 4u * $hu + $uu, last), kv_head), 4u * (four + $cu * THREADS));
#end
#end
#end
#each h 4
#each g QUERIES/PARTS
        {
            let weight = weights[(mine + $gu) * (TILE / 4u) + j / 4u + $hu];
#each c COLS
            acc$c_$g = fma(vec4<f32>(weight.x), v$c_$h_0, acc$c_$g);
            acc$c_$g = fma(vec4<f32>(weight.y), v$c_$h_1, acc$c_$g);
            acc$c_$g = fma(vec4<f32>(weight.z), v$c_$h_2, acc$c_$g);
            acc$c_$g = fma(vec4<f32>(weight.w), v$c_$h_3, acc$c_$g);
#end
        }
#end
#end
    }
#each g QUERIES/PARTS
    if (first_query + mine + $gu <= last_query) {
        let query = first_query + mine + $gu;
        let head = head_of(kv_head, query);
        let row = query / p.group;
        let it = softened[mine + $gu];
        if (n_tiles == 1u) {
            let before = begun(head);
            let factors = factors_of(before.x, it.x);
            let inverse = 1.0 / fma(it.y, factors.y, before.y * factors.x);
#each c COLS
            put_y(row, head, 4u * (four + $cu * THREADS), acc$c_$g * factors.y * inverse);
#end
        } else {
            let part = (row * p.n_heads + head) * n_tiles + own_part;
            let at = part * (V_DIM + 2u);
            if (four == 0u) {
                parts[at] = it.x;
                parts[at + 1u] = it.y;
            }
#each c COLS
            put_part(at + 2u, 4u * (four + $cu * THREADS), acc$c_$g);
#end
        }
    }
#end
}
