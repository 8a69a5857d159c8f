// What stands between an expert's first two products and its third, for a column of a row of
// `gate_up`, (rows, 2 * n). CLAMPED: with limits. BIASED: biases of the row's expert are added
// first. ALTERNATES: gates and ups are side by side.

fn activation(row: u32, i: u32, n: u32, expert: u32) -> f32 {
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
    if (CLAMPED != 0u) {
        // Comparisons that let what is not a number pass.
        if (gate > p.limit) { gate = p.limit; }
        if (up > p.limit) { up = p.limit; }
        if (up < -p.limit) { up = -p.limit; }
        return gate * sigmoid(p.alpha * gate) * (up + 1.0);
    }
    return silu(gate) * up;
}
