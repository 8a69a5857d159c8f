#!/usr/bin/env python3
"""Turns outside reference data into cases that the tests read: `cases_from_npz.py MODELS OUT`, then `MOEFLUX_GOLDEN=OUT cargo test`.

MODELS holds one folder per family: checkpoints `hf*/` and `mlx-*/`, and logits `golden.npz`, `golden.json`, `mlx-*.golden.npz`
(`text.tokens`, `text.logits`, ..., `greedy.prompt`, `greedy.out`). Checkpoint files are linked, not copied.
"""
import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SEQUENCES = ("text", "rand", "short")


def convert(checkpoint, logits, facts, greedy, case):
    case.mkdir(parents=True, exist_ok=True)
    for f in checkpoint.iterdir():
        link = case / f.name
        link.unlink(missing_ok=True)
        link.symlink_to(f.resolve())
    config = json.loads((case / "config.json").read_text())
    if case.name.startswith("gpt_oss-mlx"):                                  # mlx-lm rounds the ends of YaRN's ramp in any case
        config["rope_scaling"]["truncate"] = True
        (case / "config.json").unlink()
        (case / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = {"greedy.prompt": greedy[0], "greedy.tokens": greedy[1]}
    for n, s in enumerate(SEQUENCES):
        tensors[f"tokens.{n}"], tensors[f"logits.{n}"] = logits[f"{s}.tokens"], np.ascontiguousarray(logits[f"{s}.logits"])
    save_file(tensors, case / "expected.safetensors")
    sequences = [dict(tokens=len(logits[f"{s}.tokens"]), bf16_kl=facts["seqs"][s]["bf16_kl"]) for s in SEQUENCES]
    info = dict(min_router_gap=facts["min_router_gap"], greedy_min_margin=facts["greedy_min_margin"] if len(greedy[1]) else None, sequences=sequences)
    (case / "expected.json").write_text(json.dumps(info, indent=1) + "\n")


def main():
    models, out = Path(sys.argv[1]), Path(sys.argv[2])
    nothing = np.zeros(0, np.int32)
    for family in sorted(p.parent for p in models.glob("*/golden.json")):
        facts, own = json.loads((family / "golden.json").read_text()), np.load(family / "golden.npz")
        prompt = own["greedy.prompt"]
        for checkpoint in sorted(p.parent for p in family.glob("*/config.json")):
            kind = checkpoint.name
            if kind.startswith("mlx-"):                                      # no greedy run of these was recorded
                other = family / f"{kind}.golden.npz"
                if other.exists():
                    convert(checkpoint, np.load(other), facts, (prompt, nothing), out / f"{family.name}-{kind}")
            elif kind != "hf-f32":                                           # a leftover of the conversion
                convert(checkpoint, own, facts, (prompt, own["greedy.out"]), out / f"{family.name}-{kind}")


if __name__ == "__main__":
    main()
