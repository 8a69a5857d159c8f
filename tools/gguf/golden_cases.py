"""The cases of goldens.py: small configs, and the types of their tensors.

Types are taken by turns, `dense` ones by tensors that are no routed experts, `gate`, `up` and `down` by layers; one whose blocks do
not fit the columns is passed over. Rows of 256 columns take blocks of every type; models with such rows are narrow otherwise, to stay
small.
"""

from typing import NamedTuple

import make_golden
import family_shapes as shapes


class Case(NamedTuple):
    config: dict
    dense: str
    gate: str
    up: str
    down: str
    router: str = "F32"
    predicts: bool = False
    """Whether the file has a layer that predicts the token after the next one."""


SMALL = dict(vocab_size=32, num_hidden_layers=2, num_experts_per_tok=2)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
FEW_HEADS = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=16)
# Rows of gates and ups that hold blocks of every type.
WIDE = dict(hidden_size=256, moe_intermediate_size=32)
MLA = shapes.mla(q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=32, v_head_dim=32, num_attention_heads=2, num_key_value_heads=2)
INDEXED = dict(hidden_size=32, intermediate_size=32, moe_intermediate_size=32, index_head_dim=24, num_nextn_predict_layers=0)
DELTA = dict(
    hidden_size=32, moe_intermediate_size=64, shared_expert_intermediate_size=32, num_experts=3, full_attention_interval=2,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16)
SLIDING = ["sliding_attention", "full_attention"]
ROPE = dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)

CASES = {
    # The rows of ssm_out hold blocks of 256 columns whose heads are in another order than published. The experts of the last layer,
    # which predicts, are no larger than others: larger ones are not run.
    "gguf-qwen35moe": Case(
        make_golden.text_config(**SMALL, **HEADS, **DELTA, linear_value_head_dim=64, rope_parameters=ROPE),
        dense="Q4_0 Q5_K IQ4_NL Q6_K Q5_1 Q4_1 Q8_0", gate="Q4_0 Q5_0 IQ4_NL", up="MXFP4 Q4_1", down="Q5_1 NVFP4 Q2_0",
        predicts=True),
    "gguf-qwen3next": Case(
        shapes.qwen3_next(**SMALL, **HEADS, **DELTA, linear_value_head_dim=16),
        dense="Q4_1 Q5_0 BF16 IQ4_NL Q4_0", gate="Q5_0 Q4_0", up="IQ4_NL Q4_0", down="Q2_0 MXFP4"),
    "gguf-qwen3moe": Case(
        shapes.qwen3_moe(**SMALL, **FEW_HEADS, **WIDE, num_experts=3, tie_word_embeddings=True),
        dense="Q5_K Q4_K IQ4_XS Q6_K", gate="Q3_K Q2_K", up="IQ2_XXS IQ2_XS", down="IQ4_NL MXFP4"),
    "gguf-deepseek2": Case(
        shapes.deepseek_v3(
            **SMALL, **MLA, hidden_size=32, moe_intermediate_size=64, intermediate_size=64, n_routed_experts=6, n_group=1, topk_group=1, num_nextn_predict_layers=0),
        dense="Q4_0 Q8_0 IQ4_NL MXFP4", gate="IQ4_NL", up="MXFP4", down="NVFP4"),
    "gguf-deepseek32": Case(
        shapes.deepseek_v32(**SMALL, **INDEXED, **MLA, n_routed_experts=6),
        dense="Q4_0 Q5_1 Q4_1 IQ4_NL", gate="Q4_0", up="MXFP4", down="Q5_0"),
    "gguf-glm4moe": Case(
        shapes.glm4_moe(
            **{**SMALL, "num_hidden_layers": 1}, **FEW_HEADS, **WIDE, first_k_dense_replace=0, n_routed_experts=6, num_nextn_predict_layers=0),
        dense="IQ3_XXS TQ2_0 Q4_K TQ1_0 IQ3_S IQ1_S", gate="IQ2_S", up="IQ1_M", down="Q4_0"),
    "gguf-gpt-oss": Case(
        shapes.gpt_oss(
            **SMALL, **FEW_HEADS, hidden_size=64, intermediate_size=32, num_local_experts=4, layer_types=SLIDING),
        dense="Q8_0 Q5_1 Q4_0", gate="MXFP4", up="MXFP4", down="MXFP4"),
    # One tensor holds gates and ups, as the converter leaves them.
    "gguf-gemma4": Case(
        shapes.gemma4_text(
            vocab_size=32, vocab_size_per_layer_input=32, num_hidden_layers=2, layer_types=SLIDING, hidden_size=64, intermediate_size=32,
            moe_intermediate_size=32, num_experts=4, top_k_experts=2, num_attention_heads=2, num_key_value_heads=2, global_head_dim=32),
        dense="Q8_0 Q5_1 Q4_0 Q4_1", gate="Q4_0", up="Q4_0", down="MXFP4 Q5_0"),
    "gguf-minimax-m2": Case(
        shapes.minimax_m2(
            **SMALL, **HEADS, hidden_size=32, intermediate_size=64, num_local_experts=4, rotary_dim=8, attn_type_list=[1, 1]),
        dense="Q5_1 Q4_1 Q4_0", gate="IQ4_NL Q5_0", up="Q4_0 MXFP4", down="NVFP4 Q8_0", router="F16"),
    # llama.cpp takes only as many keys as queries.
    "gguf-olmoe": Case(
        shapes.olmoe(**SMALL, hidden_size=64, intermediate_size=32, num_experts=4, num_key_value_heads=4),
        dense="Q5_0 Q4_1 Q8_0", gate="Q4_0 IQ4_NL", up="Q5_1", down="MXFP4 Q4_0"),
    "gguf-granitemoe": Case(
        shapes.granitemoe(**SMALL, hidden_size=64, intermediate_size=32, num_local_experts=4),
        dense="Q4_0 Q8_0 Q5_1", gate="Q5_0", up="Q4_1 Q4_0", down="Q5_1 IQ4_NL"),
    "gguf-kimi-linear": Case(
        shapes.kimi_linear(
            vocab_size=32, hidden_size=64, intermediate_size=64, moe_intermediate_size=32, num_experts=4, num_experts_per_token=2,
            num_hidden_layers=3, linear_attn_config=dict(full_attn_layers=[3], kda_layers=[1, 2], num_heads=2, head_dim=32, short_conv_kernel_size=4),
            num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=8, v_head_dim=32),
        dense="Q8_0 Q5_1 Q4_0 IQ4_NL", gate="Q4_0 Q5_0", up="IQ4_NL Q4_1", down="MXFP4 Q5_1"),
    # Experts of as many columns as a block has, behind a projection.
    "gguf-nemotron-h": Case(
        shapes.nemotron_h(
            vocab_size=32, hidden_size=64, hybrid_override_pattern="EME*E", num_hidden_layers=5, moe_latent_size=32, moe_intermediate_size=32,
            moe_shared_expert_intermediate_size=64, n_routed_experts=4, num_experts_per_tok=2, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=16,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16),
        dense="Q8_0 Q5_1 Q4_0 IQ4_NL", gate="Q4_0", up="Q4_0 Q5_0", down="IQ4_NL MXFP4"),
    "gguf-mixtral": Case(
        shapes.mixtral(**SMALL, **FEW_HEADS, hidden_size=128, intermediate_size=32, num_local_experts=3),
        dense="Q1_0 NVFP4 Q5_0 Q2_0", gate="Q2_0 Q4_0", up="NVFP4 Q1_0", down="Q4_1 MXFP4", router="Q8_0"),
}
