"""Changes one key of the golden checkpoints' configs at a time (absent, null, another value, another type, two
names or places that disagree), and holds the logits of `moeflux logits --exact` against transformers in float32.

    A/bin/python tools/golden/vary_configs.py target/debug/moeflux [FAMILY...]

A line for each variation: "same", "refused" (by moeflux, with its message), "more" (moeflux runs what transformers
refuses), or "OTHER" (both give numbers, which differ by more than 2e-3). Exits with 1 where there is an OTHER.
"""

import copy
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, logging

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "crates/moeflux-engine/tests/golden"
FAMILIES = ROOT / "crates/moeflux-model/src/families"
TABLES = {path.parent.name: json.loads(path.read_text()) for path in sorted(FAMILIES.glob("*/keys.json"))}
CASES = {"qwen3_5_moe": ["hf-bf16", "hf-text-per-expert"]}
GONE = object()
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def keys_of(family):
    """The keys to vary, with other values to try."""
    table = TABLES[family]
    more = {
        "rope_theta": [GONE, None, 500.0], "partial_rotary_factor": [GONE, None, 0.5, 1.0, "0.5"],
        "rope_scaling": [GONE, None, {}, YARN, {"type": "linear", "factor": 2.0}, dict(YARN, rope_theta=500.0)],
        "rope_parameters": [GONE, None, {"rope_type": "default", "rope_theta": 500.0}, YARN, "yarn",
                            {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}],
        "original_max_position_embeddings": [8], "rope_type": ["yarn"], "rotary_dim": [GONE, 4, None, "4"],
        "indexer_rope_interleave": [False, True], "num_local_experts": [GONE, 4], "num_experts": [GONE, 4],
        "n_routed_experts": [GONE, 4], "experts_per_token": [1], "num_mtp_layers": [0], "mlp_bias": [True],
        "use_sliding_window": [GONE, True, False, None], "sliding_window": [GONE, None, 4, 0], "type": ["yarn"],
        "text_config": [{"rms_norm_eps": 0.5}], "decoder_sparse_step": [GONE, 2], "mlp_only_layers": [[], None, [0]],
    }
    for key in table["keys"]:
        more.setdefault(key, [])
        more[key] += [GONE, None, "x", 1.5]
    for key in ("routed_scaling_factor", "rms_norm_eps", "swiglu_alpha", "swiglu_limit"):
        more.setdefault(key, []).append(0.7)
    for key in ("norm_topk_prob", "rope_interleave", "tie_word_embeddings", "attention_bias", "use_qk_norm",
                "use_routing_bias"):
        more.setdefault(key, []).extend([True, False])
    for key in ("n_group", "topk_group", "n_shared_experts", "num_experts_per_tok", "index_topk", "moe_layer_freq",
                "first_k_dense_replace", "num_key_value_heads", "index_topk_freq", "index_skip_topk_offset"):
        more.setdefault(key, []).extend([1, 2])
    more.setdefault("hidden_act", []).extend(["swish", "gelu"])
    more.setdefault("scoring_func", []).append("softmax")
    return more


def reference(path, tokens):
    """The logits of transformers; None where it refuses, or makes weights up."""
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
            output_loading_info=True)
        if any(info.get(kind) for kind in ("missing_keys", "mismatched_keys", "error_msgs")):
            return None
        with torch.no_grad():
            return model.eval()(tokens[None]).logits[0]
    except Exception:  # whatever its code fails with
        return None


def ours(binary, path, tokens):
    """The logits of moeflux, or its message."""
    (path / "tokens.json").write_text(json.dumps([tokens.tolist()]))
    out = path / "logits.out"
    run = subprocess.run([binary, "logits", "--tokens", path / "tokens.json", "--out", out, "--exact", "-m", path],
                         capture_output=True, text=True, timeout=120)
    if run.returncode:
        return (run.stderr or run.stdout).strip().splitlines()[-1]
    return load_file(out)["logits.0"]


def variations(family, config):
    """What is changed, and the config changed so."""
    nested = isinstance(config.get("text_config"), dict)
    for key, values in keys_of(family).items():
        for value in values:
            places = [("text_config.", lambda it: it["text_config"]), ("", lambda it: it)] if nested else \
                [("", lambda it: it)]
            for prefix, place in places:
                changed = copy.deepcopy(config)
                target = place(changed)
                if value is GONE:
                    if key not in target:
                        continue
                    del target[key]
                else:
                    target[key] = value
                yield f"{prefix}{key}={'(absent)' if value is GONE else json.dumps(value)}", changed


def check(binary, family, case):
    """Prints a line for each variation of a case; the number that differ."""
    n_other = 0
    expected = load_file(GOLDEN / case / "expected.safetensors")
    tokens = expected["tokens.0"].long()
    config = json.loads((GOLDEN / case / "config.json").read_text())
    for name, changed in variations(family, config):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            shutil.copytree(GOLDEN / case, path, ignore=lambda *_: ["config.json", "expected.safetensors"])
            (path / "config.json").write_text(json.dumps(changed))
            have = ours(binary, path, tokens)
            if isinstance(have, str):
                print(f"refused {case} {name} | {have[-150:]}", flush=True)
                continue
            want = reference(path, tokens)
            if want is None:
                print(f"more    {case} {name}", flush=True)
                continue
            diff = float((have - want).abs().max())
            n_other += diff > 2e-3
            print(f"{'OTHER  ' if diff > 2e-3 else 'same   '} {case} {name} | {diff:.1e}", flush=True)
    return n_other


def main():
    """Checks the families named, or all."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    binary, *families = sys.argv[1:]
    n_other = sum(check(binary, family, case) for family in families or TABLES
                  for case in CASES.get(family, [f"{family}-hf"]))
    print(f"{n_other} give other numbers")
    sys.exit(bool(n_other))


main()
