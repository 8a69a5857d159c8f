// Adds experts' outputs to the residual stream, by rank, then the shared one.

struct Params {
    n: u32,
    cols: u32,
    top_k: u32,
    y_start: u32,
    y_width: u32,
    slots_width: u32,
    // (rows, top_k)
    weights: u32,
    shared_start: u32,
    shared_width: u32,
    gate_start: u32,
    gate_width: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> slots: array<f32>;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
@group(0) @binding(4) var<storage, read> shared_out: array<f32>;
@group(0) @binding(5) var<storage, read> gate: array<f32>;

#main_per_element idx p.n
    let col = idx % p.cols;
    let row = idx / p.cols;
    var sum = 0.0;
    for (var rank = 0u; rank < p.top_k; rank++) {
        let slot = row * p.top_k + rank;
        let weight = bitcast<f32>(lists[p.weights + slot]);
        if (weight != 0.0) { sum = fma(slots[slot * p.slots_width + col], weight, sum); }
    }
#if SHARED
    var factor = 1.0;
#if GATED
    factor = sigmoid(gate[row * p.gate_width + p.gate_start]);
#end
    sum = fma(shared_out[row * p.shared_width + p.shared_start + col], factor, sum);
#end
    y[row * p.y_width + p.y_start + col] += sum;
}
