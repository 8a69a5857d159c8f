"""The keys that llama.cpp's converter writes for a config."""

from layout import ARCHITECTURES, DELTA, LATENT

# The names of the ways in which texts are split.
SPLITTERS = {
    "qwen3_5_moe_text": "qwen35",
    "deepseek_v3": "deepseek-v3",
    "deepseek_v32": "deepseek-v3",
    "glm4_moe": "glm4",
    "glm_moe_dsa": "glm4",
    "gpt_oss": "gpt-4o",
    "granitemoe": "refact",
    "kimi_linear": "kimi-k2",
    "olmoe": "olmo",
}
# Granite's factors.
FACTORS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
# Kimi-Linear's names of what others have too.
RENAMED = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
SOFTMAX, SIGMOID = 1, 2
NORMAL, CONTROL = 1, 3


def keys(config: dict, n_predicting: int) -> dict:
    """All keys of a file; `n_predicting` layers predict the token after the next one."""
    family = config["model_type"]
    arch = ARCHITECTURES[family]
    config = {RENAMED.get(key, key): value for key, value in config.items()}
    own = common(config, n_predicting)
    if family == "gemma4_text":
        own |= gemma(config) | routing(config)
    elif family == "nemotron_h":
        own |= mamba(config)
    else:
        own |= latent(config) if family in LATENT else grouped(config)
        own |= rope(config) | routing(config)
    if family in DELTA:
        own |= delta(config)
    if family == "kimi_linear":
        own |= kimi(config)
    if family == "granitemoe":
        own |= {key: config[name] for key, name in FACTORS.items()}
    if family == "gpt_oss":
        own["attention.sliding_window"] = config["sliding_window"]
    return {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in own.items()}, **tokenizer(config)}


def common(config, n_predicting):
    own = {
        "block_count": config["num_hidden_layers"] + n_predicting,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps") or config["layer_norm_epsilon"]),
    }
    if "intermediate_size" in config:
        own["feed_forward_length"] = config["intermediate_size"]
    if n_predicting:
        own["nextn_predict_layers"] = n_predicting
    return own


def head_dim(config):
    """Columns of a head, which latent attention does not have."""
    return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])


def grouped(config):
    return {
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim(config),
        "attention.value_length": head_dim(config),
    }


def gemma(config):
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    heads = {True: config["num_key_value_heads"], False: config["num_global_key_value_heads"]}
    own = {
        "attention.head_count_kv": [heads[is_sliding] for is_sliding in slides],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
        "final_logit_softcapping": float(config["final_logit_softcapping"]),
    }
    for kind, dim, ending in (("full", "global_head_dim", ""), ("sliding", "head_dim", "_swa")):
        own |= {f"{key}{ending}": config[dim] for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")}
        own["rope.freq_base" + ending] = float(config["rope_parameters"][kind + "_attention"]["rope_theta"])
    return own


def latent(config):
    own = {
        "attention.head_count_kv": 1,
        "attention.key_length": config["kv_lora_rank"] + config["qk_rope_head_dim"],
        "attention.value_length": config["kv_lora_rank"],
        "attention.key_length_mla": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length_mla": config["v_head_dim"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "vocab_size": config["vocab_size"],
    }
    if config["q_lora_rank"]:
        own["attention.q_lora_rank"] = config["q_lora_rank"]
    if "index_topk" in config:
        own |= {
            "attention.indexer.head_count": config["index_n_heads"],
            "attention.indexer.key_length": config["index_head_dim"],
            "attention.indexer.top_k": config["index_topk"],
        }
    return own


def rope(config):
    parameters = config.get("rope_parameters") or {}
    theta = parameters.get("rope_theta") or config["rope_theta"]
    part = parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor", 1.0)
    n_rotated = int(head_dim(config) * part)
    if config["model_type"] in LATENT:
        n_rotated = config["qk_rope_head_dim"]
    own = {
        "rope.freq_base": float(theta),
        "rope.dimension_count": config.get("rotary_dim", n_rotated),
    }
    if "mrope_section" in parameters:
        own["rope.dimension_sections"] = [*parameters["mrope_section"], 0]
    scaling = config.get("rope_scaling")
    if scaling:
        own |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(scaling["factor"]),
            "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(scaling["beta_fast"]),
            "rope.scaling.yarn_beta_slow": float(scaling["beta_slow"]),
        }
        if "mscale_all_dim" in scaling:
            own["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling["mscale_all_dim"]
    return own


def routing(config):
    family = config["model_type"]
    first = lambda *names: next(config[name] for name in names if name in config)
    own = {
        "expert_count": first("n_routed_experts", "num_local_experts", "num_experts"),
        "expert_used_count": first("num_experts_per_tok", "top_k_experts"),
        "expert_feed_forward_length": first("moe_intermediate_size", "intermediate_size"),
    }
    if family == "minimax_m2":
        own["expert_gating_func"] = SIGMOID
    if "n_shared_experts" in config:
        own |= {
            "expert_gating_func": SIGMOID,
            "expert_shared_count": config["n_shared_experts"],
            "expert_group_count": config["n_group"],
            "expert_group_used_count": config["topk_group"],
            "expert_weights_scale": float(config["routed_scaling_factor"]),
            "expert_weights_norm": config["norm_topk_prob"],
            "leading_dense_block_count": config["first_k_dense_replace"],
        }
    if "shared_expert_intermediate_size" in config:
        own["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    return own


def delta(config):
    n_values = config["linear_num_value_heads"]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": n_values,
        "ssm.inner_size": n_values * config["linear_value_head_dim"],
        "full_attention_interval": config["full_attention_interval"],
    }


def kimi(config):
    """Layers of delta attention have no keys of the other kind."""
    linear = config["linear_attn_config"]
    return {
        "attention.head_count_kv": [int(layer + 1 in linear["full_attn_layers"]) for layer in range(config["num_hidden_layers"])],
        "ssm.conv_kernel": linear["short_conv_kernel_size"],
        "kda.head_dim": linear["head_dim"],
    }


def mamba(config):
    """Layers of one part: attention where there are keys, experts where there is a width."""
    pattern, n_heads = config["hybrid_override_pattern"], config["mamba_num_heads"]
    own = {
        "attention.head_count_kv": [config["num_key_value_heads"] * (letter == "*") for letter in pattern],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "feed_forward_length": [config["moe_intermediate_size"] * (letter == "E") for letter in pattern],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_group_count": config["n_group"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.inner_size": n_heads * config["mamba_head_dim"],
        "ssm.time_step_rank": n_heads,
        "rope.scaling.finetuned": False,
    }
    if "moe_latent_size" in config:
        own["moe_latent_size"] = config["moe_latent_size"]
    return own


def tokenizer(config):
    """One token for each character from space on, in the alphabet of byte-level vocabularies, and an end."""
    n = config["vocab_size"]
    texts = ["\u0120"] + [chr(code) for code in range(33, 32 + n - 1)] + ["<|im_end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": SPLITTERS.get(config["model_type"], "qwen2"),
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [NORMAL] * (n - 1) + [CONTROL],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": n - 1,
    }
