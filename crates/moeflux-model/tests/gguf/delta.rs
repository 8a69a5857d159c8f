//! What layers of gated delta nets have.

const K_HEADS: usize = 2;
const V_HEADS: usize = 4;
const DIM: usize = 4;

/// Taps of convolutions, of other recurrent layers too.
pub(crate) const KERNEL: usize = 4;

/// The keys of such layers.
pub(crate) const NUMBERS: [(&str, usize); 5] = [
    ("ssm.conv_kernel", KERNEL),
    ("ssm.state_size", DIM),
    ("ssm.group_count", K_HEADS),
    ("ssm.time_step_rank", V_HEADS),
    ("ssm.inner_size", V_HEADS * DIM),
];

/// The tensors of the mixer of a layer.
pub(crate) fn mixer(hidden: usize, architecture: &str) -> Vec<(String, Vec<usize>)> {
    let (k, v) = (K_HEADS * DIM, V_HEADS * DIM);
    let mut all = vec![
        ("attn_qkv.weight", vec![2 * k + v, hidden]),
        ("attn_gate.weight", vec![v, hidden]),
        ("ssm_conv1d.weight", vec![2 * k + v, KERNEL]),
        ("ssm_a", vec![V_HEADS]),
        ("ssm_dt.bias", vec![V_HEADS]),
        ("ssm_norm.weight", vec![DIM]),
        ("ssm_out.weight", vec![hidden, v]),
    ];
    if architecture == "qwen3next" {
        all.push(("ssm_ba.weight", vec![2 * V_HEADS, hidden]));
    } else {
        all.push(("ssm_alpha.weight", vec![V_HEADS, hidden]));
        all.push(("ssm_beta.weight", vec![V_HEADS, hidden]));
    }
    all.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect()
}
