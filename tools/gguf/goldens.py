#!/usr/bin/env python3
"""Makes small GGUF files of several architectures, with types mixed by layer and projection, and their logits.

    A/bin/python tools/gguf/goldens.py [CASE ...]      # environment A of tools/golden/README.md, and gguf from PyPI

A model of transformers is filled with what ggml's own Python package decodes from the random blocks that the file holds, and is run
in FP32. A case has the form of those in tools/golden; its folder holds model.gguf in the place of a checkpoint's files.
"""

import math
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))

import container
import golden_cases
import keys
import make_families as families
import make_golden as golden
import make_mtp
import mtp
import one_by_one
import random_blocks
from layout import DELTA, codec, divisors

LENGTHS = (5, 24)
# The type of rows that no type of a case's list fits.
NARROW = "IQ4_NL"


def sequences(vocab, _shape):
    rng = np.random.default_rng(20)
    return [rng.integers(0, vocab, n).astype(np.int32) for n in LENGTHS]


golden.sequences = sequences


class Types:
    """Chooses the type of each tensor."""

    def __init__(self, case):
        self.lists = {kind: getattr(case, kind).split() for kind in ("dense", "gate", "up", "down")}
        self.taken = dict.fromkeys(self.lists, 0)
        self.router = case.router

    def of(self, name, shape):
        if "ffn_gate_inp" in name:
            return self.router
        is_matrix = len(shape) > 1 and name.endswith(".weight") and not any(part in name for part in ("conv1d", "indexer.proj", "ssm_norm"))
        if not is_matrix:
            return "F32"
        kind = next((kind for kind in ("gate", "up", "down") if f"ffn_{kind}_exps" in name), "dense")
        all_types = self.lists[kind]
        for _ in all_types:
            chosen = all_types[self.taken[kind] % len(all_types)]
            self.taken[kind] += 1
            if shape[-1] % random_blocks.block_cols(chosen) == 0:
                return chosen
        return NARROW


def encode(weights, config, types, rng):
    """(tensors as they are stored, the weights that they mean)"""
    stored, meant = [], {}
    for name, value in weights.items():
        coding = codec(name, config)
        parts = []
        for stored_name, part in zip(coding.names, coding.split(value)):
            kind = types.of(stored_name, part.shape)
            if kind in random_blocks.PLAIN:
                data, part = random_blocks.plain(kind, np.ascontiguousarray(part, np.float32))
            else:
                data, part = random_blocks.make(rng, kind, part.shape, float(part.std()))
            stored.append(container.Stored(stored_name, part.shape, random_blocks.type_id(kind), data))
            parts.append(part)
        meant[name] = np.ascontiguousarray(coding.join(parts), np.float32)
        assert np.allclose(coding.join(coding.split(value)), value, atol=1e-6), name
    return stored, meant


def filled(config, meant):
    model = families.new_model(config).float()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in meant.items()}, strict=False)
    return model.eval()


def weights_of(config, seed):
    shapes = {name: tuple(value.shape) for name, value in families.new_model(config).state_dict().items()}
    is_tied = config["tie_word_embeddings"]
    shapes.pop("lm_head.weight" if is_tied else None, None)
    family = "qwen3_next" if config["model_type"] in DELTA else config["model_type"]
    weights = families.make_weights(shapes, family, seed)
    if is_tied and family not in families.TIED:
        weights["model.embed_tokens.weight"] *= 2 / math.sqrt(config["hidden_size"])
    return weights


def measured(model, config, enough):
    """What the model says, and how clear its choices are; None where they are not."""
    gaps = families.Gaps()
    try:
        families.full_by(model)(sequences(config["vocab_size"], "")[1])
        if families.clearness(config["model_type"], gaps.router, gaps.indexer) < enough:
            return None
        tensors, info = golden.measure(dict(text=config), "small", families.full_by(model, gaps), golden.hf_step(model))
    finally:
        gaps.undo()
    info["min_router_gap"] = gaps.router
    if gaps.indexer < math.inf:
        info["min_indexer_gap"] = gaps.indexer
    return tensors, info


def predicting(model, case, types, rng, seed):
    """The tensors of a layer that predicts the token after the next one, and that layer in FP32."""
    config = case.config
    with torch.enable_grad():
        module = mtp.Mtp(model).eval()
    make_mtp.fill(module, seed)
    block = f"model.layers.{config['num_hidden_layers']}."
    names = {name: block + name.removeprefix("layers.0.") for name in module.state_dict()}
    weights = {names[name]: value.numpy() for name, value in module.state_dict().items()}
    stored, meant = encode(weights, config, types, rng)
    module.load_state_dict({name: torch.from_numpy(meant[names[name]]) for name in names})
    return stored, module


def expected_of_prediction(model, module, tensors):
    reference = make_mtp.Reference(model, module)
    for nth in range(len(LENGTHS)):
        tensors[f"mtp.{nth}"] = np.ascontiguousarray(reference.logits(tensors[f"tokens.{nth}"]))
    long = tensors["tokens.1"]
    rows = [reference.predicted(long[: len(long) - nth]) for nth in reversed(range(make_mtp.PLACES))]
    tensors["predicted"] = np.array([row[0] for row in rows], np.int32)
    return min(row[1] for row in rows)


def build(case, seed, enough=0.0):
    config, rng, types = case.config, np.random.default_rng(seed + 1000), Types(case)
    stored, meant = encode(weights_of(config, seed), config, types, rng)
    model = filled(config, meant)
    result = measured(model, config, enough)
    if result is None:
        return None
    tensors, info = result
    if case.predicts:
        more, module = predicting(model, case, types, rng, seed)
        info["mtp"] = dict(seed=seed, predicted_min_margin=expected_of_prediction(model, module, tensors))
        stored += more
    divided_by = divisors(config)
    if divided_by is not None:
        data, _ = random_blocks.plain("F32", divided_by)
        stored.append(container.Stored("rope_freqs.weight", divided_by.shape, random_blocks.type_id("F32"), data))
    low = families.full_by(filled(config, meant).to(torch.bfloat16))
    for nth, sequence in enumerate(info["sequences"]):
        sequence["bf16_kl"] = golden.mean_kl(tensors[f"logits.{nth}"], low(tensors[f"tokens.{nth}"])[0])
    return tensors, info, stored


def make(name, out, n_seeds):
    case = golden_cases.CASES[name]
    seed, (tensors, info, stored) = families.search(lambda *given: build(case, *given), n_seeds, case.config["model_type"])
    directory = out / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    container.write(directory / "model.gguf", keys.keys(case.config, int(case.predicts)), stored)
    one_by_one.save(directory, "transformers FP32, eager, weights decoded by gguf", seed, tensors, info)


if __name__ == "__main__":
    one_by_one.run(__doc__, golden_cases.CASES, make)
