#!/usr/bin/env python3
"""Trains a module for the demo model that predicts the token after the next one, and writes the checkpoint with it.

    A/bin/python tools/demo-model/train_mtp.py CHECKPOINT DATA OUT [--seconds N] [--tokens N]

The model itself stays as it is. What it says about DATA (docs.bin and chat.bin, which `prepare_tokens.py` wrote) is computed once,
then the module is trained on that. It begins as a copy of the last layer with full attention.
"""
import argparse
import math
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import train

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import mtp

LENGTH, ROWS = 256, 8
LEARNING_RATE, WARMUP = 1.5e-3, 50
HELD_OUT = 16  # sequences


def said(model, data, n_tokens):
    """Sequences of documentation and conversations, and the trunk's output for them."""
    rng, sources = np.random.default_rng(train.SEED), [np.fromfile(data / it, dtype=np.uint16) for it in ("docs.bin", "chat.bin")]
    tokens, hidden, begin = [], [], time.time()
    for step in range(n_tokens // (LENGTH * ROWS)):
        rows = []
        for row in range(ROWS):
            source = sources[row % 2]
            start = rng.integers(0, len(source) - LENGTH)
            rows.append(source[start : start + LENGTH])
        rows = torch.from_numpy(np.stack(rows).astype(np.int64))
        with torch.no_grad():
            hidden.append(model.model(input_ids=rows, use_cache=False).last_hidden_state.to(torch.bfloat16))
        tokens.append(rows)
        if step % 20 == 0:
            print(f"{(step + 1) * LENGTH * ROWS} tokens in {time.time() - begin:.0f} s", flush=True)
    return torch.cat(tokens), torch.cat(hidden)


def predict(model, module, tokens, hidden):
    embedded = model.model.embed_tokens(tokens)
    return model.lm_head(module(embedded, mtp.shifted(hidden.float()), model.model.rotary_emb))


def judge(model, module, tokens, hidden):
    """How often the likeliest prediction is what the model itself finds likeliest, and what the text says."""
    with torch.no_grad():
        guess = predict(model, module, tokens, hidden).argmax(-1)[:, 1:-1]
        chosen = model.lm_head(hidden.float()).argmax(-1)[:, 1:-1]
    return (guess == chosen).float().mean().item(), (guess == tokens[:, 2:]).float().mean().item()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint", type=Path)
    ap.add_argument("data", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--seconds", type=float, default=1800)
    ap.add_argument("--tokens", type=int, default=400_000)
    a = ap.parse_args()
    torch.manual_seed(train.SEED)
    model = AutoModelForCausalLM.from_pretrained(a.checkpoint, dtype=torch.float32, attn_implementation="sdpa")
    config = model.config
    model.requires_grad_(False)
    moe = train.DenseMoe(config.num_experts, config.num_experts_per_tok)
    moe.install()
    module = mtp.Mtp(model)
    with torch.no_grad():
        width = config.hidden_size
        module.fc.weight.normal_(std=0.3 / math.sqrt(width))
        module.fc.weight[:, width:] += torch.eye(width)
        module.fc.weight[:, :width] += 0.5 * torch.eye(width)

    tokens, hidden = said(model, a.data, a.tokens)
    held = slice(0, HELD_OUT)
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, betas=train.BETAS, weight_decay=0.05)
    rng, begin, step = np.random.default_rng(1), time.time(), 0
    model.eval()
    while (elapsed := time.time() - begin) < a.seconds:
        rate = LEARNING_RATE * min(1, (step + 1) / WARMUP) * (0.5 * (1 + math.cos(math.pi * elapsed / a.seconds)) * 0.98 + 0.02)
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = torch.from_numpy(rng.integers(HELD_OUT, len(tokens), ROWS))
        module.train()
        moe.losses.clear()
        logits = predict(model, module, tokens[rows], hidden[rows])
        # What the model itself says there, one position on.
        with torch.no_grad():
            wanted = model.lm_head(hidden[rows].float()).softmax(-1)
        entropy = F.kl_div(F.log_softmax(logits, -1), wanted, reduction="none").sum(-1).mean()
        loss = entropy + sum(moe.losses)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), train.MAX_GRADIENT_NORM)
        optimizer.step()
        if step % 50 == 0:
            module.eval()
            chosen, text = judge(model, module, tokens[held], hidden[held])
            print(f"step {step}, {elapsed:.0f} s, divergence {entropy.item():.3f}; held out: {chosen:.3f} as the model says, "
                  f"{text:.3f} as the text goes on", flush=True)
        step += 1

    a.out.mkdir(parents=True, exist_ok=True)
    for file in a.checkpoint.iterdir():
        shutil.copyfile(file, a.out / file.name)
    tensors = load_file(a.checkpoint / "model.safetensors")
    tensors |= {f"mtp.{name}": value for name, value in train.checkpoint_tensors(module).items()}
    save_file(tensors, a.out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
