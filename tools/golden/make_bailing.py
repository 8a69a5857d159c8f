#!/usr/bin/env python3
"""Makes the golden cases of `bailing_moe`, of both generations, with the publisher's own model code: transformers has none.

    git clone https://github.com/inclusionAI/Ling && git clone https://github.com/inclusionAI/Ling-V2
    python3 -m venv C && C/bin/pip install torch transformers==4.55.4 safetensors numpy
    C/bin/python tools/golden/make_bailing.py Ling/models Ling-V2/models [CASE ...]

A case has the form of those of make_families.py. Nothing is cached between tokens here, so `decode_vs_prefill` says nothing.
"""

import importlib
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import make_families as families
import make_golden as golden
import one_by_one
from family_shapes import config

SHARED = dict(
    embedding_dropout=0.0, hidden_size=40, intermediate_size=52, moe_intermediate_size=12, norm_topk_prob=True, num_attention_heads=6,
    num_experts=12, num_experts_per_tok=3, num_hidden_layers=3, num_key_value_heads=2, output_dropout=0.0, rms_norm_eps=1e-06,
    rope_scaling=None, rope_theta=600000, use_qkv_bias=False)


def first(**over):
    return config("bailing_moe", "BailingMoeForCausalLM", dict(
        **SHARED, first_k_dense_replace=0, head_dim=16, norm_head=False, norm_softmax=False, num_shared_experts=2, use_bias=False, vocab_size=97), **over)


def second(**over):
    """As it is published: under the name of the first generation."""
    return config("bailing_moe", "BailingMoeV2ForCausalLM", dict(
        **SHARED, first_k_dense_replace=1, head_dim=16, moe_router_enable_expert_bias=True, moe_shared_expert_intermediate_size=12, n_group=4,
        num_nextn_predict_layers=0, num_shared_experts=1, partial_rotary_factor=0.5, router_dtype="fp32", routed_scaling_factor=2.5,
        score_function="sigmoid", topk_group=2, use_bias=False, use_qk_norm=True, use_rmsnorm=True, vocab_size=98), **over)


CASES = {
    "bailing_moe-hf": first(),
    "bailing_moe-biases": first(use_qkv_bias=True, use_bias=True, num_shared_experts=None, num_hidden_layers=2, first_k_dense_replace=1),
    "bailing_moe_v2-hf": second(),
}


class Code:
    """The publisher's classes, of both generations."""

    def __init__(self, folders):
        self.root = tempfile.TemporaryDirectory()
        package = Path(self.root.name) / "bailing"
        package.mkdir()
        (package / "__init__.py").touch()
        for folder in folders:
            for file in folder.glob("*.py"):
                shutil.copy(file, package)
        sys.path.insert(0, self.root.name)

    def model(self, config):
        generation = "_v2" if "V2" in config["architectures"][0] else ""
        load = lambda kind: importlib.import_module(f"bailing.{kind}_bailing_moe{generation}")
        of_config = getattr(load("configuration"), config["architectures"][0].replace("ForCausalLM", "Config"))
        made = of_config(**{key: value for key, value in config.items() if key != "model_type"})
        made._attn_implementation = "eager"
        return getattr(load("modeling"), config["architectures"][0])(made).float().eval()


def full_by(model):
    def full(tokens):
        gaps = families.Gaps()
        try:
            out = model(input_ids=torch.tensor(tokens[None].astype(np.int64)), use_cache=False).logits[0].float().numpy()
        finally:
            gaps.undo()
        return out, gaps.router
    return full


def step_by(full):
    """Decoding without a cache."""
    def step(tokens, n):
        if n < len(tokens):
            return full(tokens)[0][n - 1 :], [], 0.0
        out, margin = [], np.inf
        for _ in range(golden.GREEDY):
            row = full(np.concatenate([tokens, np.array(out, tokens.dtype)]))[0][-1]
            out.append(int(row.argmax()))
            margin = min(margin, float(np.diff(np.sort(row)[-2:])[0]))
        return None, out, margin
    return step


def make(code, name, out, n_seeds):
    config = CASES[name]
    by_sigmoid = "V2" in config["architectures"][0]
    shapes = {key: tuple(value.shape) for key, value in code.model(config).state_dict().items()}
    family = "deepseek_v3" if by_sigmoid else "mixtral"              # of which the weights of routers depend

    def build(seed, _enough=0.0):
        stored, meant = families.encode(families.make_weights(shapes, family, seed), "bf16")
        families.write_hf(out / name, stored, config)
        model = code.model(config)
        model.load_state_dict({key: torch.from_numpy(value) for key, value in meant.items()})
        full = full_by(model)
        tensors, info = golden.measure(dict(text=config), "small", full, step_by(full))
        low = full_by(model.to(torch.bfloat16))
        for nth, sequence in enumerate(info["sequences"]):
            sequence["bf16_kl"] = golden.mean_kl(tensors[f"logits.{nth}"], low(tensors[f"tokens.{nth}"])[0])
        return tensors, info

    seed, (tensors, info) = families.search(build, n_seeds, family)
    build(seed)
    one_by_one.save(out / name, "the publisher's code in FP32, eager", seed, tensors, info)


if __name__ == "__main__":
    one_by_one.run(__doc__, CASES, make, prepare=Code)
