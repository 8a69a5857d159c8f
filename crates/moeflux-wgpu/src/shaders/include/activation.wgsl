// What stands between an expert's first products and its last, for a column of a row of
// `gate_up`, (rows, 2 * n), or (rows, n) where there is no gate. ACTIVATION: which, see `include/common.wgsl`. BIASED: biases of the row's expert are added
// first. ALTERNATES: gates and ups are side by side.

fn activation(row: u32, i: u32, n: u32, expert: u32) -> f32 {
    if (ACTIVATION >= ACTIVATION_RELU2) { return plain_activation(ACTIVATION, gate_up[row * n + i]); }
    let first = row * 2u * n;
    var gate: f32;
    var up: f32;
    if (ALTERNATES != 0u) {
        gate = gate_up[first + 2u * i];
        up = gate_up[first + 2u * i + 1u];
    } else {
        gate = gate_up[first + i];
        up = gate_up[first + n + i];
    }
#if BIASED
    let at = expert * n + i;
    gate += gate_bias[at];
    up += up_bias[at];
#end
    return gated(ACTIVATION, gate, up, p.alpha, p.limit);
}
