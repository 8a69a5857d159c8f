// A causal convolution of a few rows of some sequences, then `silu`, and what it
// keeps; a thread has one channel of a sequence, whose last KEPT inputs it knows.

struct Params {
    channels: u32,
    x_start: u32,
    x_width: u32,
    y_start: u32,
    y_width: u32,
    // First row, rows, number of the history in its slab.
    spans: array<vec4<u32>, 8>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
// (KEPT + 1, channels), the last for the newest input.
@group(0) @binding(3) var<storage, read> weight: array<f32>;
// (KEPT, channels), the oldest first.
@group(0) @binding(4) var<storage, read_write> histories: array<f32>;
// One a channel, read where BIASED is set.
@group(0) @binding(5) var<storage, read> bias: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let channel = id.x * 64u + thread;
    if (channel >= p.channels) { return; }
    let span = p.spans[id.y];
    let x_at = span.x * p.x_width + p.x_start + channel;
    let y_at = span.x * p.y_width + p.y_start + channel;
    let history = span.z * KEPT * p.channels + channel;
#each t KEPT
    var input$t = histories[history + $tu * p.channels];
    let weight$t = weight[$tu * p.channels + channel];
#end
    let newest = weight[KEPT * p.channels + channel];
    var before = 0.0;
    if (BIASED != 0u) { before = bias[channel]; }
    for (var row = 0u; row < span.y; row++) {
#each t 1
        let input${t+KEPT} = x[x_at + row * p.x_width];
        var sum = before;
#end
#each t KEPT
        sum = fma(weight$t, input$t, sum);
#end
#each t 1
        sum = fma(newest, input${t+KEPT}, sum);
#end
        y[y_at + row * p.y_width] = silu(sum);
#each t KEPT
        input$t = input${t+1};
#end
    }
#each t KEPT
    histories[history + $tu * p.channels] = input$t;
#end
}
