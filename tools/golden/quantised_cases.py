"""The cases of make_quantised.py: small configs, and what the quantisation tools declare in them."""

from typing import NamedTuple

import torch

import family_shapes as shapes
from quantised import Awq, Fp8, Gptq, Mlx, Mxfp4, Nf4, Nvfp4, Packed, SignedBytes


class Case(NamedTuple):
    config: dict
    layouts: dict
    """Layouts by regular expressions of which the first that is found in a module's name counts; other matrices are not quantised."""
    declaration: dict
    file: dict = {}
    """What is declared in hf_quant_config.json."""
    more: dict = {}
    """Further tensors, which a model that computes in floats does not need."""
    names: str = "listed"
    """How experts are published: `listed` one by one, `fused` in two tensors whose parts follow an underscore, or as `mlx` stacks them."""
    has_mtp: bool = False
    """Whether a random module of multi-token prediction stands beside the model."""


SMALL = dict(vocab_size=32, num_hidden_layers=2, num_experts_per_tok=2)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
SIDES = dict(hidden_size=64, moe_intermediate_size=32)
MLA = shapes.mla(q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=24, v_head_dim=16, num_attention_heads=2, num_key_value_heads=2)
EXPERTS = r"\.experts\.\d+\."
DOWN, GATE_AND_UP = EXPERTS + r"(down_proj|w2)$", EXPERTS


def group(targets, form, **weights):
    """An entry of `config_groups` of compressed-tensors."""
    weights = dict(block_structure=None, dynamic=False, group_size=None, symmetric=True) | weights
    return dict(format=form, input_activations=None, output_activations=None, targets=targets, weights=weights)


def compressed(*groups, ignore):
    groups = {f"group_{nth}": each for nth, each in enumerate(groups)}
    return dict(
        quant_method="compressed-tensors", format="mixed-precision", quantization_status="compressed", kv_cache_scheme=None, ignore=ignore,
        config_groups=groups)


def algorithm(name, group_size=None):
    return dict(quant_algo=name) | (dict(group_size=group_size) if group_size else {})


# Names of modules are cut short here: a list of every expert would be larger than the model.
MODELOPT = {
    **{f"model.layers.{layer}.mlp.experts": algorithm("NVFP4", 16) for layer in range(2)}, "lm_head": algorithm("NVFP4", 16),
    **{f"model.layers.{layer}.mlp.shared_expert": algorithm("FP8_PER_CHANNEL_PER_TOKEN") for layer in range(2)},
    "model.layers.0.linear_attn": algorithm("FP8"), "model.layers.1.self_attn": algorithm("FP8"),
}
GEMMA_HEADS = dict(num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1, head_dim=8, global_head_dim=16)
GEMMA = dict(
    vocab_size=32, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], sliding_window=9, hidden_size=32, intermediate_size=32,
    moe_intermediate_size=32, num_experts=4, top_k_experts=2, **GEMMA_HEADS)
QWEN4 = shapes.qwen4_exp(
    vocab_size=32, eos_token_id=11, hidden_size=32, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], hc_count=2, hc_lowrank=8,
    num_attention_heads=4, num_key_value_heads=1, head_dim=16, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=16,
    linear_value_head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16, indexer_n_heads=6,
    indexer_head_dim=16, indexer_budget=16, ple_layer_ids=[1], ple_embed_dim=32, heads_per_ngram=2, ngram_vocab_size_base=40, split_ngram_parts=3)
# As nvidia's mixes: experts in four bits, the table of n-grams in eight with one scale, experts of the prediction in blocks.
QWEN4_LAYERS = {
    **{f"model.language_model.layers.{layer}.mlp.experts": algorithm("NVFP4", 16) for layer in range(2)},
    "model.language_model.layers.1.self_attn": algorithm("FP8"),
    "model.language_model.layers.0.ple.ple_embedding.ngram_embedding": algorithm("FP8"), "mtp.layers.0.mlp.experts": algorithm("FP8_BLOCK_SCALES"),
}
INPUT = dict(input_scale=torch.tensor(0.0123))

CASES = {
    "ct-integers": Case(
        shapes.glm4_moe(**SMALL, **HEADS, **SIDES, intermediate_size=32, n_routed_experts=4, num_nextn_predict_layers=0),
        {DOWN: Packed(4, 32, is_symmetric=False), GATE_AND_UP: Packed(4, 32), r"shared_experts": SignedBytes(), r"self_attn": Packed(8),
         r"mlp\.\w+_proj$": Packed(3, 32, is_symmetric=False)},
        compressed(
            group([r"re:.*mlp\.experts\..*(gate|up)_proj$"], "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32),
            group([r"re:.*mlp\.experts\..*down_proj$"], "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False),
            group([r"re:.*shared_experts.*"], "int-quantized", num_bits=8, type="int", strategy="channel"),
            group([r"re:.*self_attn.*"], "pack-quantized", num_bits=8, type="int", strategy="channel"),
            group([r"re:.*layers\.0\.mlp.*"], "pack-quantized", num_bits=3, type="int", strategy="group", group_size=32, symmetric=False),
            ignore=["lm_head"])),
    # The rows of blocks cut heads: kv_b_proj has 40 rows for each.
    "ct-floats": Case(
        shapes.deepseek_v3(**SMALL, **MLA, **SIDES, intermediate_size=32, n_routed_experts=6, n_group=1, topk_group=1, num_nextn_predict_layers=0),
        {DOWN: Mxfp4(), GATE_AND_UP: Nvfp4(is_divisor=True, more=dict(input_global_scale=torch.tensor([83.5]))),
         r"shared_experts": Fp8((1, 0), torch.bfloat16), r"self_attn": Fp8((32, 16), torch.bfloat16), r"mlp\.\w+_proj$": Fp8((0, 0), torch.bfloat16)},
        compressed(
            group([r"re:.*mlp\.experts\..*(gate|up)_proj$"], "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
            group([r"re:.*mlp\.experts\..*down_proj$"], "mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
            group([r"re:.*shared_experts.*"], "float-quantized", num_bits=8, type="float", strategy="channel"),
            group([r"re:.*self_attn.*"], "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[32, 16]),
            group([r"re:.*layers\.0\.mlp.*"], "float-quantized", num_bits=8, type="float", strategy="tensor"),
            ignore=["lm_head"])),
    "modelopt-mixed": Case(
        shapes.qwen3_next(
            **SMALL, **HEADS, **SIDES, shared_expert_intermediate_size=32, num_experts=4, linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=16, linear_value_head_dim=16),
        {EXPERTS: Nvfp4(is_divisor=False, more=INPUT), r"lm_head": Nvfp4(is_divisor=False), r"shared_expert\.": Fp8((1, 0)),
         r"conv1d|(linear|self)_attn\.\w+$": Fp8(more=INPUT)},
        dict(quant_method="modelopt", quant_algo="MIXED_PRECISION", ignore=["*.mlp.gate", "*.shared_expert_gate"], quantized_layers=MODELOPT,
             kv_cache_scheme=dict(dynamic=False, num_bits=8, type="float")),
        file=dict(producer=dict(name="modelopt"), quantization=dict(quant_algo="MIXED_PRECISION", kv_cache_quant_algo="FP8", quantized_layers=MODELOPT)),
        more={"model.layers.1.self_attn.k_proj.k_scale": torch.tensor(0.02), "model.layers.1.self_attn.v_proj.v_scale": torch.tensor(0.01)}),
    "gptq-v1": Case(
        shapes.qwen3_moe(**SMALL, **HEADS, **SIDES, num_experts=4),
        {EXPERTS: Gptq(4, 32, is_symmetric=False), r"self_attn": Gptq(8, 64, is_symmetric=False)},
        dict(quant_method="gptq", bits=4, group_size=32, sym=False, desc_act=False, checkpoint_format="gptq",
             dynamic={r"+:.*self_attn.*": dict(bits=8, group_size=64), r"-:.*mlp\.gate$": {}})),
    "gptq-desc-act": Case(
        shapes.minimax_m2(**SMALL, **HEADS, hidden_size=64, intermediate_size=32, num_local_experts=4, rotary_dim=8, attn_type_list=[1, 1]),
        {EXPERTS: Gptq(4, 16, is_symmetric=True, is_reordered=True)},
        dict(quant_method="gptq", bits=4, group_size=16, sym=True, desc_act=True, checkpoint_format="gptq")),
    "awq-gemm": Case(
        shapes.mixtral(**SMALL, **{**HEADS, "head_dim": 16}, hidden_size=64, intermediate_size=32, num_local_experts=4),
        {EXPERTS: Awq(32), r"layers\.1\.self_attn": Awq(64)},
        dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm", modules_to_not_convert=["gate", "model.layers.0.self_attn"])),
    # More than 256 scales in a matrix of attention, so that their codes have two scales.
    "bnb-nf4": Case(
        shapes.qwen3_moe(**SMALL, num_attention_heads=6, num_key_value_heads=2, head_dim=32, hidden_size=128, moe_intermediate_size=64, num_experts=3),
        {DOWN: Nf4(is_nested=False), EXPERTS: Nf4(is_nested=True), r"layers\.0\.self_attn": Nf4(is_nested=True),
         r"layers\.1\.self_attn\.[kqv]": Nf4(is_nested=False, block=128)},
        dict(quant_method="bitsandbytes", _load_in_4bit=True, _load_in_8bit=False, bnb_4bit_compute_dtype="bfloat16", bnb_4bit_quant_storage="uint8",
             bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, llm_int8_enable_fp32_cpu_offload=False, llm_int8_has_fp16_weight=False,
             llm_int8_skip_modules=None, llm_int8_threshold=6.0, load_in_4bit=True, load_in_8bit=False)),
    # Experts of two matrices, and modules whose names begin otherwise.
    "nemotron_h-nvfp4": Case(
        shapes.nemotron_h(
            vocab_size=32, hidden_size=64, hybrid_override_pattern="EM*E", num_hidden_layers=4, moe_latent_size=32, moe_intermediate_size=32,
            moe_shared_expert_intermediate_size=64, n_routed_experts=4, num_experts_per_tok=2, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=16,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16),
        {EXPERTS: Nvfp4(is_divisor=False, more=INPUT), r"shared_experts|in_proj|out_proj": Fp8(more=INPUT)},
        dict(quant_method="modelopt", quant_algo="MIXED_PRECISION", ignore=["lm_head", "backbone.layers.*.mixer.conv1d"],
             quantized_layers={
                 **{f"backbone.layers.{layer}.mixer.experts": algorithm("NVFP4", 16) for layer in (0, 3)},
                 **{f"backbone.layers.{layer}.mixer.shared_experts": algorithm("FP8") for layer in (0, 3)},
                 **{f"backbone.layers.1.mixer.{part}_proj": algorithm("FP8") for part in ("in", "out")}})),
    "gemma4-fp8": Case(
        shapes.gemma4(**GEMMA),
        {EXPERTS: Fp8((32, 16), torch.bfloat16), r"self_attn|mlp\.": Fp8((1, 0), torch.bfloat16)},
        compressed(
            group([r"re:.*experts\..*"], "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[32, 16]),
            group([r"re:.*self_attn.*", r"re:.*layers\.\d+\.mlp\..*"], "float-quantized", num_bits=8, type="float", strategy="channel"),
            ignore=["lm_head", "re:.*router.*", "re:.*vision_tower.*", "re:.*embed_vision.*"])),
    "gemma4-nvfp4": Case(
        shapes.gemma4(**GEMMA),
        {EXPERTS: Nvfp4(is_divisor=False, more=INPUT), r"\.mlp\.": Nvfp4(is_divisor=False, more=INPUT)},
        dict(quant_method="modelopt", quant_algo="NVFP4", ignore=["lm_head", "model.language_model.layers.*.router*", "*self_attn*", "model.vision_tower*"],
             config_groups=dict(group_0=dict(targets=["Linear"], weights=dict(num_bits=4, type="float", group_size=16)))),
        file=dict(producer=dict(name="modelopt"), quantization=dict(
            quant_algo="NVFP4", kv_cache_quant_algo="FP8", group_size=16,
            exclude_modules=["lm_head", "model.language_model.layers.*.router*", "*self_attn*", "model.vision_tower*"])),
        more={"model.language_model.layers.1.self_attn.k_proj.k_scale": torch.tensor(0.02),
              "model.vision_tower.patch_embedder.norm.weight": torch.ones(16)}),
    # Experts of a layer together, and no word for the weight in the names of their parts.
    "gemma4-ct-fused": Case(
        shapes.gemma4(**GEMMA),
        {EXPERTS: Packed(4, 32), r"self_attn|\.mlp\.": Packed(4, 32)},
        compressed(
            group(["Linear"], "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32),
            ignore=["lm_head", "re:.*router.*", "re:.*vision_tower.*"]) | dict(format="pack-quantized"),
        names="fused"),
    "gemma4-mlx-q4": Case(
        shapes.gemma4(**{
            **GEMMA, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "num_experts": 3, "head_dim": 16, "global_head_dim": 32}),
        {r"router\.proj": Mlx(8), r"": Mlx(4)},
        dict(group_size=64, bits=4, mode="affine", **{f"language_model.model.layers.{layer}.router.proj": dict(group_size=64, bits=8) for layer in range(2)}),
        names="mlx"),
    "qwen4_exp-nvfp4": Case(
        QWEN4,
        {r"mtp\..*" + EXPERTS: Fp8((128, 128), torch.bfloat16, scale="weight_scale_inv"), EXPERTS: Nvfp4(is_divisor=False, more=INPUT),
         r"layers\.\d+\.self_attn\.\w_proj": Fp8(more=INPUT)},
        dict(quant_method="modelopt", quant_algo="MIXED_PRECISION", ignore=["lm_head", "*.mlp.gate", "*.mlp.shared_expert*", "mtp.*"],
             quantized_layers=QWEN4_LAYERS),
        file=dict(producer=dict(name="modelopt"), quantization=dict(quant_algo="MIXED_PRECISION", kv_cache_quant_algo=None, quantized_layers=QWEN4_LAYERS)),
        has_mtp=True),
    "qwen4_exp-fp8-mtp": Case(
        QWEN4, {EXPERTS: Fp8((128, 128), torch.bfloat16, scale="weight_scale_inv")}, shapes.EXPERTS_FP8, has_mtp=True),
}
