// A causal convolution, then `silu`; a thread has one channel of a row.

struct Params {
    n: u32,
    channels: u32,
    kernel: u32,
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
// (kernel, channels), the last for the newest input.
@group(0) @binding(3) var<storage, read> weight: array<f32>;
// (kernel - 1, channels), the oldest first.
@group(0) @binding(4) var<storage, read> histories: array<f32>;
// One a channel, read where BIASED is set.
@group(0) @binding(5) var<storage, read> bias: array<f32>;

#main_per_element idx p.n
    let channel = idx % p.channels;
    let row = idx / p.channels;
    let kept = p.kernel - 1u;
    var sum = 0.0;
    if (BIASED != 0u) { sum = bias[channel]; }
    for (var tap = 0u; tap < p.kernel; tap++) {
        let i = row + tap;
        var value = 0.0;
        if (i < kept) {
            value = histories[(p.history * kept + i) * p.channels + channel];
        } else {
            value = x[(p.first_row + i - kept) * p.x_width + p.x_start + channel];
        }
        sum = fma(weight[tap * p.channels + channel], value, sum);
    }
    y[(p.first_row + row) * p.y_width + p.y_start + channel] = silu(sum);
}
