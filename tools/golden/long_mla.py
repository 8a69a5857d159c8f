#!/usr/bin/env python3
"""Makes the long case of the engine's tests: latent attention over 10,000 positions, more than twice what YaRN stretches.

    A/bin/python tools/golden/long_mla.py [OUT]

Writes a `deepseek_v3` checkpoint of two layers and `long.safetensors`: `tokens` (I32, all positions), `positions` (I32, those that
are compared: some on either side of the 4096 that the model claims to be trained with, and the last) and `logits` (F32, of those),
by transformers in FP32. It also prints how much of the logits hangs on what is tested, by how far they move without it.
"""
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, DynamicCache

OUT = Path(__file__).resolve().parent.parent.parent / "crates" / "moeflux-engine" / "tests" / "golden" / "long-mla"
N, CHUNK = 10_000, 500
POSITIONS = [0, 1, 2000, 4095, 4096, 4097, 5000, 6500, 8191, 8192, *range(N - 20, N)]
YARN = dict(type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=4096)
CONFIG = dict(
    architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, q_lora_rank=24, kv_lora_rank=24, qk_nope_head_dim=8, qk_rope_head_dim=16, v_head_dim=12, intermediate_size=40,
    moe_intermediate_size=12, first_k_dense_replace=1, moe_layer_freq=1, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4,
    topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, scoring_func="sigmoid", topk_method="noaux_tc", hidden_act="silu",
    rms_norm_eps=1e-6, rope_theta=10000, rope_scaling=YARN, max_position_embeddings=163840, attention_bias=False, tie_word_embeddings=False,
    torch_dtype="float32", num_nextn_predict_layers=0)


def make_weights(c):
    """Queries are strong, so that few of many positions count, and rotated parts no weaker than the others."""
    rng = np.random.default_rng(11)
    normal = lambda *shape, std, mean=0.0: (rng.standard_normal(shape) * std + mean).astype(np.float32)
    linear = lambda *shape, gain=1.2: normal(*shape, std=gain / math.sqrt(shape[-1]))
    h, heads, latent = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    w = {"model.embed_tokens.weight": normal(c["vocab_size"], h, std=1.0), "model.norm.weight": normal(h, std=0.1, mean=1.0),
         "lm_head.weight": linear(c["vocab_size"], h, gain=2.0)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        a = p + "self_attn."
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[f"{p}{name}.weight"] = normal(h, std=0.1, mean=1.0)
        w[a + "q_a_proj.weight"] = linear(c["q_lora_rank"], h)
        w[a + "q_a_layernorm.weight"] = normal(c["q_lora_rank"], std=0.1, mean=1.0)
        w[a + "q_b_proj.weight"] = linear(heads * (nope + rope), c["q_lora_rank"], gain=2.0)
        w[a + "kv_a_proj_with_mqa.weight"] = linear(latent + rope, h)
        w[a + "kv_a_layernorm.weight"] = normal(latent, std=0.1, mean=1.0)
        w[a + "kv_b_proj.weight"] = linear(heads * (nope + v), latent, gain=2.0)
        w[a + "o_proj.weight"] = linear(h, heads * v)
        if i < c["first_k_dense_replace"]:
            for name, shape in (("gate", (c["intermediate_size"], h)), ("up", (c["intermediate_size"], h)), ("down", (h, c["intermediate_size"]))):
                w[f"{p}mlp.{name}_proj.weight"] = linear(*shape)
            continue
        m = c["moe_intermediate_size"]
        w[p + "mlp.gate.weight"] = linear(c["n_routed_experts"], h, gain=3.0)
        w[p + "mlp.gate.e_score_correction_bias"] = normal(c["n_routed_experts"], std=0.05)
        for block in [f"experts.{e}" for e in range(c["n_routed_experts"])] + ["shared_experts"]:
            for name, shape in (("gate", (m, h)), ("up", (m, h)), ("down", (h, m))):
                w[f"{p}mlp.{block}.{name}_proj.weight"] = linear(*shape, gain=0.5 if name == "down" else 1.2)
    return w


def logits(model, tokens):
    """Of POSITIONS, in chunks over a cache: the scores of a whole prefill would take gigabytes."""
    cache, out = DynamicCache(config=model.config), []
    for start in range(0, N, CHUNK):
        got = model(input_ids=torch.tensor(tokens[None, start:start + CHUNK].astype(np.int64)), past_key_values=cache, use_cache=True)
        cache = got.past_key_values
        out.append(got.logits[0].float())
    return torch.cat(out)[POSITIONS].numpy()


def load(directory, **over):
    config = DeepseekV3Config.from_pretrained(directory)
    for key, value in over.items():
        setattr(config, key, value)
    return DeepseekV3ForCausalLM.from_pretrained(directory, config=config, dtype=torch.float32, attn_implementation="eager").eval()


def main():
    torch.set_grad_enabled(False)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    save_file(make_weights(CONFIG), out / "model.safetensors", metadata={"format": "pt"})
    tokens = np.random.default_rng(12).integers(0, CONFIG["vocab_size"], N).astype(np.int32)
    model = load(out)
    want = logits(model, tokens)
    save_file({"tokens": tokens, "positions": np.array(POSITIONS, np.int32), "logits": want}, out / "long.safetensors")
    print(f"logits' deviation {want.std():.2f}, {sum(f.stat().st_size for f in out.iterdir())} bytes")
    late = slice(POSITIONS.index(4097), None)
    for layer in model.model.layers:
        layer.self_attn.scaling = (CONFIG["qk_nope_head_dim"] + CONFIG["qk_rope_head_dim"]) ** -0.5
    print(f"without mscale they move by {np.abs(logits(model, tokens) - want)[late].max():.2f}")
    plain = load(out, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    for ours, theirs in zip(plain.model.layers, load(out).model.layers):
        ours.self_attn.scaling = theirs.self_attn.scaling
    print(f"without stretched frequencies they move by {np.abs(logits(plain, tokens) - want)[late].max():.2f}")


if __name__ == "__main__":
    main()
