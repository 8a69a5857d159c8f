//! What configs of the family may say.

use serde_json::json;

use super::super::testing::check_indexers;

#[test]
fn every_layer_has_an_indexer() {
    check_indexers("deepseek_v32", json!({}), 4);
    check_indexers("deepseek_v32", json!({"index_topk_freq": 4}), 4);
}
