#!/usr/bin/env python3
"""Whether drafting pays where experts stream: what a verification batch reads, and how often drafts without a model are right.

    python3 tools/quality/drafting.py routing TRACES.npz
    python3 tools/quality/drafting.py lookup TOKENIZER.json FILE ...
    python3 tools/quality/drafting.py rewriting TOKENIZER.json OUT.json OLD NEW

`routing` replays the routing of consecutive tokens (`val_act`, `chat_act`: layer, token, rank) through a cache of a share of all experts
(least frequently used leaves, counts halve as the store's do), one token at a time and in batches of n, and prints experts read per
token. A batch of n checks n - 1 drafts; with a share `a` of drafts right it brings 1 + a + ... + a^(n-1) tokens. The break-even is the
least `a` at which the bytes read for a token are no more than without drafts.

`lookup` drafts the continuation of the latest earlier place where the last tokens (3, else 2) occurred, as prompt lookup does, on texts
taken as what a model says: behind the marker line `=====` where there is one, else everything. It prints how often there is a draft, how
many of its tokens are right, and tokens per step.

`rewriting` writes the ids of a file and of its next version, behind a question and a marker, for `moeflux bench --teacher-force OUT.json`: a
model that was asked to change the first one says the second. It prints the tokens of the prompt, and of what follows.
"""
import json
import sys
from pathlib import Path

import numpy as np

SHARES = [0.0, 0.125, 0.25, 0.5, 0.75]
BATCHES = range(2, 9)
HALVE_AFTER = 4  # uses of an expert


class Cache:
    """Least frequently used, in one layer-blind pool as the store has it."""

    def __init__(self, slots, n_experts):
        self.slots, self.period = slots, HALVE_AFTER * n_experts
        self.counts, self.last, self.held, self.clock, self.uses = {}, {}, set(), 0, 0

    def request(self, keys):
        keys = set(keys)
        missed = [it for it in keys if it not in self.held]
        for key in keys:
            self.clock += 1
            self.counts[key] = self.counts.get(key, 0) + 1
            self.last[key] = self.clock
        self.uses += len(keys)
        if self.uses >= self.period:
            self.uses = 0
            self.counts = {k: v / 2 for k, v in self.counts.items()}
        for key in missed:
            if len(self.held) >= self.slots:
                free = [it for it in self.held if it not in keys]
                if not free:
                    continue
                self.held.remove(min(free, key=lambda it: (self.counts[it], self.last[it])))
            self.held.add(key)
        return len(missed)


def reads_per_token(act, n, share, n_experts):
    n_layers, n_tokens, _ = act.shape
    cache = Cache(round(share * n_layers * n_experts), n_layers * n_experts)
    reads, warm = 0, n_tokens // 4
    for start in range(0, n_tokens - n, n):
        for layer in range(n_layers):
            keys = {(layer, int(it)) for it in act[layer, start:start + n].ravel()}
            missed = cache.request(keys) if cache.slots else len(keys)
            reads += missed if start >= warm else 0
    counted = len([it for it in range(0, n_tokens - n, n) if it >= warm]) * n
    return reads / counted


def tokens_of(a, n):
    return sum(a**i for i in range(n))


def break_even(ratio, n):
    """Least share of right drafts at which a batch, which reads `ratio` as much a position, reads no more a token."""
    needed = n * ratio
    if needed <= 1:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_of(middle, n) < needed else (low, middle)
    return high


def routing(path, n_tokens=1200):
    traces = np.load(path)
    for name in ("val", "chat"):
        act = traces[f"{name}_act"][:, :n_tokens].astype(int)
        n_experts = 32
        print(f"\n{name}: experts read a position (of {act.shape[0] * act.shape[2]}), break-even acceptance")
        print("| cache | " + " | ".join(["1"] + [f"n = {n}" for n in BATCHES]) + " |")
        for share in SHARES:
            one = reads_per_token(act, 1, share, n_experts)
            cells = [f"{one:.1f}"]
            for n in BATCHES:
                many = reads_per_token(act, n, share, n_experts)
                cells.append(f"{many:.1f} ({100 * break_even(many / one, n):.0f} %)")
            print(f"| {100 * share:g} % | " + " | ".join(cells) + " |", flush=True)


def draft(tokens, longest):
    """What followed the last tokens the last time."""
    for size in (3, 2):
        tail = tokens[-size:]
        for at in range(len(tokens) - size - 1, -1, -1):
            if tokens[at:at + size] == tail:
                return tokens[at + size:at + size + longest]
    return []


def steps_of(tokens, start, n):
    at, steps, drafted, right, with_draft = start, 0, 0, 0, 0
    while at < len(tokens):
        guess = draft(tokens[:at], n - 1)
        good = 0
        while good < len(guess) and at + good < len(tokens) and guess[good] == tokens[at + good]:
            good += 1
        steps, drafted, right, with_draft = steps + 1, drafted + len(guess), right + good, with_draft + bool(guess)
        at += good + 1
    return steps, drafted, right, with_draft


def lookup(tokenizer, files):
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(tokenizer).encode
    for name in files:
        parts = [it for it in Path(name).read_text().split("\n#####\n") if it.strip()]
        for n in (2, 3, 4, 8):
            total, made = np.zeros(4), 0
            for part in parts:
                head, marker, said = part.partition("\n=====\n")
                prompt = encode(head + "\n", add_special_tokens=False).ids if marker else []
                said = encode(said if marker else head, add_special_tokens=False).ids[:600]
                total += steps_of(prompt + said, len(prompt), n)
                made += len(said)
            steps, drafted, right, with_draft = total
            print(f"{name}, n = {n}: {100 * with_draft / steps:.1f} % of steps have a draft, {100 * right / max(drafted, 1):.1f} % of drafted tokens "
                  f"right, {made / steps:.3f} tokens a step, {(steps + drafted) / steps:.2f} positions a step")


def rewriting(tokenizer, out, old, new):
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(tokenizer).encode
    texts = ["Change this file:\n" + Path(old).read_text() + "\n=====\n", Path(new).read_text()]
    prompt, said = (encode(it, add_special_tokens=False).ids for it in texts)
    Path(out).write_text(json.dumps(prompt + said))
    print(f"--prompt-tokens {len(prompt)} --gen-tokens {len(said)}")


if __name__ == "__main__":
    if sys.argv[1] == "routing":
        routing(sys.argv[2])
    elif sys.argv[1] == "rewriting":
        rewriting(*sys.argv[2:])
    else:
        lookup(sys.argv[2], sys.argv[3:])
