// Rounds what a workgroup of 64 threads has just written to `y`.
#if DIGITS

// A workgroup's 64 columns of a row, from a block on; they begin at `first` of
// what it has written.
fn round_own(thread: u32, row: u32, n_blocks: u32, block: u32, first: u32) {
    let is_inside = thread < 16u;
    let columns = columns_of(thread % 8u);
    let at = first + thread / 8u * 32u + columns.x;
    var v: vec4<f32>;
    if (is_inside) {
        v = vec4<f32>(y[at], y[at + columns.y], y[at + 2u * columns.y], y[at + 3u * columns.y]);
    }
    round_four(thread, row, n_blocks, block + thread / 8u, thread % 8u, v, is_inside);
}
#end
