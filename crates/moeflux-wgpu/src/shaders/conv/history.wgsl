// Keeps the last inputs of a convolution; a thread has one channel.

struct Params {
    channels: u32,
    kept: u32,
    first_row: u32,
    n_rows: u32,
    x_start: u32,
    x_width: u32,
    // Number of the history in its slab.
    history: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> histories: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;

#main_per_element channel p.channels
    let first = p.history * p.kept;
    for (var i = 0u; i < p.kept; i++) {
        let begin = p.n_rows + i;
        var value = 0.0;
        if (begin < p.kept) {
            value = histories[(first + begin) * p.channels + channel];
        } else {
            value = x[(p.first_row + begin - p.kept) * p.x_width + p.x_start + channel];
        }
        histories[(first + i) * p.channels + channel] = value;
    }
}
