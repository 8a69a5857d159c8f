"""Many clients at a time, of which a tenth hang up: every answer is the one that a client gets alone, there is no
error but a full queue's, and memory does not grow. With one model, and with two of which one is loaded at a time.

MOEFLUX_LOAD_SECONDS says for how long, MOEFLUX_LOAD_MODELS names the folders of two other models, and
MOEFLUX_LOAD_TOKENS the longest answer."""

import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from conftest import MODEL, Server, until

SECONDS = float(os.environ.get("MOEFLUX_LOAD_SECONDS", "20"))
MAX_TOKENS = int(os.environ.get("MOEFLUX_LOAD_TOKENS", "80"))
N_CLIENTS = 64
QUESTIONS = ["What does `Vec::push` do?", "What is 23 + 45?", "What is `Option::unwrap_or` for?",
             "Tell me about ownership.", "What type is `Vec`?"]


def bodies(models):
    rng = random.Random(7)
    for i in range(24):
        system = {"role": "system", "content": "You are brief. " * rng.choice([1, 20])}
        question = {"role": "user", "content": rng.choice(QUESTIONS) + " " * rng.randint(0, 9)}
        yield {"model": models[i % len(models)], "stream": True, "max_tokens": rng.randint(5, MAX_TOKENS), "temperature": 0.8, "seed": i,
               "messages": [system, question]}


def folders(scratch):
    """Two models that answer differently."""
    if given := os.environ.get("MOEFLUX_LOAD_MODELS"):
        return given.split(os.pathsep)
    synthetic = scratch / "synthetic"
    subprocess.run([os.environ["MOEFLUX_BIN"], "synth", "--shape", "tiny", "--out", synthetic], check=True,
                   capture_output=True)
    return [str(Path(__file__).parents[3] / "moeflux-cli/demo"), str(synthetic)]


@pytest.mark.parametrize("n_models", [1, 2])
def test_many_clients(n_models, tmp_path):
    names, args = [MODEL], []
    if n_models == 2:
        both = folders(tmp_path)
        names = [Path(folder).name for folder in both]
        args = [arg for folder in both for arg in ["-m", folder]] + ["--max-loaded", "1", "--ctx", "1024"]
    server = Server("--sessions", "8", "--queue", "48", *args)
    lock = threading.Lock()
    first_tokens, codes, wrong, n_left = [], {}, [], 0

    def ask(client, body, leave_after=None):
        """The answer's text, or `None` where the client hangs up after so many events or the queue is full."""
        start, text, last = time.monotonic(), "", None
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            with lock:
                codes[response.status_code] = codes.get(response.status_code, 0) + 1
            if response.status_code != 200:
                response.read()
                time.sleep(min(float(response.headers["retry-after"]), 1))
                return None
            first, n_events = None, 0
            for line in response.iter_lines():
                if not line.startswith("data: "):
                    continue
                last, n_events = line, n_events + 1
                if n_events == leave_after:
                    return None
                if line != "data: [DONE]":
                    event = json.loads(line[6:])
                    assert event["model"] == body["model"], event
                    piece = event["choices"][0]["delta"].get("content") or ""
                    if piece and first is None:
                        first = time.monotonic() - start
                    text += piece
        assert last == "data: [DONE]", last
        with lock:
            first_tokens.append(first)
        return text

    with httpx.Client(base_url=server.url, timeout=120) as client:
        in_turn = sorted(bodies(names), key=lambda body: body["model"])
        alone = [(body, ask(client, body)) for body in in_turn]
    first_tokens.clear()
    ends = time.monotonic() + SECONDS

    def client(i):
        nonlocal n_left
        rng = random.Random(i)
        with httpx.Client(base_url=server.url, timeout=120) as client:
            while time.monotonic() < ends:
                body, want = rng.choice(alone)
                leave_after = rng.randint(1, 4) if rng.random() < 0.1 else None
                try:
                    got = ask(client, body, leave_after)
                    if got is None:
                        n_left += leave_after is not None
                    elif got != want:
                        wrong.append((want, got))
                except Exception as error:
                    wrong.append(repr(error))
                    return

    threads = [threading.Thread(target=client, args=(i,)) for i in range(N_CLIENTS)]
    [it.start() for it in threads]
    samples = []
    while time.monotonic() < ends:
        time.sleep(SECONDS / 20)
        samples.append(httpx.get(server.url + "/status", timeout=60).json())
    [it.join() for it in threads]
    # None is loaded for a moment while models are switched.
    planned = max(it["memory"]["planned_bytes"] for it in samples)
    memory = [it["memory"]["resident_bytes"] for it in samples]
    tokens = samples[-1]["now"]["generated_tokens"]
    n_switches = sum("was unloaded (for " in line for line in server.lines)

    def is_idle():
        now = httpx.get(server.url + "/status", timeout=60).json()["now"]
        return now["running"] == now["waiting"] == 0

    until(is_idle)
    server.stop()
    first_tokens.sort()
    print(f"\n{codes}, {n_left} hung up, {tokens / SECONDS:.0f} tokens a second, first token p50 "
          f"{first_tokens[len(first_tokens) // 2]:.3f} s, p95 {first_tokens[int(len(first_tokens) * 0.95)]:.3f} s, "
          f"memory {memory[0] >> 20} to {memory[-1] >> 20} MiB, {planned >> 20} planned, {n_switches} switches")
    assert not wrong, wrong[:5]
    assert set(codes) <= {200, 429} and codes[200] > 50 and n_left > 0
    if n_models == 2:
        assert n_switches >= 2
        assert max(memory) < planned + (256 << 20), (max(memory), planned)
        return
    # What a session keeps grows until all have been used; then it stays.
    assert memory[-1] < memory[len(memory) // 2] + (24 << 20), memory
