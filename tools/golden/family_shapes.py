"""The cases of make_families.py: config.json as the families' checkpoints publish it, with small odd numbers."""

import math
import re

TOKENS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
COMMON = dict(hidden_act="silu", max_position_embeddings=4096, tie_word_embeddings=False, torch_dtype="bfloat16", use_cache=True, **TOKENS)
YARN = dict(beta_fast=32, beta_slow=1, factor=40, mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=4096, type="yarn")
GPT_YARN = dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096, rope_type="yarn", truncate=False)
SIGMOID = dict(scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True)
FP8 = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[128, 128])
EXPERTS_FP8 = dict(FP8, modules_to_not_convert=["re:^(?!.*mlp\\.experts\\.).*"])
MXFP4 = dict(modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], quant_method="mxfp4")

# Families whose routers choose by sigmoids, or by biased probabilities
BY_SIGMOID = (
    "deepseek_v3", "deepseek_v32", "deepseek_v4", "ernie4_5_moe", "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm5_next", "glm_moe_dsa", "hy_v3", "kimi_k25", "kimi_linear",
    "minimax_m2", "nemotron_h", "solar_open")
# Names of modules of transformers, and those that are published
RENAMED = {
    "kimi_k25": [(r"^model\.language_model\.", "language_model.model."), (r"^lm_head\.", "language_model.lm_head.")],
    "kimi_linear": [(r"\.forget_gate\.", "."), (r"\.mlp\.(?=(experts|gate|shared_experts)\.)", ".block_sparse_moe.")],
    "glm5_next": [(r"\.forget_gate\.", "."), (r"\.(attn|ffn)_hc\.", r".hc_\1_")],
    "deepseek_v4": [
        (r"^model\.embed_tokens\.", "embed."), (r"^lm_head\.", "head."), (r"^model\.hc_head\.hc_", "hc_head_"), (r"^model\.", ""), (r"\.self_attn\.", ".attn."),
        (r"\.mlp\.", ".ffn."), (r"\.input_layernorm\.", ".attn_norm."), (r"\.post_attention_layernorm\.", ".ffn_norm."), (r"\.(attn|ffn)_hc\.", r".hc_\1_"),
        (r"\.sinks$", ".attn_sink"), (r"\.q_a_norm\.", ".q_norm."), (r"\.compressor\.indexer\.(scorer\.)?(?=(q_b_proj|weights_proj)\.)", ".indexer."),
        (r"\.compressor\.indexer\.", ".indexer.compressor."), (r"(?<=\.compressor)\.kv_norm\.", ".norm."), (r"(?<=\.compressor)\.gate_proj\.", ".wgate."),
        (r"\.position_bias$", ".ape"), (r"\.(q_a|q_b|kv|o_a|o_b)_proj\.", lambda m: f".w{m[1]}."), (r"\.e_score_correction_bias$", ".bias"),
        (r"\.shared_experts\.gate_proj\.", ".shared_experts.w1."), (r"\.shared_experts\.down_proj\.", ".shared_experts.w2."),
        (r"\.shared_experts\.up_proj\.", ".shared_experts.w3.")],
    "hy_v3": [(r"\.mlp\.gate\.weight$", ".mlp.router.gate.weight"), (r"\.mlp\.e_score_correction_bias$", ".mlp.expert_bias"),
              (r"\.mlp\.shared_experts\.", ".mlp.shared_mlp.")],
    "granitemoe": [(r"\.experts\.gate_up_proj$", ".input_linear.weight"), (r"\.experts\.down_proj$", ".output_linear.weight"),
                   (r"\.router\.weight$", ".router.layer.weight")],
    "ernie4_5_moe": [(r"\.mlp\.gate\.moe_statics\.", ".mlp.moe_statics.")],
    "nemotron_h": [(r"^model\.", "backbone.")],
    "exaone_moe": [(r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.e_score_correction_bias")],
}
# Published names, and those that `save_pretrained` makes of them
SAVED = {"deepseek_v4": [
    (r"^embed\.", "model.embed_tokens."), (r"^hc_head_", "model.hc_head.hc_"), (r"^(layers|norm)\.", r"model.\1."), (r"\.attn\.kv_norm\.", ".attn.norm.")]}
STAYS_F32 = ("e_score_correction_bias", "expert_bias", "ffn.gate.bias", "attn_sink", ".ape")
TIED = ("gemma4", "gemma4_text")                     # the head is the embedding, whose rows are scaled
FUSED = (*TIED, "gpt_oss", "qwen4_exp")                           # published with one tensor for all experts
SPREADS = {                                          # deviation and mean
    "dt_bias": (1.0, -3.0), "sinks": (1.0, 0.0), "D": (0.3, 1.0), "base": (0.5, 0.0), "scale": (0.3, 1.0), "hc_base": (0.5, 0.0), "hc_scale": (0.3, 1.0),
    "position_bias": (0.7, 0.0)}
LONG_STEPS = (0.5, -1.0)                             # of nemotron_h's dt_bias: transformers' prefill makes no step shorter than time_step_min, its decoding does
VISION = r"(model\.)?(visual|vision_tower|mm_projector|embed_vision)\."


def expert_gain(family, part):
    """By how much a matrix of an expert makes its input larger."""
    if part == "down_proj":
        return 0.5 if family in BY_SIGMOID else 0.4 if family == "gpt_oss" else 1.2
    return 3.0 if family == "gpt_oss" else 1.2           # large enough to reach the clamp


def gemma_spread(name, fan_in):
    """Deviation and mean of a weight of Gemma 4, where they are not those of other families."""
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0.1, 0.6                                  # nothing else scales the scores
    if "embed_tokens" in name:
        return 2.0 / math.sqrt(fan_in), 0.0              # multiplied by the root of the hidden size, and the head
    if name.endswith("layer_scalar"):
        return 0.1, 0.8
    if name.endswith(("router.scale", "router.per_expert_scale")):
        return 0.3, 1.0
    if name.endswith("router.proj.weight"):
        return 3.0, 0.0                                  # its input is divided by the root of its size
    return None


def config(family, architecture, base, **over):
    return {"architectures": [architecture], "model_type": family, **COMMON, **base, **over}


def qwen3_moe(**over):
    return config("qwen3_moe", "Qwen3MoeForCausalLM", dict(
        attention_bias=False, decoder_sparse_step=1, head_dim=24, hidden_size=40, intermediate_size=60, max_window_layers=3, mlp_only_layers=[],
        moe_intermediate_size=12, norm_topk_prob=True, num_attention_heads=4, num_experts=10, num_experts_per_tok=3, num_hidden_layers=3,
        num_key_value_heads=2, rms_norm_eps=1e-06, rope_scaling=None, rope_theta=1000000.0, sliding_window=None, use_sliding_window=False,
        vocab_size=97), **over)


def mixtral(**over):
    return config("mixtral", "MixtralForCausalLM", dict(
        hidden_size=48, intermediate_size=28, num_attention_heads=6, num_experts_per_tok=2, num_hidden_layers=3, num_key_value_heads=2,
        num_local_experts=6, output_router_logits=False, rms_norm_eps=1e-05, rope_theta=1000000.0, sliding_window=None, vocab_size=98), **over)


def olmoe(**over):
    return config("olmoe", "OlmoeForCausalLM", dict(
        attention_bias=False, clip_qkv=None, hidden_size=40, intermediate_size=12, norm_topk_prob=False, num_attention_heads=4, num_experts=10,
        num_experts_per_tok=3, num_hidden_layers=3, num_key_value_heads=2, output_router_logits=False, rms_norm_eps=1e-05, rope_scaling=None,
        rope_theta=10000.0, vocab_size=97), **over)


def granitemoe(**over):
    return config("granitemoe", "GraniteMoeForCausalLM", dict(
        attention_bias=False, attention_multiplier=0.4, embedding_multiplier=3.0, hidden_size=40, intermediate_size=12, logits_scaling=1.25,
        num_attention_heads=4, num_experts_per_tok=3, num_hidden_layers=3, num_key_value_heads=2, num_local_experts=10, output_router_logits=False,
        residual_multiplier=0.5, rms_norm_eps=1e-06, rope_scaling=None, rope_theta=10000.0, vocab_size=99), **over)


def mla(**over):
    return {**dict(kv_lora_rank=20, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=28, qk_nope_head_dim=12, qk_rope_head_dim=16,
                   v_head_dim=10), **over}


def deepseek_v3(**over):
    return config("deepseek_v3", "DeepseekV3ForCausalLM", dict(
        attention_bias=False, ep_size=1, first_k_dense_replace=1, hidden_size=56, intermediate_size=44, moe_intermediate_size=10, moe_layer_freq=1,
        n_group=4, n_routed_experts=12, n_shared_experts=1, num_experts_per_tok=4, num_hidden_layers=3, num_nextn_predict_layers=1,
        rms_norm_eps=1e-06, rope_scaling=YARN, rope_theta=10000, routed_scaling_factor=2.5, topk_group=2, vocab_size=97, **SIGMOID, **mla()), **over)


def deepseek_v2(**over):
    return config("deepseek_v2", "DeepseekV2ForCausalLM", dict(
        attention_bias=False, aux_loss_alpha=0.001, ep_size=1, first_k_dense_replace=1, hidden_size=54, intermediate_size=44, moe_intermediate_size=10,
        moe_layer_freq=1, n_group=4, n_routed_experts=12, n_shared_experts=2, norm_topk_prob=False, num_experts_per_tok=4, num_hidden_layers=3,
        rms_norm_eps=1e-05, rope_scaling=YARN, rope_theta=10000, routed_scaling_factor=16.0, scoring_func="softmax", seq_aux=True, topk_group=2,
        topk_method="group_limited_greedy", vocab_size=97, **mla()), **over)


def qwen2_moe(**over):
    return config("qwen2_moe", "Qwen2MoeForCausalLM", dict(
        decoder_sparse_step=1, hidden_size=48, intermediate_size=52, max_window_layers=21, mlp_only_layers=[], moe_intermediate_size=12,
        norm_topk_prob=False, num_attention_heads=6, num_experts=10, num_experts_per_tok=4, num_hidden_layers=3, num_key_value_heads=2,
        rms_norm_eps=1e-06, rope_theta=1000000, router_aux_loss_coef=0.001, shared_expert_intermediate_size=20, sliding_window=32768,
        use_sliding_window=False, vocab_size=98), **over)


def minimax_m2(**over):
    return config("minimax_m2", "MiniMaxM2ForCausalLM", dict(
        attn_type_list=[1, 1, 1], head_dim=16, hidden_size=40, intermediate_size=14, mtp_transformer_layers=1, num_attention_heads=6,
        num_experts_per_tok=3, num_hidden_layers=3, num_key_value_heads=2, num_local_experts=10, num_mtp_modules=3, output_router_logits=False,
        qk_norm_type="per_layer", rms_norm_eps=1e-06, rope_theta=5000000, rotary_dim=8, scoring_func="sigmoid", shared_intermediate_size=0,
        sliding_window=None, use_mtp=True, use_qk_norm=True, use_routing_bias=True, vocab_size=99), **over)


def glm4_moe(**over):
    return config("glm4_moe", "Glm4MoeForCausalLM", dict(
        attention_bias=True, first_k_dense_replace=1, head_dim=16, hidden_size=40, intermediate_size=52, moe_intermediate_size=12, n_group=1,
        n_routed_experts=10, n_shared_experts=1, norm_topk_prob=True, num_attention_heads=6, num_experts_per_tok=3, num_hidden_layers=3,
        num_key_value_heads=2, num_nextn_predict_layers=1, partial_rotary_factor=0.5, rms_norm_eps=1e-05, rope_scaling=None, rope_theta=1000000,
        routed_scaling_factor=2.5, topk_group=1, use_qk_norm=True, vocab_size=96), **over)


def glm4_moe_lite(**over):
    return config("glm4_moe_lite", "Glm4MoeLiteForCausalLM", dict(
        attention_bias=False, first_k_dense_replace=1, hidden_size=40, intermediate_size=60, moe_intermediate_size=14, n_group=1, n_routed_experts=10,
        n_shared_experts=1, num_experts_per_tok=3, num_hidden_layers=3, num_nextn_predict_layers=1, partial_rotary_factor=1.0, rms_norm_eps=1e-05,
        rope_scaling=None, rope_theta=1000000, routed_scaling_factor=1.8, topk_group=1, topk_method="noaux_tc", norm_topk_prob=True, vocab_size=98,
        **mla(qk_nope_head_dim=20, v_head_dim=24)), **over)


def qwen3_next(**over):
    return config("qwen3_next", "Qwen3NextForCausalLM", dict(
        attention_bias=False, decoder_sparse_step=1, full_attention_interval=2, head_dim=16, hidden_size=40, intermediate_size=60,
        linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=6, linear_value_head_dim=12, mlp_only_layers=[],
        moe_intermediate_size=12, norm_topk_prob=True, num_attention_heads=6, num_experts=10, num_experts_per_tok=3, num_hidden_layers=3,
        num_key_value_heads=2, partial_rotary_factor=0.25, rms_norm_eps=1e-06, rope_scaling=None, rope_theta=10000000,
        shared_expert_intermediate_size=20, vocab_size=97), **over)


def gpt_oss(**over):
    return config("gpt_oss", "GptOssForCausalLM", dict(
        attention_bias=True, experts_per_token=3, head_dim=16, hidden_size=40, initial_context_length=4096, intermediate_size=20,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], num_attention_heads=6, num_experts_per_tok=3, num_hidden_layers=3,
        num_key_value_heads=2, num_local_experts=6, output_router_logits=False, rms_norm_eps=1e-05, rope_scaling=GPT_YARN, rope_theta=150000,
        sliding_window=20, swiglu_limit=7.0, vocab_size=97), **over)


def deepseek_v32(**over):
    return config("deepseek_v32", "DeepseekV32ForCausalLM", dict(
        attention_bias=False, ep_size=1, first_k_dense_replace=1, hidden_size=40, index_head_dim=24, index_n_heads=10, index_topk=20,
        intermediate_size=44, moe_intermediate_size=12, moe_layer_freq=1, n_group=2, n_routed_experts=10, n_shared_experts=1, num_experts_per_tok=3,
        num_hidden_layers=3, num_nextn_predict_layers=1, rms_norm_eps=1e-06, rope_scaling=YARN, rope_theta=10000, routed_scaling_factor=2.5,
        topk_group=1, vocab_size=97, **SIGMOID, **mla()), **over)


def deepseek_v4(**over):
    return config("deepseek_v4", "DeepseekV4ForCausalLM", dict(
        attention_bias=False, compress_ratios=[0, 16, 4, 16, 4, 0], compress_rope_theta=160000, hc_eps=1e-06, hc_mult=4, hc_sinkhorn_iters=20, head_dim=20,
        hidden_size=40, index_head_dim=12, index_n_heads=11, index_topk=5, moe_intermediate_size=12, n_routed_experts=7, n_shared_experts=1,
        norm_topk_prob=True, num_attention_heads=6, num_experts_per_tok=3, num_hash_layers=2, num_hidden_layers=5, num_key_value_heads=1,
        num_nextn_predict_layers=1, o_groups=2, o_lora_rank=14, q_lora_rank=18, qk_rope_head_dim=8, rms_norm_eps=1e-06,
        rope_scaling=dict(beta_fast=32, beta_slow=1, factor=16, original_max_position_embeddings=64, type="yarn"), rope_theta=10000,
        routed_scaling_factor=1.5, scoring_func="sqrtsoftplus", sliding_window=16, swiglu_limit=3.0, topk_method="noaux_tc", vocab_size=97), **over)


def saved(tensors, family):
    """The names that transformers gives when it saves the model."""
    def name(old):
        for pattern, new in SAVED[family]:
            old = re.sub(pattern, new, old)
        return old
    return {name(k): v for k, v in tensors.items()}


def spelled(config):
    """A published config with the keys that transformers reads: its own know only the published rates of compressors."""
    if "compress_ratios" not in config:
        return config
    ratios, dense = config["compress_ratios"][:config["num_hidden_layers"]], "sliding_attention"
    kinds = {0: dense, 4: "compressed_sparse_attention"}
    heavy = next((ratio for ratio in ratios if ratio not in kinds), 128)
    kinds[heavy] = "heavily_compressed_attention"
    rates = {kind: ratio for ratio, kind in kinds.items() if ratio}
    return {k: v for k, v in config.items() if k != "compress_ratios"} | dict(layer_types=[kinds[r] for r in ratios], compress_rates=rates)


def glm_moe_dsa(**over):
    return config("glm_moe_dsa", "GlmMoeDsaForCausalLM", dict(
        attention_bias=False, ep_size=1, first_k_dense_replace=1, head_dim=16, hidden_size=40, index_head_dim=24, index_n_heads=10, index_topk=17,
        indexer_rope_interleave=True, intermediate_size=44, moe_intermediate_size=12, moe_layer_freq=1, n_group=1, n_routed_experts=10,
        n_shared_experts=1, num_experts_per_tok=3, num_hidden_layers=3, num_nextn_predict_layers=1, rms_norm_eps=1e-05, rope_interleave=True,
        rope_parameters=dict(rope_theta=1000000, rope_type="default"), routed_scaling_factor=2.5, topk_group=1, vocab_size=99, **SIGMOID,
        **mla(qk_nope_head_dim=20, v_head_dim=24)), **over)


def nested(family, architecture, text, vision, **over):
    """The config of a model that also sees, around that of its language model."""
    rest = dict(tie_word_embeddings=False, torch_dtype="bfloat16")
    return {"architectures": [architecture], "model_type": family, **rest, **over, "text_config": text, "vision_config": vision}


def kimi_k25(**over):
    text = deepseek_v3(
        model_type="kimi_k2", hidden_size=40, first_k_dense_replace=1, n_group=1, topk_group=1, n_routed_experts=12, num_experts_per_tok=3,
        num_nextn_predict_layers=0, rms_norm_eps=1e-05, rope_scaling=dict(YARN, factor=64.0), rope_theta=50000.0, routed_scaling_factor=2.827, **over)
    vision = dict(hidden_size=16, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1, patch_size=4, pos_emb_height=4, pos_emb_time=2,
                  pos_emb_width=4)
    return nested("kimi_k25", "KimiK25ForConditionalGeneration", text, vision, media_placeholder_token_id=90, projection_hidden_size=16)


def hy_v3(**over):
    return config("hy_v3", "HYV3ForCausalLM", dict(
        enable_lm_head_fp32=True, enable_moe_fp32_combine=False, expert_hidden_dim=12, first_k_dense_replace=1, head_dim=16, hidden_size=40,
        intermediate_size=52, moe_intermediate_size=12, moe_router_enable_expert_bias=True, moe_router_use_sigmoid=True, num_attention_heads=6,
        num_experts=10, num_experts_per_tok=3, num_hidden_layers=3, num_key_value_heads=2, num_nextn_predict_layers=1, num_shared_experts=1, qk_norm=True,
        rms_norm_eps=1e-05, rope_parameters=dict(rope_theta=11158840.0, rope_type="default"), route_norm=True, router_scaling_factor=2.826,
        vocab_size=98), **over)


def qwen3_vl_moe(**over):
    text = qwen3_moe(
        model_type="qwen3_vl_moe_text", rope_theta=5000000, rope_scaling=dict(mrope_interleaved=True, mrope_section=[4, 4, 4], rope_type="default"), **over)
    for key in ("max_window_layers", "sliding_window", "use_sliding_window"):
        del text[key]
    vision = dict(deepstack_visual_indexes=[0], depth=1, hidden_size=16, intermediate_size=16, num_heads=2, num_position_embeddings=16, out_hidden_size=40,
                  patch_size=4)
    return nested("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", text, vision, image_token_id=95, video_token_id=96, vision_start_token_id=93,
                  vision_end_token_id=94)


def qwen4_exp(**over):
    base = dict(
        attention_bias=False, eos_token_id=[11, 5], hc_count=3, hc_lowrank=12, head_dim=16, heads_per_ngram=3, hidden_size=40, indexer_budget=20,
        indexer_compress_ratio=4, indexer_head_dim=24, indexer_kv_heads=1, indexer_n_heads=10,
        layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"], linear_conv_kernel_dim=4, linear_key_head_dim=8,
        linear_num_key_heads=2, linear_num_value_heads=6, linear_value_head_dim=12, make_ngram_vocab_size_divisible_by=12, moe_intermediate_size=12,
        mtp_num_hidden_layers=1, ngram_size=3, ngram_vocab_size_base=53, norm_topk_prob=True, num_attention_heads=6, num_experts=10,
        num_experts_per_tok=3, num_hidden_layers=4, num_key_value_heads=2, output_gate_type="sigmoid", ple_conv_kernel_size=4, ple_embed_dim=36,
        ple_layer_ids=[1, 3], rms_norm_eps=1e-06, rope_parameters=dict(
            mrope_interleaved=True, mrope_section=[2, 1, 1], partial_rotary_factor=0.5, rope_theta=10000000, rope_type="default"),
        seed=1234, shared_expert_intermediate_size=20, split_ngram_parts=3, vocab_size=97)
    text = dict(model_type="qwen4_exp_text", **{**COMMON, **base, **over})
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, num_position_embeddings=16, out_hidden_size=40, patch_size=4)
    return nested("qwen4_exp", "Qwen4ExpForConditionalGeneration", text, vision, image_token_id=95, video_token_id=96, vision_start_token_id=93,
                  vision_end_token_id=94)


def gemma4_text(**over):
    rope = dict(full_attention=dict(partial_rotary_factor=0.25, rope_theta=1000000.0, rope_type="proportional"),
                sliding_attention=dict(rope_theta=10000.0, rope_type="default"))
    base = dict(
        architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", attention_bias=False, attention_k_eq_v=True, enable_moe_block=True,
        expert_intermediate_size=None, final_logit_softcapping=10.0, global_head_dim=24, head_dim=16, hidden_activation="gelu_pytorch_tanh",
        hidden_size=40, hidden_size_per_layer_input=0, intermediate_size=28, max_position_embeddings=4096, moe_intermediate_size=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"], num_attention_heads=4, num_experts=10,
        num_global_key_value_heads=1, num_hidden_layers=4, num_key_value_heads=2, num_kv_shared_layers=0, rms_norm_eps=1e-06, rope_parameters=rope,
        sliding_window=20, tie_word_embeddings=True, top_k_experts=3, use_bidirectional_attention="vision", use_cache=True, use_double_wide_mlp=False,
        vocab_size=97, vocab_size_per_layer_input=97, torch_dtype="bfloat16", **{**TOKENS, "pad_token_id": 0})
    return {**base, **over}


def gemma4(**over):
    vision = dict(head_dim=8, hidden_size=16, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1, num_key_value_heads=2, patch_size=4,
                  position_embedding_size=16)
    tokens = dict(                                                               # past the vocabulary
        audio_token_id=258881, boa_token_id=256000, boi_token_id=255999, eoi_token_id=258882, image_token_id=258880, video_token_id=258884)
    return dict(architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", audio_config=None, text_config=gemma4_text(**over),
                tie_word_embeddings=True, torch_dtype="bfloat16", vision_config=vision, **tokens)


def solar_open(**over):
    return config("solar_open", "SolarOpenForCausalLM", dict(
        first_k_dense_replace=0, head_dim=16, hidden_size=40, intermediate_size=52, moe_intermediate_size=12, n_routed_experts=10, n_shared_experts=1,
        norm_topk_prob=True, num_attention_heads=6, num_experts_per_tok=3, num_hidden_layers=3, num_key_value_heads=2, partial_rotary_factor=1.0,
        rms_norm_eps=1e-05, rope_scaling=dict(factor=2.0, original_max_position_embeddings=2048, type="yarn"), rope_theta=1000000,
        routed_scaling_factor=1.0, vocab_size=97), **over)


def exaone_moe(**over):
    return config("exaone_moe", "ExaoneMoeForCausalLM", dict(
        first_k_dense_replace=1, head_dim=16, hidden_size=40, intermediate_size=52, is_moe_layer=[False, True, True],
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], moe_intermediate_size=12, n_group=1, norm_topk_prob=True,
        num_attention_heads=6, num_experts=10, num_experts_per_tok=3, num_hidden_layers=3, num_key_value_heads=2, num_nextn_predict_layers=1,
        num_shared_experts=1, rms_norm_eps=1e-05, rope_scaling=None, rope_theta=1000000, routed_scaling_factor=2.5, scoring_func="sigmoid",
        sliding_window=20, sliding_window_pattern="LGL", topk_group=1, topk_method="noaux_tc", vocab_size=99), **over)


def kimi_linear(**over):
    linear = dict(full_attn_layers=[3], kda_layers=[1, 2, 4], num_heads=3, head_dim=12, short_conv_kernel_size=4)
    base = {**COMMON, **dict(
        first_k_dense_replace=1, hidden_size=40, intermediate_size=52, kv_lora_rank=20, linear_attn_config=linear, mla_use_nope=True,
        model_max_length=COMMON["max_position_embeddings"], moe_intermediate_size=12, moe_layer_freq=1, moe_renormalize=True,
        moe_router_activation_func="sigmoid", num_attention_heads=4, num_expert_group=1, num_experts=10, num_experts_per_token=3,
        num_hidden_layers=4, num_key_value_heads=4, num_shared_experts=1, q_lora_rank=None, qk_nope_head_dim=10, qk_rope_head_dim=6,
        rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000.0, routed_scaling_factor=2.446, topk_group=1, use_grouped_topk=True,
        v_head_dim=14, vocab_size=97)}
    del base["max_position_embeddings"]
    return {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", **base, **over}


def glm5_next(**over):
    linear = dict(full_attn_layers=[3], gate_lower_bound=-5.0, head_dim=12, kda_layers=[0, 1, 2], num_heads=4, short_conv_kernel_size=4)
    text = dict(
        model_type="glm5_next_text", attention_bias=False, first_k_dense_replace=1, hc_eps=1e-06, hc_mult=4, hc_sinkhorn_iters=20,
        hidden_act="silu", hidden_size=40, index_head_dim=12, index_kpool=4, index_kpool_always_select_tail=True, index_n_heads=3, index_topk=16,
        indexer_types=["full"] * 4, intermediate_size=52, kv_lora_rank=20, layer_types=["linear_attention"] * 3 + ["deepseek_sparse_attention"],
        linear_attn_config=linear, max_position_embeddings=4096, mhc=True, mla_use_nope=True, mlp_layer_types=["dense"] + ["sparse"] * 3,
        moe_intermediate_size=12, n_group=1, n_routed_experts=10, n_shared_experts=1, norm_topk_prob=True, num_attention_heads=4,
        num_experts_per_tok=3, num_hidden_layers=4, num_key_value_heads=4, q_lora_rank=16, qk_nope_head_dim=14, qk_rope_head_dim=0,
        pad_token_id=None, rms_norm_eps=1e-05, routed_scaling_factor=2.5, scoring_func="sigmoid", swiglu_limit=10.0, tie_word_embeddings=False, topk_group=1,
        topk_method="noaux_tc", v_head_dim=14, vocab_size=97)
    vision = dict(
        attention_bias=True, depth=1, hidden_act="silu", hidden_size=16, image_size=16, in_channels=3, intermediate_size=16,
        num_heads=2, out_hidden_size=40, patch_size=4, projection_intermediate_size=16, spatial_merge_size=2, swiglu_limit=10.0, temporal_patch_size=2)
    return nested("glm5_next", "Glm5NextForConditionalGeneration", {**text, **over}, vision, image_token_id=92, video_token_id=93,
                  image_start_token_id=90, image_end_token_id=91, video_start_token_id=94, video_end_token_id=95)


def nemotron_h(**over):
    base = {**COMMON, **dict(
        attention_bias=False, chunk_size=16, conv_kernel=4, expand=2, head_dim=12, hidden_size=40, hybrid_override_pattern="MEM*EM-E",
        intermediate_size=28, layer_norm_epsilon=1e-05, mamba_head_dim=12, mamba_hidden_act="silu", mamba_num_heads=6, mamba_proj_bias=False,
        mlp_bias=False, mlp_hidden_act="relu2", moe_intermediate_size=12, moe_shared_expert_intermediate_size=20, n_group=1, n_groups=2,
        n_routed_experts=10, n_shared_experts=1, norm_eps=1e-05, norm_topk_prob=True, num_attention_heads=6, num_experts_per_tok=3,
        num_hidden_layers=8, num_key_value_heads=2, partial_rotary_factor=1.0, rope_theta=10000, routed_scaling_factor=2.5, sliding_window=None,
        ssm_state_size=10, time_step_floor=0.0001, time_step_max=0.1, time_step_min=0.001, topk_group=1,
        use_bias=False, use_conv_bias=True, vocab_size=97)}
    del base["hidden_act"]
    return {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", **base, **over}


def ernie4_5_moe(**over):
    return config("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", dict(
        hidden_size=40, intermediate_size=52, moe_capacity=[64, 64, 64], moe_intermediate_size=12, moe_k=3, moe_layer_end_index=3,
        moe_layer_interval=1, moe_layer_start_index=1, moe_num_experts=10, moe_num_shared_experts=2, moe_use_aux_free=True,
        num_attention_heads=6, num_hidden_layers=3, num_key_value_heads=2, rms_norm_eps=1e-05, rope_scaling=None, rope_theta=500000,
        use_bias=False, vocab_size=98), **over)


def glm4v_moe(**over):
    text = glm4_moe(
        model_type="glm4v_moe_text", rope_scaling=None, rope_parameters=dict(
            mrope_section=[2, 1, 1], partial_rotary_factor=0.5, rope_theta=10000.0, rope_type="default"), routed_scaling_factor=1.0, **over)
    for key in ("partial_rotary_factor", "rope_scaling", "rope_theta", "use_qk_norm", "num_nextn_predict_layers"):
        del text[key]
    vision = dict(depth=1, hidden_size=16, image_size=16, intermediate_size=16, num_heads=2, out_hidden_size=40, patch_size=4)
    return nested("glm4v_moe", "Glm4vMoeForConditionalGeneration", text, vision, image_token_id=92, video_token_id=93)


# format: how the large weights are stored (BF16 where left out); prediction: tensors of a module to be skipped
HF = {
    "qwen3_moe-hf": dict(config=qwen3_moe()),
    "mixtral-hf": dict(config=mixtral()),
    "olmoe-hf": dict(config=olmoe()),
    # a large epsilon, for its place among the factors
    "granitemoe-hf": dict(config=granitemoe(rms_norm_eps=0.05)),
    "deepseek_v3-hf": dict(config=deepseek_v3(), prediction=True),
    "deepseek_v3-plain": dict(config=deepseek_v3(
        q_lora_rank=None, n_group=1, topk_group=1, rope_scaling=None, n_shared_experts=2, n_routed_experts=7, num_experts_per_tok=3,
        first_k_dense_replace=0, num_hidden_layers=2, moe_intermediate_size=14, routed_scaling_factor=2.446, num_nextn_predict_layers=0)),
    "deepseek_v2-hf": dict(config=deepseek_v2()),
    # Lite: no low-rank queries, no groups
    "deepseek_v2-lite": dict(config=deepseek_v2(
        q_lora_rank=None, n_group=1, topk_group=1, topk_method="greedy", routed_scaling_factor=1.0, num_hidden_layers=2,
        n_routed_experts=7, num_experts_per_tok=3, rope_scaling=dict(YARN, mscale=0.707, mscale_all_dim=0.707, original_max_position_embeddings=64))),
    "qwen2_moe-hf": dict(config=qwen2_moe()),
    # dense layers, weights that add up to 1, the head is the embedding
    "qwen2_moe-dense": dict(config=qwen2_moe(
        decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True, num_hidden_layers=4, hidden_size=36, num_experts=7,
        num_experts_per_tok=2, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)),
    "minimax_m2-hf": dict(config=minimax_m2()),
    "glm4_moe-hf": dict(config=glm4_moe(), prediction=True),
    "glm4_moe-air": dict(config=glm4_moe(use_qk_norm=False, n_group=2, num_hidden_layers=2, routed_scaling_factor=1.0)),
    "glm4_moe_lite-hf": dict(config=glm4_moe_lite()),
    "qwen3_next-hf": dict(config=qwen3_next(), prediction=True),
    "gpt_oss-hf": dict(config=gpt_oss(swiglu_limit=3.0)),
    "gpt_oss-mxfp4": dict(format="mxfp4", config=gpt_oss(
        hidden_size=96, intermediate_size=32, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], quantization_config=MXFP4)),
    "deepseek_v32-hf": dict(config=deepseek_v32(), prediction=True),
    "deepseek_v4-hf": dict(config=deepseek_v4(), prediction=True),
    # experts in FP4, other matrices in FP8 with powers of two; two streams, a large epsilon, no YaRN
    "deepseek_v4-fp4": dict(format="fp4-ue8m0", config=deepseek_v4(
        compress_ratios=[4, 10], expert_dtype="fp4", hc_mult=2, hc_sinkhorn_iters=7, head_dim=36, hidden_size=160, index_head_dim=20, index_n_heads=10,
        index_topk=6, moe_intermediate_size=32, n_routed_experts=5, num_attention_heads=5, num_experts_per_tok=2, num_hash_layers=1, num_hidden_layers=2,
        num_nextn_predict_layers=0, o_groups=5, o_lora_rank=28, q_lora_rank=36, quantization_config=dict(FP8, scale_fmt="ue8m0"),
        rms_norm_eps=0.01, rope_scaling=None, routed_scaling_factor=2.5, sliding_window=13, swiglu_limit=1.5, vocab_size=95)),
    # as transformers saves it: layers by type, both rotations
    "deepseek_v4-typed": dict(saved=True, config={k: v for k, v in deepseek_v4(
        compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=12), hc_mult=3, hidden_size=36, index_n_heads=10, index_topk=4,
        layer_types=["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"], mlp_layer_types=["hash_moe", "moe", "moe"],
        n_routed_experts=9, num_hidden_layers=3, o_groups=3, partial_rotary_factor=0.4, rms_norm_eps=1e-05, sliding_window=19, rope_parameters=dict(
            compress=dict(attention_factor=1.0, beta_fast=32.0, beta_slow=1.0, factor=8.0, original_max_position_embeddings=128,
                          partial_rotary_factor=0.4, rope_theta=50000.0, rope_type="yarn"),
            main=dict(partial_rotary_factor=0.4, rope_theta=5000.0, rope_type="default")), swiglu_limit=2.0, vocab_size=93
        ).items() if k not in ("compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling")}),
    "glm_moe_dsa-hf": dict(config=glm_moe_dsa()),
    # biases, and layers that attend to what an earlier one chose
    "glm_moe_dsa-shared": dict(config=glm_moe_dsa(
        attention_bias=True, indexer_types=["full", "shared", "full", "shared"], num_hidden_layers=4, hidden_size=32, vocab_size=61)),
    # names of the vision towers and of their projectors, a few tensors each, to be skipped
    "kimi_k25-hf": dict(config=kimi_k25(), vision=["vision_tower.encoder.final_layernorm.weight", "mm_projector.pre_norm.weight"]),
    "qwen3_vl_moe-hf": dict(config=qwen3_vl_moe(), vision=["model.visual.blocks.0.norm1.weight", "model.visual.merger.norm.weight"]),
    "glm4v_moe-hf": dict(config=glm4v_moe(), vision=["model.visual.blocks.0.norm1.weight"]),
    "hy_v3-hf": dict(config=hy_v3(), prediction=True),
    "solar_open-hf": dict(config=solar_open()),
    "gemma4-hf": dict(config=gemma4(), vision=["model.vision_tower.patch_embedder.norm.weight", "model.embed_vision.norm.weight"]),
    "gemma4-text": dict(config=gemma4_text(
        attention_bias=True, attention_k_eq_v=False, final_logit_softcapping=None, global_head_dim=12, layer_types=None, num_global_key_value_heads=None,
        num_hidden_layers=7)),
    "qwen4_exp-hf": dict(config=qwen4_exp(), vision=["model.visual.blocks.0.norm1.weight"]),
    # layers as another exporter names them, pools of three positions, gates through silu
    "qwen4_exp-fp8": dict(format="fp8-experts", config=dict(qwen4_exp(
        hc_count=2, hidden_size=32, indexer_budget=18, indexer_compress_ratio=3, layer_types=["linear_attention", "indexed_attention"],
        num_hidden_layers=2, output_gate_type=None, ple_embed_dim=24, ple_layer_ids=[1], heads_per_ngram=2, split_ngram_parts=2), quantization_config=EXPERTS_FP8)),
    "exaone_moe-hf": dict(config=exaone_moe(), prediction=True),
    "kimi_linear-hf": dict(config=kimi_linear()),
    # keys of transformers, queries of a latent, experts in groups, every layer with experts, an epsilon that tells norms apart
    "kimi_linear-typed": dict(config=kimi_linear(
        first_k_dense_replace=0, hidden_size=36, layer_types=["full_attention", "linear_attention", "linear_attention"], linear_attn_config={},
        linear_conv_kernel_dim=3, linear_head_dim=20, linear_num_heads=5, n_group=2, num_expert_group=2, num_attention_heads=2,
        num_hidden_layers=3, num_key_value_heads=2, num_shared_experts=2, q_lora_rank=14, rms_norm_eps=0.01)),
    "glm5_next-hf": dict(config=glm5_next(), vision=["model.visual.blocks.0.norm1.weight"]),
    # layers by other names, a choice that a later layer shares, decays without a bound, gates that reach theirs, three streams
    "glm5_next-shared": dict(config=glm5_next(
        hc_mult=3, hc_sinkhorn_iters=5, hidden_size=36, index_kpool=3, index_n_heads=8, index_topk=12, indexer_types=["full", "shared", "full", "shared"],
        kv_lora_rank=18, layer_types=["full_attention", "linear_attention", "indexed_attention", "indexed_attention"],
        linear_attn_config=dict(gate_lower_bound=None, safe_gate=False, head_dim=20, num_heads=2, short_conv_kernel_size=3), mlp_layer_types=["sparse"] * 4,
        n_group=2, n_shared_experts=2, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=12, qk_nope_head_dim=10, rms_norm_eps=0.01, swiglu_limit=0.5,
        topk_group=1, v_head_dim=16)),
    "nemotron_h-hf": dict(config=nemotron_h(), prediction=True),
    # experts of fewer columns, in two groups; listed layers, whose number is not given, two with experts in turn; no biases of convolutions
    "nemotron_h-latent": dict(config=nemotron_h(
        conv_kernel=3, hidden_size=36, hybrid_override_pattern=None, layers_block_type=["attention", "moe", "moe", "mamba", "mamba", "attention", "moe"],
        mamba_head_dim=20, mamba_num_heads=3, moe_latent_size=16, n_group=2, n_groups=3, num_hidden_layers=None, ssm_state_size=7, topk_group=1,
        time_step_limit=[0.0, math.inf], use_conv_bias=False, vocab_size=95)),
    "ernie4_5_moe-hf": dict(config=ernie4_5_moe(head_dim=16, tie_word_embeddings=True), prediction=True),
    "deepseek_v3-fp8": dict(format="fp8", config=deepseek_v3(
        hidden_size=136, intermediate_size=132, moe_intermediate_size=20, n_routed_experts=8, num_experts_per_tok=3, num_hidden_layers=2,
        rope_scaling=dict(YARN, mscale_all_dim=0.707), quantization_config=FP8,
        **mla(q_lora_rank=36, qk_nope_head_dim=32, num_attention_heads=3))),
}

GROUPED = dict(hidden_size=64, num_hidden_layers=2, moe_intermediate_size=64)       # whole groups of 64
WIDE_MLA = mla(q_lora_rank=64, kv_lora_rank=64, v_head_dim=32, num_attention_heads=2, num_key_value_heads=2)
MLX_QWEN3_MOE = qwen3_moe(**GROUPED, head_dim=32, num_experts=6)
MLX = {
    "qwen3_moe-mlx-q4": dict(bits=4, config=MLX_QWEN3_MOE),
    "qwen3_moe-mlx-mxfp4": dict(mode="mxfp4", config=MLX_QWEN3_MOE),
    "qwen3_moe-mlx-nvfp4": dict(mode="nvfp4", config=MLX_QWEN3_MOE),
    "qwen3_moe-mlx-mxfp8": dict(mode="mxfp8", config=MLX_QWEN3_MOE),
    "mixtral-mlx-q4": dict(bits=4, config=mixtral(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)),
    "deepseek_v3-mlx-q4": dict(bits=4, config=deepseek_v3(
        **GROUPED, intermediate_size=128, n_routed_experts=8, num_experts_per_tok=3, num_nextn_predict_layers=0, **{**WIDE_MLA, "qk_nope_head_dim": 64})),
    "deepseek_v3-mlx-joined": dict(bits=4, joined=True, config=deepseek_v3(
        **GROUPED, intermediate_size=128, first_k_dense_replace=0, n_group=1, topk_group=1, n_routed_experts=6, num_experts_per_tok=2,
        num_nextn_predict_layers=0, **{**WIDE_MLA, "qk_nope_head_dim": 24})),
    "kimi_linear-mlx-q4": dict(bits=4, config=kimi_linear(
        head_dim=32, hidden_size=64, intermediate_size=128, kv_lora_rank=64, moe_intermediate_size=64, num_experts=6, num_experts_per_token=2, num_hidden_layers=3,
        linear_attn_config=dict(full_attn_layers=[2], kda_layers=[1, 3], num_heads=2, head_dim=32, short_conv_kernel_size=4),
        num_attention_heads=2, num_key_value_heads=2, qk_nope_head_dim=64, qk_rope_head_dim=16, v_head_dim=64)),
    "minimax_m2-mlx-q4": dict(bits=4, config=minimax_m2(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_local_experts=6, num_attention_heads=4, attn_type_list=[1, 1])),
    "glm4_moe-mlx-q4": dict(bits=4, config=glm4_moe(**GROUPED, intermediate_size=128, num_attention_heads=4, n_routed_experts=6, num_nextn_predict_layers=0)),
    "glm4_moe_lite-mlx-q4": dict(bits=4, config=glm4_moe_lite(
        **GROUPED, intermediate_size=128, n_routed_experts=6, num_nextn_predict_layers=0, **WIDE_MLA)),
    "qwen3_next-mlx-q4": dict(bits=4, config=qwen3_next(
        **GROUPED, num_attention_heads=4, num_experts=6, shared_expert_intermediate_size=64, linear_key_head_dim=16, linear_num_value_heads=4,
        linear_value_head_dim=16)),
    # mlx-lm rounds the ends of YaRN's ramp whatever `truncate` says, so that the references agree only where it says true
    "gpt_oss-mlx-mxfp4": dict(mode="mxfp4", experts_only=True, config=gpt_oss(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, layer_types=["sliding_attention", "full_attention"],
        rope_scaling=dict(GPT_YARN, truncate=True))),
    "gpt_oss-mlx-q4": dict(bits=4, config=gpt_oss(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, layer_types=["sliding_attention", "full_attention"],
        rope_scaling=dict(GPT_YARN, truncate=True))),
    "deepseek_v32-mlx-q4": dict(bits=4, config=deepseek_v32(
        **GROUPED, intermediate_size=128, n_routed_experts=8, num_nextn_predict_layers=0, **WIDE_MLA)),
    "glm_moe_dsa-mlx-q4": dict(bits=4, config=glm_moe_dsa(
        **GROUPED, intermediate_size=128, n_routed_experts=6, num_nextn_predict_layers=0, **WIDE_MLA)),
}
