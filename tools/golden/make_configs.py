"""Writes golden/configs.json and golden/configs.safetensors: golden checkpoints with unusual configs, and what
transformers makes of them in float32.

    A/bin/python tools/golden/make_configs.py

Each variation names a case, keys to `set` (in the whole config or in `text_config`) and keys to `drop`. The logits are
those of the last four positions of the case's first sequence.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, logging

GOLDEN = Path(__file__).parents[2] / "crates/moeflux-engine/tests/golden"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"type": "linear", "factor": 2.0}
DEFAULT = {"rope_type": "default", "rope_theta": 500.0}
PART = {"rope_type": "proportional", "rope_theta": 700.0, "partial_rotary_factor": 0.5, "factor": 2.0}
HEADS = {"5": {"head_dim": 12}, "6": {"head_dim": 12}}

VARIATIONS = [
    ("qwen3_moe-hf", {"rope_parameters": DEFAULT, "rope_scaling": YARN}, ["rope_theta"]),
    ("qwen3_moe-hf", {"rope_parameters": DEFAULT, "rope_scaling": {}}, ["rope_theta"]),
    ("qwen3_moe-hf", {"rope_scaling": None, "partial_rotary_factor": 0.5}, ["rope_parameters", "rope_theta"]),
    ("qwen3_moe-hf", {"tie_word_embeddings": True, "hidden_act": "swish"}, []),
    ("qwen3_moe-hf", {}, ["norm_topk_prob", "rms_norm_eps"]),
    ("deepseek_v3-hf", {}, ["routed_scaling_factor", "norm_topk_prob", "rms_norm_eps"]),
    ("deepseek_v3-hf", {"rope_interleave": False, "rope_scaling": None}, ["rope_theta"]),
    ("deepseek_v3-plain", {"norm_topk_prob": None, "q_lora_rank": None}, ["rope_theta"]),
    ("glm4_moe_lite-hf", {"first_k_dense_replace": 2}, ["routed_scaling_factor", "rope_theta"]),
    ("glm4_moe-hf", {"rope_scaling": LINEAR}, ["partial_rotary_factor", "routed_scaling_factor"]),
    ("glm_moe_dsa-hf", {"indexer_rope_interleave": False, "rope_interleave": False}, ["routed_scaling_factor"]),
    ("deepseek_v32-hf", {"indexer_rope_interleave": True, "index_topk_freq": 2}, ["routed_scaling_factor"]),
    ("minimax_m2-hf", {"routed_scaling_factor": 2.0, "norm_topk_prob": False}, ["rope_theta"]),
    ("minimax_m2-hf", {"partial_rotary_factor": 1.0}, []),
    ("mixtral-hf", {"sliding_window": 4, "partial_rotary_factor": 0.5}, ["rope_theta", "rms_norm_eps"]),
    ("gpt_oss-hf", {"rope_scaling": None}, ["rope_theta", "swiglu_limit", "sliding_window"]),
    ("qwen3_next-hf", {"partial_rotary_factor": 0.5}, ["norm_topk_prob", "rope_theta"]),
    ("hf-bf16", {"rms_norm_eps": 0.5, "num_experts_per_tok": 1}, []),
    ("hf-text-per-expert", {"norm_topk_prob": False, "rope_theta": 500.0}, []),
    ("hy_v3-hf", {}, ["router_scaling_factor", "rope_parameters", "rms_norm_eps", "first_k_dense_replace"]),
    ("exaone_moe-hf", {"sliding_window_pattern": 2, "n_group": 2, "norm_topk_prob": False}, ["layer_types", "rope_theta"]),
    ("solar_open-hf", {"rope_scaling": None, "n_group": 5, "topk_group": 2}, ["partial_rotary_factor", "rope_theta"]),
    ("olmoe-hf", {"norm_topk_prob": True, "rope_scaling": LINEAR}, ["rope_theta", "rms_norm_eps"]),
    ("granitemoe-hf", {}, ["embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling", "rms_norm_eps"]),
    ("granitemoe-hf", {"residual_multiplier": 0.22, "embedding_multiplier": 12.0, "logits_scaling": 6.0}, ["rope_theta"]),
    ("gemma4-text", {"sliding_window": 3, "final_logit_softcapping": 2.0}, ["rms_norm_eps", "rope_parameters", "attention_k_eq_v"]),
    ("gemma4-text", {"rope_parameters": {"full_attention": PART, "sliding_attention": DEFAULT}, "per_layer_config": HEADS},
     ["global_head_dim"]),
]


def main():
    """Writes both files."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    listed, tensors = [], {}
    for case, changes, dropped in VARIATIONS:
        config = json.loads((GOLDEN / case / "config.json").read_text())
        config.update(changes)
        for key in dropped:
            config.pop(key, None)
        tokens = load_file(GOLDEN / case / "expected.safetensors")["tokens.0"].long()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            shutil.copytree(GOLDEN / case, path, ignore=lambda *_: ["config.json", "expected.safetensors"])
            (path / "config.json").write_text(json.dumps(config))
            model, info = AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
                output_loading_info=True)
        made_up = {kind: names for kind, names in info.items() if names and kind != "unexpected_keys"}
        if made_up:
            raise SystemExit(f"{case} {changes} {dropped}: {made_up}")
        with torch.no_grad():
            tensors[str(len(listed))] = model.eval()(tokens[None]).logits[0, -4:].contiguous()
        listed.append({"case": case, "set": changes, "drop": dropped})
    (GOLDEN / "configs.json").write_text("[\n" + ",\n".join(map(json.dumps, listed)) + "\n]\n")
    save_file(tensors, GOLDEN / "configs.safetensors")


main()
