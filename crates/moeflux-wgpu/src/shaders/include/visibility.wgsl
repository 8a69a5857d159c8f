// What a kernel of attention knows of rows: which positions they look at, and where
// their outputs go.

const NONE: f32 = -3.0e38;
const TILE: u32 = 64u;

// The rows that look at keys.
struct Seen {
    // The batch's row of the first, and its position.
    first_row: u32,
    position: u32,
    // Of a key head: rows times heads of the group.
    n_queries: u32,
    // Positions from it on are not looked at, or entries of pools.
    to: u32,
    // Rows see up to it also what is after them.
    ahead_to: u32,
}

var<private> seen: Seen;

// Of an output, the first of those that this workgroup has.
var<private> first_column: u32 = 0u;

fn head_of(kv_head: u32, query: u32) -> u32 {
    return kv_head * p.group + query % p.group;
}

// The first position that a row looks at.
fn first_seen(row: u32) -> u32 {
    let end = seen.position + row + 1u;
    if (p.window > 0u && end > p.window) { return end - p.window; }
    return 0u;
}

// After the last position that a row looks at.
fn seen_end(row: u32) -> u32 {
    return min(seen.to, max((seen.position + row + 1u) / p.size, seen.ahead_to));
}

fn is_seen(row: u32, position: u32, start: u32, end: u32) -> bool {
    if (position < start || position >= end) { return false; }
#if MASKED
    let word = chosen[(seen.first_row + row) * p.mask_words + position / 32u];
    return ((word >> (position & 31u)) & 1u) != 0u;
#else
    return true;
#end
}

// Maximum and total before the first tile: a sink takes part in the softmax and
// has no value.
fn begun(head: u32) -> vec2<f32> {
    if (p.has_sinks != 0u) { return vec2<f32>(sinks[head], 1.0); }
    return vec2<f32>(NONE, 0.0);
}

// The output of a query, after its gate.
fn put_y(row: u32, head: u32, i: u32, it: vec4<f32>) {
    let in_head = first_column + i;
    let at = (seen.first_row + row) * p.y_width + p.y_start + head * p.y_stride + in_head;
    let gate_at =
        (seen.first_row + row) * p.gate_width + p.gate_start + head * p.gate_stride + in_head;
    put_one(at, gate_at, i, it.x);
    put_one(at + 1u, gate_at + 1u, i + 1u, it.y);
    put_one(at + 2u, gate_at + 2u, i + 2u, it.z);
    put_one(at + 3u, gate_at + 3u, i + 3u, it.w);
}

fn put_one(at: u32, gate_at: u32, i: u32, it: f32) {
    if (i >= V_DIM) { return; }
    var out = it;
    if (p.has_gate != 0u) { out *= sigmoid(gate[gate_at]); }
    y[at] = out;
}

fn put_part(at: u32, i: u32, it: vec4<f32>) {
    if (i < V_DIM) { parts[at + i] = it.x; }
    if (i + 1u < V_DIM) { parts[at + i + 1u] = it.y; }
    if (i + 2u < V_DIM) { parts[at + i + 2u] = it.z; }
    if (i + 3u < V_DIM) { parts[at + i + 3u] = it.w; }
}

// Where is what a query gathered in the buffers before.
fn state_of(kv_head: u32, query: u32) -> u32 {
    return ((query / p.group) * p.n_heads + head_of(kv_head, query)) * (V_DIM + 2u);
}

fn part_four(at: u32, i: u32) -> vec4<f32> {
    var it = vec4<f32>();
    if (i < V_DIM) { it.x = parts[at + i]; }
    if (i + 1u < V_DIM) { it.y = parts[at + i + 1u]; }
    if (i + 2u < V_DIM) { it.z = parts[at + i + 2u]; }
    if (i + 3u < V_DIM) { it.w = parts[at + i + 3u]; }
    return it;
}
