//! What files of models with a residual of several streams have beyond others.

/// Sizes: streams, columns between the products of gates, heads of indexers and their columns.
const STREAMS: usize = 2;
const RANK: usize = 3;
const INDEX_HEADS: usize = 3;
const INDEX_DIM: usize = 4;

/// Taps of convolutions.
const KERNEL: usize = 4;

/// Of a table of n-grams: its rows, their columns, and all columns of a token.
const TABLE_ROWS: usize = 12;
const TABLE_COLS: usize = 32;
const TABLE_DIM: usize = 2 * TABLE_COLS;

/// Keys of whole numbers.
pub(crate) const NUMBERS: [(&str, usize); 10] = [
    ("hyper_connection.count", STREAMS),
    ("hyper_connection.low_rank", RANK),
    ("attention.indexer.head_count", INDEX_HEADS),
    ("attention.indexer.key_length", INDEX_DIM),
    ("attention.indexer.top_k", 8),
    ("ple.ngram_size", 3),
    ("ple.heads_per_ngram", 1),
    ("ple.conv_kernel", KERNEL),
    ("ple.eos_token_id", 9),
    ("embedding_length_per_layer_input", TABLE_COLS),
];

/// Keys of lists.
pub(crate) const LISTS: [(&str, &[i32]); 5] = [
    ("attention.compress_ratios", &[0, 4]),
    ("ple.layers", &[0]),
    ("ple.layer_multipliers", &[3, 5, 7]),
    ("ple.head_vocab_sizes", &[5, 7]),
    ("ple.head_offsets", &[0, 5]),
];

type Shapes = Vec<(String, Vec<usize>)>;

fn named(all: &[(&str, &[usize])]) -> Shapes {
    all.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
}

/// Tensors outside of layers, for streams of `hidden` columns.
pub(crate) fn outside(hidden: usize) -> Shapes {
    let all = STREAMS * hidden;
    named(&[
        ("per_layer_token_embd.weight", &[TABLE_ROWS, TABLE_COLS]),
        ("output_hc_norm.weight", &[all]),
        ("output_hc_down.weight", &[RANK, all]),
        ("output_hc_up.weight", &[all, RANK]),
    ])
}

/// Tensors of a layer: the first has a table, the others have indexers.
pub(crate) fn layer(layer: usize, hidden: usize) -> Shapes {
    let all = STREAMS * hidden;
    let mut shapes = if layer == 0 {
        named(&[
            ("ple_key.weight", &[all, TABLE_DIM]),
            ("ple_value.weight", &[hidden, TABLE_DIM]),
            ("ple_conv1d.weight", &[all, KERNEL]),
            ("ple_norm_key.weight", &[all]),
            ("ple_norm_query.weight", &[all]),
            ("ple_norm_conv.weight", &[all]),
        ])
    } else {
        named(&[
            ("indexer.q_proj.weight", &[INDEX_HEADS * INDEX_DIM, hidden]),
            ("indexer.k_proj.weight", &[INDEX_DIM, hidden]),
            ("indexer.q_norm.weight", &[INDEX_DIM]),
            ("indexer.k_norm.weight", &[INDEX_DIM]),
        ])
    };
    for half in ["attn", "ffn"] {
        let parts: [(&str, &[usize]); 4] = [
            ("norm", &[all]),
            ("down", &[RANK, all]),
            ("up", &[all, RANK]),
            ("inject", &[STREAMS, all]),
        ];
        let of_half =
            |(part, shape): (&str, &[usize])| (format!("hc_{half}_{part}.weight"), shape.to_vec());
        shapes.extend(parts.map(of_half));
    }
    shapes
}
