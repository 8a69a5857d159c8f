#!/usr/bin/env python3
"""Makes golden cases with multi-token prediction of cases without: the same model, a random module beside it, and what the
module says. Environment A of make_golden.py:

    A/bin/python tools/golden/make_mtp.py [CASE ...]

A case holds what its base does, and in expected.safetensors also
  mtp.N      F32 [T, vocab]: the module's logits for row i, of token i and the model's output at i - 1 (zeros at the first)
  predicted   I32 [8, 3]: behind each of the last 8 tokens of sequence 1 the three likeliest next ones, each of the module's own
             output before it
"""
import argparse
import json
import math
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import make_families as families
import make_golden as golden
import mtp
from family_shapes import RENAMED, spelled
from stored_formats import encode

SEED = 7
PLACES, DEPTH = 8, 3
# By name: the case that it is made of, and what the published checkpoints call the parts.
QWEN = {
    "pre_fc_norm_embedding": "mtp.pre_fc_norm_embedding", "pre_fc_norm_hidden": "mtp.pre_fc_norm_hidden",
    "fc": "mtp.fc", "norm": "mtp.norm", "layers.0": "mtp.layers.0",
}


QWEN_STREAMS = {part: f"mtp.{part}" for part in (
    "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc_hidden", "fc_embedding", "layers.0", "hyper_connection_mixer")}
HYPER = {"": "mtp.0"}                                # RENAMED has the rest


def past_the_last(n, norm="shared_head.norm"):
    return {
        "pre_fc_norm_embedding": f"model.layers.{n}.enorm", "pre_fc_norm_hidden": f"model.layers.{n}.hnorm",
        "fc": f"model.layers.{n}.eh_proj", "norm": f"model.layers.{n}.{norm}", "layers.0": f"model.layers.{n}",
    }


CASES = {
    "qwen3_5_moe-mtp": "hf-bf16",
    "qwen3_next-mtp": "qwen3_next-hf",
    "deepseek_v3-mtp": "deepseek_v3-hf",
    "glm4_moe-mtp": "glm4_moe-hf",
    "hy_v3-mtp": "hy_v3-hf",
    "qwen4_exp-mtp": "qwen4_exp-hf",
    "deepseek_v4-mtp": "deepseek_v4-hf",
}


def names_of(config):
    if config.model_type.startswith("qwen4"):
        return QWEN_STREAMS
    if config.model_type.startswith("qwen"):
        return QWEN
    if config.model_type == "deepseek_v4":
        return HYPER
    norm = {"hy_v3": "final_layernorm"}.get(config.model_type, "shared_head.norm")
    return past_the_last(config.num_hidden_layers, norm)


def fill(module, seed):
    """Values as make_golden.py gives them to a model, rounded to BF16."""
    if module.config.model_type == "deepseek_v4":
        return fill_hyper(module, seed)
    rng = np.random.default_rng(seed)
    centre = 0.0 if module.config.model_type.startswith("qwen") else 1.0
    for name, p in sorted(module.named_parameters()) + sorted(module.named_buffers()):
        if name.endswith("e_score_correction_bias"):
            value = rng.standard_normal(p.shape) * 0.05
        elif p.dim() == 1 and "norm" in name:
            value = rng.standard_normal(p.shape) * 0.1 + centre
        elif p.dim() == 1:
            value = rng.standard_normal(p.shape) * 0.1
        else:
            gain = 3.0 if name.endswith("mlp.gate.weight") else 1.2
            value = rng.standard_normal(p.shape) * gain / math.sqrt(p.shape[-1])
        with torch.no_grad():
            p.copy_(torch.from_numpy(value.astype(np.float32)).to(torch.bfloat16))


def fill_hyper(module, seed):
    """Values as make_families.py gives them to a model."""
    state = module.state_dict()
    weights = families.make_weights({name: tuple(it.shape) for name, it in state.items()}, module.config.model_type, seed)
    for name, value in encode(weights, "bf16")[1].items():
        state[name].copy_(torch.from_numpy(value))


def tensors_of_hyper(module):
    weights = {f"model.{name}": value.numpy() for name, value in module.state_dict().items()}
    weights = families.published(weights, module.config.model_type)
    return encode({f"mtp.0.{name.removeprefix('layers.0.')}": value for name, value in weights.items()}, "bf16")[0]


def tensors_of(module, names, dtype):
    """Under the published names, one tensor per expert and projection."""
    if module.config.model_type == "deepseek_v4":
        return tensors_of_hyper(module)
    out = {}
    for name, value in module.state_dict().items():
        value = value.detach().to(torch.float32 if name.endswith("e_score_correction_bias") else dtype)
        part = next(it for it in names if name.startswith(it + "."))
        name = names[part] + name.removeprefix(part)
        for pattern, published in RENAMED.get(module.config.model_type, ()):
            name = re.sub(pattern, published, name)
        if module.config.model_type.startswith("qwen4"):                       # published fused
            out[name] = value.contiguous()
        elif name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(value):
                gate, up = both.chunk(2, 0)
                out[name.replace("gate_up_proj", f"{expert}.gate_proj.weight")] = gate.contiguous()
                out[name.replace("gate_up_proj", f"{expert}.up_proj.weight")] = up.contiguous()
        elif name.endswith("experts.down_proj"):
            for expert, down in enumerate(value):
                out[name.replace("down_proj", f"{expert}.down_proj.weight")] = down.clone()
        else:
            out[name] = value.contiguous()
    return out


class Reference:
    def __init__(self, model, module):
        self.model, self.module = model, module

    def output(self, tokens):
        return self.model.model(input_ids=torch.tensor(tokens[None].astype(np.int64)), use_cache=False).last_hidden_state

    def rows(self, tokens, before):
        embedded = self.model.model.embed_tokens(torch.tensor(tokens[None].astype(np.int64)))
        return self.module(embedded, before, self.model.model.rotary_emb)

    def logits(self, tokens):
        return self.head(self.rows(tokens, mtp.shifted(self.output(tokens))))[0].numpy()

    def head(self, rows):
        return self.model.lm_head(rows)

    def predicted(self, tokens):
        """The likeliest tokens behind all of them, and the least margin."""
        before = mtp.shifted(self.output(tokens))
        chosen, margin = [], math.inf
        for _ in range(DEPTH):
            rows = self.rows(tokens, before)
            logits = self.head(rows)[0, -1].numpy()
            margin = min(margin, float(np.diff(np.sort(logits)[-2:])[0]))
            chosen.append(int(logits.argmax()))
            tokens = np.append(tokens, np.int32(chosen[-1]))
            before = torch.cat([before, rows[:, -1:]], dim=1)
        return chosen, margin


class StreamsReference(Reference):
    def output(self, tokens):
        return mtp.streams_of(self.model, torch.tensor(tokens[None].astype(np.int64)))

    def rows(self, tokens, before):
        trunk = self.model.model.language_model
        embedded = trunk.embed_tokens(torch.tensor(tokens[None].astype(np.int64)))
        return self.module(embedded, before, trunk.rotary_emb)

    def head(self, rows):
        return self.model.lm_head(self.module.hyper_connection_mixer(rows))


class HyperReference(Reference):
    def output(self, tokens):
        return mtp.streams_of(self.model, torch.tensor(tokens[None].astype(np.int64)))

    def head(self, rows):
        return self.model.lm_head(self.module.norm(self.module.hc_head(rows)))


def load_spelled(base):
    """A model whose published config has keys that transformers spells differently."""
    config = json.loads((base / "config.json").read_text())
    with tempfile.TemporaryDirectory() as d:
        shutil.copy(base / "model.safetensors", d)
        golden.dump(Path(d) / "config.json", spelled(config))
        return families.load(Path(d), torch.float32)


def make(name, out):
    base, d = golden.DEFAULT_OUT / CASES[name], out / name
    if name.startswith("deepseek_v4"):
        model, of_module, of_reference = load_spelled(base), mtp.HyperMtp, HyperReference
    elif name.startswith("qwen4"):
        model, of_module, of_reference = families.load(base, torch.float32), mtp.StreamsMtp, StreamsReference
    else:
        model, of_module, of_reference = golden.hf_load(base, torch.float32), mtp.Mtp, Reference
    with torch.enable_grad():
        module = of_module(model).eval()
    names = names_of(module.config)
    expected = load_file(base / "expected.safetensors")
    sequences = [expected[f"tokens.{i}"].numpy() for i in range(2)]
    for seed in range(SEED, SEED + 40):
        fill(module, seed)
        reference = of_reference(model, module)
        long = sequences[1]
        predicted = [reference.predicted(long[: len(long) - i]) for i in reversed(range(PLACES))]
        margin = min(it[1] for it in predicted)
        if margin > 0.02:
            break
    shutil.rmtree(d, ignore_errors=True)
    shutil.copytree(base, d)
    d.chmod(0o755)
    stored = {}
    for shard in list(d.glob("model*.safetensors*")):
        if shard.suffix == ".safetensors":
            stored |= load_file(shard)
        shard.unlink()
    dtype = next(it.dtype for name, it in stored.items() if name.endswith("embed_tokens.weight") or name == "embed.weight")
    stored = {k: v for k, v in stored.items() if not any(k.startswith(it + ".") for it in names.values())}
    save_file({**stored, **tensors_of(module, names, dtype)}, d / "model.safetensors", metadata={"format": "pt"})
    for i, tokens in enumerate(sequences):
        expected[f"mtp.{i}"] = torch.from_numpy(np.ascontiguousarray(reference.logits(tokens)))
    expected["predicted"] = torch.tensor([it[0] for it in predicted], dtype=torch.int32)
    save_file(expected, d / "expected.safetensors")
    info = json.loads((d / "expected.json").read_text())
    info["mtp"] = dict(seed=seed, predicted_min_margin=margin)
    golden.dump(d / "expected.json", info)
    for file in d.iterdir():
        file.chmod(0o644)
    size = sum(it.stat().st_size for it in d.iterdir())
    spread = [float(expected[f"mtp.{i}"].std()) for i in range(2)]
    print(f"{name}: {size / 1024:.0f} KB, seed {seed}, margin {margin:.3f}, deviation {spread[0]:.2f} {spread[1]:.2f}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("cases", nargs="*")
    ap.add_argument("--out", type=Path, default=golden.DEFAULT_OUT)
    a = ap.parse_args()
    for name in a.cases or CASES:
        make(name, a.out)


if __name__ == "__main__":
    main()
