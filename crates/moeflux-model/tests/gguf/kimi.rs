//! What layers of Kimi delta attention have.

/// Columns of a head.
pub(crate) const HEAD_DIM: usize = 3;

/// Taps of the convolutions.
pub(crate) const KERNEL: usize = 2;

/// The keys of such layers.
pub(crate) const NUMBERS: [(&str, usize); 2] =
    [("ssm.conv_kernel", KERNEL), ("kda.head_dim", HEAD_DIM)];

/// The tensors of the mixer of a layer.
pub(crate) fn mixer(hidden: usize, heads: usize) -> Vec<(String, Vec<usize>)> {
    let cols = heads * HEAD_DIM;
    let mut all = vec![
        ("attn_output.weight".to_owned(), vec![hidden, cols]),
        ("ssm_f_a.weight".to_owned(), vec![HEAD_DIM, hidden]),
        ("ssm_f_b.weight".to_owned(), vec![cols, HEAD_DIM]),
        ("ssm_g_a.weight".to_owned(), vec![HEAD_DIM, hidden]),
        ("ssm_g_b.weight".to_owned(), vec![cols, HEAD_DIM]),
        ("ssm_beta.weight".to_owned(), vec![heads, hidden]),
        ("ssm_a".to_owned(), vec![1, 1, heads, 1]),
        ("ssm_dt.bias".to_owned(), vec![cols]),
        ("ssm_norm.weight".to_owned(), vec![HEAD_DIM]),
    ];
    for part in ["q", "k", "v"] {
        all.push((format!("attn_{part}.weight"), vec![cols, hidden]));
        all.push((format!("ssm_conv1d_{part}.weight"), vec![1, cols, 1, KERNEL]));
    }
    all
}
