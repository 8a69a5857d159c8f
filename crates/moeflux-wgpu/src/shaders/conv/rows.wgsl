// A causal convolution, then `silu`; a thread has eight rows of a channel.

struct Params {
    n_rows: u32,
    channels: u32,
    first_row: u32,
    x_start: u32,
    x_width: u32,
    y_start: u32,
    y_width: u32,
    // Number of the history in its slab.
    history: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
// (KEPT + 1, channels), the last for the newest input.
@group(0) @binding(3) var<storage, read> weight: array<f32>;
// (KEPT, channels), the oldest first.
@group(0) @binding(4) var<storage, read> histories: array<f32>;
// One a channel, read where BIASED is set.
@group(0) @binding(5) var<storage, read> bias: array<f32>;

const ROWS: u32 = 8u;

// The `i`-th input of a channel, the history's first; after the last, the last.
fn input(i: u32, channel: u32) -> f32 {
    if (i < KEPT) { return histories[(p.history * KEPT + i) * p.channels + channel]; }
    let row = p.first_row + min(i - KEPT, p.n_rows - 1u);
    return x[row * p.x_width + p.x_start + channel];
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let channel = id.x * 256u + thread;
    if (channel >= p.channels) { return; }
    let first = id.y * ROWS;
    var inputs: array<f32, KEPT + ROWS>;
#each i KEPT
    inputs[$i] = input(first + $iu, channel);
#end
#each r 8
    inputs[KEPT + $ru] = input(first + KEPT + $ru, channel);
#end
    var sums: array<f32, ROWS>;
#if BIASED
    let before = bias[channel];
#else
    let before = 0.0;
#end
#each r 8
    sums[$r] = before;
#end
#each t KEPT
    let weight$t = weight[$tu * p.channels + channel];
#each r 8
    sums[$r] = fma(weight$t, inputs[$tu + $ru], sums[$r]);
#end
#end
    let newest = weight[KEPT * p.channels + channel];
#each r 8
    sums[$r] = fma(newest, inputs[KEPT + $ru], sums[$r]);
#end
    let y_at = (p.first_row + first) * p.y_width + p.y_start + channel;
#each r 8
    if (first + $ru < p.n_rows) { y[y_at + $ru * p.y_width] = silu(sums[$r]); }
#end
}
