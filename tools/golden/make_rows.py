#!/usr/bin/env python3
"""Makes the golden data of rows that are embeddings, of cases that exist: `rows.safetensors` in their folders. Environment A of
make_golden.py:

    A/bin/python tools/golden/make_rows.py

A prompt of tokens, two images of embeddings as a vision tower could give them, and tokens again, at the positions that transformers
gives them; then greedy decoding at the positions after the greatest:
  tokens            I32 [T], -1 where a row is an embedding
  embeddings        F32 [N, hidden]
  deepstack         F32 [2, N, hidden]: what the first layers add to these rows
  positions         I32 [3, T]
  NAME.logits       F32 [T, vocab]: at every row; NAME is `plain`, or `deepstack` with these additions, where the family has them
  NAME.greedy       I32 [STEPS], NAME.decoded F32 [STEPS, vocab]: tokens decoded, and the logits after each
"""
import argparse
import inspect
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

import make_golden as golden

CASES = ("qwen3_vl_moe-hf", "glm4v_moe-hf")
GRIDS = ((1, 3, 4), (2, 2, 1))                                               # frames, rows and columns after merging
STEPS = 8
SEED = 11


def rows(model, hidden):
    """Token ids with -1 for embeddings, and positions as `get_rope_index` counts them: text goes on behind the greatest."""
    rng = np.random.default_rng(SEED)
    tokens, positions, start = [], [], 0
    for grid, n_text in zip((*GRIDS, None), (5, 3, 4)):
        text = rng.integers(0, 90, n_text)
        tokens.extend(text)
        positions.append(torch.arange(start, start + n_text)[None].expand(3, -1))
        start += n_text
        if grid:
            at = model.get_vision_position_ids(start, torch.tensor(grid), 1, 1)
            tokens.extend([-1] * at.shape[1])
            positions.append(at)
            start = int(at.max()) + 1
    n = tokens.count(-1)
    embeddings = torch.from_numpy(rng.standard_normal((n, hidden)).astype(np.float32))
    deepstack = torch.from_numpy((0.5 * rng.standard_normal((2, n, hidden))).astype(np.float32))
    return torch.tensor(tokens), torch.cat(positions, 1), embeddings, deepstack


def run(m, tokens, positions, embeddings, deepstack):
    """Logits of every row, then greedy decoding: tokens, and the logits after each."""
    text, mask = m.model.language_model, tokens < 0
    inputs = text.embed_tokens(tokens.clamp(min=0))
    inputs[mask] = embeddings
    more = {} if deepstack is None else dict(visual_pos_masks=mask[None], deepstack_visual_embeds=list(deepstack))
    cache = transformers.DynamicCache(config=text.config)
    out = text(inputs_embeds=inputs[None], position_ids=positions[:, None], cache=cache, use_cache=True, **more)
    logits = m.lm_head(out.last_hidden_state)[0]
    greedy, decoded, last = [], [], logits[-1]
    for step in range(STEPS):
        greedy.append(int(last.argmax()))
        at = torch.full((3, 1, 1), int(positions.max()) + 1 + step)
        embedded = text.embed_tokens(torch.tensor([[greedy[-1]]]))
        out = text(inputs_embeds=embedded, position_ids=at, cache=cache, use_cache=True)
        last = m.lm_head(out.last_hidden_state)[0, -1]
        decoded.append(last)
    margin = float(torch.stack([logits[-1], *decoded[:-1]]).topk(2).values.diff().abs().min())
    return logits, torch.tensor(greedy), torch.stack(decoded), margin


def make(folder):
    m = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    tokens, positions, embeddings, deepstack = rows(m.model, m.config.get_text_config().hidden_size)
    out = dict(tokens=tokens.int(), positions=positions.int(), embeddings=embeddings, deepstack=deepstack)
    has_deepstack = "deepstack_visual_embeds" in inspect.signature(m.model.language_model.forward).parameters
    for name, added in (("plain", None), ("deepstack", deepstack))[:1 + has_deepstack]:
        logits, greedy, decoded, margin = run(m, tokens, positions, embeddings, added)
        out |= {f"{name}.logits": logits, f"{name}.greedy": greedy.int(), f"{name}.decoded": decoded}
        print(f"{name}: {len(tokens)} rows, greatest position {int(positions.max())}, deviation {float(logits.std()):.2f}, "
              f"smallest margin of a choice {margin:.1e}, greedy {greedy.tolist()}")
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "rows.safetensors")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", type=Path, default=golden.DEFAULT_OUT)
    a = ap.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    for case in CASES:
        make(a.out / case)


if __name__ == "__main__":
    main()
