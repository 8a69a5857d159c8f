//! What layers of Kimi delta attention have, and those around them.

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

/// Streams of a residual that layers mix.
const STREAMS: usize = 2;

/// Positions of a pool.
const POOL: usize = 2;

/// The keys of models that mix streams and choose pools.
pub(crate) const STREAM_NUMBERS: [(&str, usize); 3] = [
    ("attention.indexer.kpool", POOL),
    ("hyper_connection.count", STREAMS),
    ("hyper_connection.sinkhorn_iterations", 3),
];

/// What mixes the streams in a layer.
pub(crate) fn streams(hidden: usize) -> Vec<(String, Vec<usize>)> {
    let n = STREAMS * (STREAMS + 2);
    let of_half = |half: &str| {
        [
            (format!("hc_{half}_fn.weight"), vec![n, STREAMS * hidden]),
            (format!("hc_{half}_base.weight"), vec![n]),
            (format!("hc_{half}_scale.weight"), vec![3]),
        ]
    };
    ["attn", "ffn"].into_iter().flat_map(of_half).collect()
}

/// What pools of an indexer's keys have.
pub(crate) fn pools(hidden: usize, dim: usize) -> Vec<(String, Vec<usize>)> {
    vec![
        ("indexer_compressor_gate.weight".to_owned(), vec![dim, hidden]),
        ("indexer_compressor_ape.weight".to_owned(), vec![POOL, dim]),
    ]
}
