#!/usr/bin/env python3
"""Makes small checkpoints in the layouts of compressed-tensors, ModelOpt, GPTQ, AWQ, bitsandbytes, MLX and blocks of FP8, and their
logits.

    A/bin/python tools/golden/make_quantised.py [CASE ...]      # environment A of README.md; bnb-* need bitsandbytes, too

Weights are rounded, and computed from the stored tensors again, by quantised.py. transformers runs them in FP32; its own readers of
these layouts round, and need the tools' libraries. A case has the form of those of make_families.py.
"""

import re
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

import make_families as families
import make_golden as golden
import make_mtp
import mtp
import one_by_one
from quantised_cases import CASES
from stored_formats import table_scales

LENGTHS = (5, 24)


def sequences(vocab, _shape):
    rng = np.random.default_rng(20)
    return [rng.integers(0, vocab, n).astype(np.int32) for n in LENGTHS]


golden.sequences = sequences


def text_of(case):
    return case.config.get("text_config", case.config)


def layout_of(case, name, value):
    if value.ndim < 2 or not name.endswith(".weight") or re.search(r"\.(gate|shared_expert_gate|in_proj_ba)\.weight$", name):
        return None
    module = name.removesuffix(".weight")
    layout = next((layout for pattern, layout in case.layouts.items() if re.search(pattern, module)), None)
    return None if case.names == "mlx" and value.shape[-1] % layout.group else layout


def encode(case, weights, rng):
    """(tensors as they are stored, the weights that they mean)"""
    stored, meant = {}, {}
    scales = table_scales(weights)
    stored |= {table + ".weight_scale": torch.tensor(scale) for table, scale in scales.items()}
    for name, value in weights.items():
        layout, scale = layout_of(case, name, value), scales.get(name.split(".shard_")[0])
        if scale is not None:
            stored[name] = torch.from_numpy(value / scale).to(torch.float8_e4m3fn)
            meant[name] = stored[name].float() * torch.tensor(scale)
            continue
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


def of_layers(tensors):
    """Tensors of single experts, by the name of the module of all, the projection, and what follows; and all others."""
    experts, others = defaultdict(dict), {}
    for name, value in tensors.items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+_proj)\.(\w+)", name)
        if found:
            experts[found[1], found[3], found[4]][int(found[2])] = value
        else:
            others[name] = value
    return {key: torch.stack([parts[n] for n in range(len(parts))]) for key, parts in experts.items()}, others


def fused(tensors, name_of=lambda block, part, _: f"{block}.{part}"):
    """The tensors with those of all experts of a layer together, the rows of gates before those of ups."""
    experts, out = of_layers(tensors)
    for (block, part, suffix), value in experts.items():
        if part == "gate_proj":
            out[name_of(block, "gate_up_proj", suffix)] = torch.cat([value, experts[block, "up_proj", suffix]], 1)
        elif part == "down_proj":
            out[name_of(block, part, suffix)] = value
    return out


def published(stored, case):
    """The stored tensors under the names of the case's tool."""
    if case.names == "fused":
        without_shapes = {name: value for name, value in stored.items() if not name.endswith(".weight_shape") or ".experts." not in name}
        return fused(without_shapes, lambda block, part, suffix: f"{block}.{part}_{suffix.removeprefix('weight_')}")
    if case.names == "mlx":
        experts, others = of_layers(stored)
        others |= {f"{block}.switch_glu.{part}.{suffix}": value for (block, part, suffix), value in experts.items()}
        return {re.sub(r"^model\.language_model\.", "language_model.model.", name): value for name, value in others.items()}
    return stored


def write(directory, case, stored):
    key = "quantization" if case.names == "mlx" else "quantization_config"
    families.write_hf(directory, case.more | published(stored, case), case.config | {key: case.declaration})
    if case.file:
        golden.dump(directory / "hf_quant_config.json", case.file)


def values_of(case, meant):
    return fused(meant) if case.config["model_type"] in families.FUSED else meant


def prediction(case, model, seed, rng):
    """(tensors of a random module that predicts, as they are stored; its reference, which computes with what they mean)"""
    with torch.enable_grad():
        module = mtp.StreamsMtp(model).eval()
    make_mtp.fill(module, seed)
    tensors = make_mtp.tensors_of(module, make_mtp.QWEN_STREAMS, torch.float32)
    weights = families.published({name: value.numpy() for name, value in tensors.items()}, case.config["model_type"], fused=False)
    stored, meant = encode(case, weights, rng)
    module.load_state_dict({name.removeprefix("mtp."): value for name, value in fused(meant).items()})
    return stored, make_mtp.StreamsReference(model, module)


def build(case, out, values, seed, enough):
    config, text = case.config, text_of(case)
    family = config["model_type"]
    state = families.new_model(config).state_dict()
    constants = {name: value for name, value in state.items() if not value.is_floating_point()}
    shapes = {name: tuple(value.shape) for name, value in state.items() if value.is_floating_point()}
    if text["tie_word_embeddings"]:
        del shapes["lm_head.weight"]
    weights = families.published(families.make_weights(shapes, family, seed), family, text.get("split_ngram_parts", 1), fused=False)
    rng = np.random.default_rng(seed + 1000)
    stored, meant = encode(case, weights, rng)
    families.write_hf(values, values_of(case, meant) | constants, config)
    model, gaps = families.load(values, torch.float32), families.Gaps()
    try:
        families.full_by(model)(sequences(text["vocab_size"], "")[1])
        if families.clearness(family, gaps.router, gaps.indexer) < enough:
            return None
        tensors, info = golden.measure(dict(text=text), "small", families.full_by(model, gaps), golden.hf_step(model))
    finally:
        gaps.undo()
    info["min_router_gap"] = gaps.router
    if gaps.indexer < float("inf"):
        info["min_indexer_gap"] = gaps.indexer
    if case.has_mtp:
        more, reference = prediction(case, model, seed, rng)
        stored |= more
        places = [reference.predicted(tensors["tokens.1"][: len(tensors["tokens.1"]) - i]) for i in reversed(range(make_mtp.PLACES))]
        info["mtp"] = dict(seed=seed, predicted_min_margin=min(margin for _, margin in places))
        info["greedy_min_margin"] = min(info["greedy_min_margin"], 4 * info["mtp"]["predicted_min_margin"])
        tensors |= {f"mtp.{nth}": reference.logits(tensors[f"tokens.{nth}"]) for nth in range(len(LENGTHS))}
        tensors["predicted"] = np.array([tokens for tokens, _ in places], np.int32)
    write(out, case, stored | constants)
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
