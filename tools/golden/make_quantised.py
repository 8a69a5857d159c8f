#!/usr/bin/env python3
"""Makes small checkpoints in the layouts of compressed-tensors, ModelOpt, GPTQ and AWQ, and their logits.

    A/bin/python tools/golden/make_quantised.py [CASE ...]      # environment A of README.md

Weights are rounded, and computed from the stored tensors again, by quantised.py. transformers runs them in FP32; its own readers of
these layouts round, and need the tools' libraries. A case has the form of those of make_families.py.
"""

import re
import tempfile
from pathlib import Path

import numpy as np
import torch

import make_families as families
import make_golden as golden
import one_by_one
from quantised_cases import CASES

LENGTHS = (5, 24)


def sequences(vocab, _shape):
    rng = np.random.default_rng(20)
    return [rng.integers(0, vocab, n).astype(np.int32) for n in LENGTHS]


golden.sequences = sequences


def layout_of(case, name, value):
    if value.ndim < 2 or not name.endswith(".weight") or re.search(r"\.(gate|shared_expert_gate|in_proj_ba)\.weight$", name):
        return None
    module = name.removesuffix(".weight")
    return next((layout for pattern, layout in case.layouts.items() if re.search(pattern, module)), None)


def encode(case, weights, rng):
    """(tensors as they are stored, the weights that they mean)"""
    stored, meant = dict(case.more), {}
    for name, value in weights.items():
        layout = layout_of(case, name, value)
        if layout is None:
            rounded = torch.from_numpy(value).to(torch.float32 if name.endswith(families.STAYS_F32) else torch.bfloat16)
            stored[name], meant[name] = rounded, rounded.float()
            continue
        tensors = layout.store(value, rng)
        values = np.ascontiguousarray(layout.read(tensors), np.float32)
        assert values.shape == value.shape and np.corrcoef(values.ravel(), value.ravel())[0, 1] > 0.97, name
        stored |= {f"{name.removesuffix('weight')}{suffix}": part.clone() for suffix, part in tensors.items()}
        meant[name] = torch.from_numpy(values)
    return stored, meant


def write(directory, case, stored):
    declared = case.config | dict(quantization_config=case.declaration)
    families.write_hf(directory, stored, declared)
    if case.file:
        golden.dump(directory / "hf_quant_config.json", case.file)


def build(case, out, values, seed, enough):
    config, family = case.config, case.config["model_type"]
    shapes = {name: tuple(value.shape) for name, value in families.new_model(config).state_dict().items()}
    weights = families.published(families.make_weights(shapes, family, seed), family)
    stored, meant = encode(case, weights, np.random.default_rng(seed + 1000))
    write(out, case, stored)
    families.write_hf(values, meant, config)
    model, gaps = families.load(values, torch.float32), families.Gaps()
    try:
        families.full_by(model)(sequences(config["vocab_size"], "")[1])
        if families.clearness(family, gaps.router, gaps.indexer) < enough:
            return None
        tensors, info = golden.measure(dict(text=config), "small", families.full_by(model, gaps), golden.hf_step(model))
    finally:
        gaps.undo()
    info["min_router_gap"] = gaps.router
    low = families.full_by(families.load(values, torch.bfloat16))
    for nth, sequence in enumerate(info["sequences"]):
        sequence["bf16_kl"] = golden.mean_kl(tensors[f"logits.{nth}"], low(tensors[f"tokens.{nth}"])[0])
    return tensors, info


def make(name, out, n_seeds):
    case, directory = CASES[name], out / name
    with tempfile.TemporaryDirectory() as values:
        run = lambda seed, enough=0.0: build(case, directory, Path(values), seed, enough)
        seed, (tensors, info) = families.search(run, n_seeds, case.config["model_type"])
        run(seed)
    one_by_one.save(directory, "transformers FP32, eager, dequantised weights", seed, tensors, info)


if __name__ == "__main__":
    one_by_one.run(__doc__, CASES, make)
