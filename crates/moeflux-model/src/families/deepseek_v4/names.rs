//! Names of tensors in checkpoints, for those that layers of other families share: as published, and as
//! transformers holds and saves the model.

use moeflux_core::Spelling;

pub(super) const SPELLINGS: &[Spelling] = &[
    Spelling::start("embed.", "embed_tokens."),
    Spelling::start("head.", "lm_head."),
    Spelling::within(".attn.", ".self_attn."),
    Spelling::within(".ffn.", ".mlp."),
    Spelling::within(".attn_norm.", ".input_layernorm."),
    Spelling::within(".ffn_norm.", ".post_attention_layernorm."),
    Spelling::end(".gate.bias", ".gate.e_score_correction_bias"),
    Spelling::within(".w1.", ".gate_proj."),
    Spelling::within(".w2.", ".down_proj."),
    Spelling::within(".w3.", ".up_proj."),
    // As transformers holds the streams.
    Spelling::within(".attn_hc.", ".hc_attn_"),
    Spelling::within(".ffn_hc.", ".hc_ffn_"),
    Spelling::start("hc_head.hc_", "hc_head_"),
    Spelling::end("hc_attn_fn", "hc_attn_fn.weight"),
    Spelling::end("hc_ffn_fn", "hc_ffn_fn.weight"),
    Spelling::end("hc_head_fn", "hc_head_fn.weight"),
    // As it holds what is compressed, and the indexer inside.
    Spelling::within(".compressor.indexer.scorer.", ".indexer."),
    Spelling::within(".compressor.indexer.q_b_proj.", ".indexer.wq_b."),
    Spelling::within(".compressor.indexer.", ".indexer.compressor."),
    Spelling::within(".compressor.kv_norm.", ".compressor.norm."),
    Spelling::within(".compressor.gate_proj.", ".compressor.wgate."),
    Spelling::end(".compressor.position_bias", ".compressor.ape"),
    Spelling::end(".self_attn.sinks", ".self_attn.attn_sink"),
    Spelling::within(".q_a_proj.", ".wq_a."),
    Spelling::within(".q_a_norm.", ".q_norm."),
    Spelling::within(".q_b_proj.", ".wq_b."),
    Spelling::within(".kv_proj.", ".wkv."),
    Spelling::within(".o_a_proj.", ".wo_a."),
    Spelling::within(".o_b_proj.", ".wo_b."),
    // As it saves one of the norms, whose name it takes for that of another.
    Spelling::within(".self_attn.norm.", ".self_attn.kv_norm."),
];
