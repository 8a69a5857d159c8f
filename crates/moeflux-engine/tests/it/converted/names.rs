//! The names that llama.cpp's converter gives to tensors.

const OUTSIDE: &[(&str, &str)] = &[
    ("embed_tokens.weight", "token_embd.weight"),
    ("word_embeddings.weight", "token_embd.weight"),
    ("embed.weight", "token_embd.weight"),
    ("norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
    ("head.weight", "output.weight"),
    ("hc_head_fn", "output_hc_fn.weight"),
    ("hc_head_base", "output_hc_base.weight"),
    ("hc_head_scale", "output_hc_scale.weight"),
    ("hyper_connection_mixer.hc_norm.weight", "output_hc_norm.weight"),
    ("hyper_connection_mixer.input_mix_weight_down.weight", "output_hc_down.weight"),
    ("hyper_connection_mixer.input_mix_weight_up.weight", "output_hc_up.weight"),
];

/// Parts of layers. Endings that are no part of these names stay.
const PARTS: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("attention.query_key_value", "attn_qkv"),
    ("attention.q_proj", "attn_q"),
    ("attention.k_proj", "attn_k"),
    ("attention.v_proj", "attn_v"),
    ("attention.dense", "attn_output"),
    ("attention.query_layernorm", "attn_q_norm"),
    ("attention.key_layernorm", "attn_k_norm"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.k_b", "attn_k_b"),
    ("self_attn.v_b", "attn_v_b"),
    ("self_attn.indexer.wq_b", "indexer.attn_q_b"),
    ("self_attn.indexer.wk", "indexer.attn_k"),
    ("self_attn.indexer.k_norm", "indexer.k_norm"),
    ("self_attn.indexer.weights_proj", "indexer.proj"),
    ("self_attn.indexer.q_proj", "indexer.q_proj"),
    ("self_attn.indexer.k_proj", "indexer.k_proj"),
    ("self_attn.indexer.q_layernorm", "indexer.q_norm"),
    ("self_attn.indexer.k_layernorm", "indexer.k_norm"),
    ("self_attn.indexer.index_kpool_compress_ape", "indexer_compressor_ape.weight"),
    ("self_attn.indexer.index_kpool_compress_gate", "indexer_compressor_gate.weight"),
    ("self_attn.q_conv1d", "ssm_conv1d_q"),
    ("self_attn.k_conv1d", "ssm_conv1d_k"),
    ("self_attn.v_conv1d", "ssm_conv1d_v"),
    ("self_attn.f_a_proj", "ssm_f_a"),
    ("self_attn.f_b_proj", "ssm_f_b"),
    ("self_attn.g_a_proj", "ssm_g_a"),
    ("self_attn.g_b_proj", "ssm_g_b"),
    ("self_attn.b_proj", "ssm_beta"),
    ("self_attn.A_log", "ssm_a"),
    ("self_attn.dt_bias", "ssm_dt.bias"),
    ("self_attn.o_norm", "ssm_norm"),
    ("hc_attn_fn", "hc_attn_fn.weight"),
    ("hc_attn_base", "hc_attn_base.weight"),
    ("hc_attn_scale", "hc_attn_scale.weight"),
    ("hc_ffn_fn", "hc_ffn_fn.weight"),
    ("hc_ffn_base", "hc_ffn_base.weight"),
    ("hc_ffn_scale", "hc_ffn_scale.weight"),
    ("attn_norm", "attn_norm"),
    ("ffn_norm", "ffn_norm"),
    ("attn.wq_a", "attn_q_a"),
    ("attn.q_norm", "attn_q_a_norm"),
    ("attn.wq_b", "attn_q_b"),
    ("attn.wkv", "attn_kv"),
    ("attn.kv_norm", "attn_kv_a_norm"),
    ("attn.wo_a", "attn_output_a"),
    ("attn.wo_b", "attn_output_b"),
    ("attn.attn_sink", "attn_sinks.weight"),
    ("attn.compressor.wkv", "attn_compressor_kv"),
    ("attn.compressor.wgate", "attn_compressor_gate"),
    ("attn.compressor.ape", "attn_compressor_ape.weight"),
    ("attn.compressor.norm", "attn_compressor_norm"),
    ("attn.indexer.wq_b", "indexer.attn_q_b"),
    ("attn.indexer.weights_proj", "indexer.proj"),
    ("attn.indexer.compressor.wkv", "indexer_compressor_kv"),
    ("attn.indexer.compressor.wgate", "indexer_compressor_gate"),
    ("attn.indexer.compressor.ape", "indexer_compressor_ape.weight"),
    ("attn.indexer.compressor.norm", "indexer_compressor_norm"),
    ("ffn.gate", "ffn_gate_inp"),
    ("ffn.gate.bias", "exp_probs_b.bias"),
    ("ffn.gate.tid2eid", "ffn_gate_tid2eid.weight"),
    ("ffn.experts.w1", "ffn_gate_exps.weight"),
    ("ffn.experts.w2", "ffn_down_exps.weight"),
    ("ffn.experts.w3", "ffn_up_exps.weight"),
    ("ffn.shared_experts.w1", "ffn_gate_shexp"),
    ("ffn.shared_experts.w2", "ffn_down_shexp"),
    ("ffn.shared_experts.w3", "ffn_up_shexp"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("attn_hyper_connection.hc_norm", "hc_attn_norm"),
    ("attn_hyper_connection.input_mix_weight_down", "hc_attn_down"),
    ("attn_hyper_connection.input_mix_weight_up", "hc_attn_up"),
    ("attn_hyper_connection.block_inject_weight", "hc_attn_inject"),
    ("mlp_hyper_connection.hc_norm", "hc_ffn_norm"),
    ("mlp_hyper_connection.input_mix_weight_down", "hc_ffn_down"),
    ("mlp_hyper_connection.input_mix_weight_up", "hc_ffn_up"),
    ("mlp_hyper_connection.block_inject_weight", "hc_ffn_inject"),
    ("ple.key_proj", "ple_key"),
    ("ple.value_proj", "ple_value"),
    ("ple.conv1d", "ple_conv1d"),
    ("ple.norm_key", "ple_norm_key"),
    ("ple.norm_query", "ple_norm_query"),
    ("ple.norm_conv", "ple_norm_conv"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.gate.expert_bias", "exp_probs_b.bias"),
    ("mlp.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.expert_bias", "exp_probs_b"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router.gate", "ffn_gate_inp"),
    ("mlp.experts.gate_proj", "ffn_gate_exps.weight"),
    ("mlp.experts.up_proj", "ffn_up_exps.weight"),
    ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
];

/// Blocks of shared experts.
const SHARED: [&str; 3] = ["mlp.shared_experts.", "mlp.shared_expert.", "mlp.shared_mlp."];

/// Architectures whose second norm keeps a name of its own.
const POST_NORM: [&str; 1] = ["glm4moe"];

pub(super) fn name(architecture: &str, canonical: &str) -> String {
    if let Some((_, stored)) = OUTSIDE.iter().find(|pair| pair.0 == canonical) {
        return (*stored).to_owned();
    }
    if canonical.ends_with("ngram_embedding.weight") {
        return "per_layer_token_embd.weight".to_owned();
    }
    let rest = canonical.strip_prefix("layers.").unwrap_or_else(|| panic!("{canonical}"));
    let (layer, part) = rest.split_once('.').unwrap();
    if let Some(part) = SHARED.iter().find_map(|block| part.strip_prefix(block)) {
        let (matrix, ending) = part.split_once("_proj.").unwrap();
        return format!("blk.{layer}.ffn_{matrix}_shexp.{ending}");
    }
    if part == "post_attention_layernorm.weight" && POST_NORM.contains(&architecture) {
        return format!("blk.{layer}.post_attention_norm.weight");
    }
    if let Some((_, stored)) = PARTS.iter().find(|pair| pair.0 == part) {
        return format!("blk.{layer}.{stored}");
    }
    let (stem, ending) = part.rsplit_once('.').unwrap();
    let found = PARTS.iter().find(|pair| pair.0 == stem);
    let (_, stored) = found.unwrap_or_else(|| panic!("{architecture}: {canonical}"));
    format!("blk.{layer}.{stored}.{ending}")
}
