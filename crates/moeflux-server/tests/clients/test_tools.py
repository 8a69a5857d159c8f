"""What tools/clients tries, as far as its packages are small: likelihoods as lm-evaluation-harness asks for them, and Vercel's SDK."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import MODEL, events

ROOT = Path(__file__).resolve().parents[4]
sys.path.append(str(ROOT / "tools/clients"))

import likelihoods  # noqa: E402

# In the harness: what `local-completions` adds to the tokens of a context with a continuation.
REQUEST = {"model": MODEL, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}


def test_likelihoods_are_those_of_all_logits(http, tmp_path):
    def tokens(text):
        return http.post("/tokenize", json={"content": text}).json()["tokens"]

    pairs = [(context, more) for context, choices, _ in likelihoods.QUESTIONS for more in choices]
    sequences = [tokens(context + more) for context, more in pairs]
    lengths = [len(tokens(context)) for context, _ in pairs]
    want = likelihoods.summed(Path(os.environ["MOEFLUX_BIN"]), tmp_path, sequences, lengths)
    choices = http.post("/v1/completions", json={**REQUEST, "prompt": sequences}).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(pairs)))
    for choice, sequence, length, sum_of_logits in zip(choices, sequences, lengths, want):
        lists = choice["logprobs"]
        assert len(lists["tokens"]) == len(sequence) + 1
        # Without the one token of the answer, as the harness reads it.
        assert abs(sum(lists["token_logprobs"][length:-1]) - sum_of_logits) <= likelihoods.MOST
    # A stream says the same.
    with http.stream("POST", "/v1/completions", json={**REQUEST, "prompt": sequences, "stream": True}) as response:
        parts = [it["choices"][0] for _, it in events(response) if it != "[DONE]"]
    for choice in choices:
        own = [part["logprobs"]["token_logprobs"] for part in parts
               if part["index"] == choice["index"] and part["logprobs"]]
        assert sum(own, []) == choice["logprobs"]["token_logprobs"]


@pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed")
def test_vercels_sdk(tmp_path):
    folder = os.environ.get("MOEFLUX_VERCEL_JS")
    if folder is None:
        folder = tmp_path
        command = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", ".", "ai@6.0.326",
                   "@ai-sdk/openai@3.0.141"]
        subprocess.run(command, cwd=folder, check=True, timeout=180)
    command = [sys.executable, ROOT / "tools/clients/vercel.py", os.environ["MOEFLUX_BIN"], folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  ") == 7 and "FAIL" not in done.stdout and "SKIP" not in done.stdout
