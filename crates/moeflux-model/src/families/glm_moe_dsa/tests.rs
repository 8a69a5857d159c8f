//! What configs of the family may say.

use serde_json::json;

use super::super::testing::{check_indexers, check_latent_refused, indexed};

#[test]
fn layers_have_indexers_where_the_config_says_so() {
    check_indexers("glm_moe_dsa", json!({}), 4);
    check_indexers("glm_moe_dsa", json!({"index_topk_freq": 4}), 2);
    check_indexers("glm_moe_dsa", json!({"index_topk_freq": 3, "index_skip_topk_offset": 1}), 2);
    check_indexers("glm_moe_dsa", json!({"index_topk_pattern": "FSSF"}), 2);
    let types = ["full", "shared", "shared", "shared"];
    check_indexers("glm_moe_dsa", json!({"indexer_types": types}), 1);
}

#[test]
fn refuses_what_it_does_not_compute() {
    let glm = |more, message| check_latent_refused("glm_moe_dsa", indexed(more), message);
    let message =
        "index_topk_pattern is \"SFFF\"; it must give the first layer that attends an indexer";
    glm(json!({"index_topk_pattern": "SFFF"}), message);
    let message = "index_topk_pattern is \"FF\"; it must have num_hidden_layers entries";
    glm(json!({"index_topk_pattern": "FF"}), message);
    let message = "index_topk_pattern is \"FXFF\"; \
                   it must hold only \"full\" and \"shared\", or be a text of F and S";
    glm(json!({"index_topk_pattern": "FXFF"}), message);
    let message = "index_head_dim is 3; it must be at least qk_rope_head_dim";
    glm(json!({"index_head_dim": 3}), message);
    let message = "q_lora_rank is null; it must have a value, or be absent for 2048";
    glm(json!({"q_lora_rank": null}), message);
    let message = "layer_types is [\"full_attention\"]; it must hold only \"indexed_attention\"";
    glm(json!({"layer_types": ["full_attention"]}), message);
}
