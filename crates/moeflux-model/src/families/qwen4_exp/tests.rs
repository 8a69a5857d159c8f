//! What configs of the family may say.

use serde_json::{Value, json};

use super::super::testing::{check_refused, check_taken};

#[test]
fn qwen4_exp_refuses_streams_pools_and_tables_that_do_not_fit() {
    let case = "qwen4_exp-hf";
    check_taken(case, "layer_types", Value::Null);
    check_taken(case, "output_gate_type", Value::Null);
    check_taken(case, "ple_layer_ids", json!([]));
    check_taken(case, "eos_token_id", json!(7));
    check_taken(case, "norm_topk_prob", json!(false));
    check_refused(case, "output_gate_type", json!("tanh"), "be null, \"silu\" or \"sigmoid\"");
    check_refused(case, "hc_count", json!(1), "be a whole number from 2 to 64");
    check_refused(case, "indexer_kv_heads", json!(2), "be a whole number from 1 to 1");
    check_refused(case, "indexer_n_heads", Value::Null, "be a whole number from 1 to 4096");
    check_refused(case, "indexer_budget", json!(18), "be divisible by indexer_compress_ratio");
    let rule = "be at least the 8 rotated columns of attention heads";
    check_refused(case, "indexer_head_dim", json!(7), rule);
    let rule = "count layers from 1 to num_hidden_layers";
    check_refused(case, "ple_layer_ids", json!([0]), rule);
    check_refused(case, "ple_layer_ids", json!([3, 5]), rule);
    check_refused(case, "ple_layer_ids", json!([2]), "name no layer with attention");
    let rule = "be divisible by the rows of a token: (ngram_size - 1) * heads_per_ngram";
    check_refused(case, "ple_embed_dim", json!(37), rule);
    let rule = "be a token, or a list of tokens: the first of them ends n-grams";
    check_refused(case, "eos_token_id", Value::Null, rule);
    check_refused(case, "eos_token_id", json!([]), rule);
    check_refused(case, "ngram_size", json!(1), "be a whole number from 2 to 16");
    check_refused(
        case,
        "layer_types",
        json!(["linear_attention", "sliding_attention", "linear_attention", "full_attention"]),
        "hold only \"full_attention\", \"indexed_attention\", \"qwen_sparse_attention\" and \
         \"linear_attention\"",
    );
}
