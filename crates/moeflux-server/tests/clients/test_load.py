"""Many clients at a time: no error but a full queue's, and no memory that grows.

MOEFLUX_LOAD_SECONDS says for how long."""

import json
import os
import random
import threading
import time

import httpx

from conftest import MODEL, Server

SECONDS = float(os.environ.get("MOEFLUX_LOAD_SECONDS", "20"))
N_CLIENTS = 32
QUESTIONS = ["What does `Vec::push` do?", "What is 23 + 45?", "What is `Option::unwrap_or` for?",
             "Tell me about ownership.", "What type is `Vec`?"]


def test_many_clients():
    server = Server("--sessions", "8", "--queue", "24")
    ends = time.monotonic() + SECONDS
    lock = threading.Lock()
    first_tokens, codes, wrong = [], {}, []

    def one(client, rng):
        body = {"model": MODEL, "stream": True, "max_tokens": rng.randint(5, 80), "temperature": 0.8,
                "messages": [{"role": "system", "content": "You are brief. " * rng.choice([1, 20])},
                             {"role": "user", "content": rng.choice(QUESTIONS) + " " * rng.randint(0, 9)}]}
        start, first, last = time.monotonic(), None, None
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code == 200:
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        last = line
                        if first is None and "[DONE]" not in line and \
                                json.loads(line[6:])["choices"][0]["delta"].get("content"):
                            first = time.monotonic() - start
                    if rng.random() < 0.001:
                        return
                if last != "data: [DONE]":
                    wrong.append(last)
            else:
                response.read()
        with lock:
            codes[response.status_code] = codes.get(response.status_code, 0) + 1
            if first is not None:
                first_tokens.append(first)
        if response.status_code == 429:
            time.sleep(min(float(response.headers["retry-after"]), 1))

    def client(i):
        rng = random.Random(i)
        with httpx.Client(base_url=server.url, timeout=120) as client:
            while time.monotonic() < ends:
                try:
                    one(client, rng)
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
    memory = [it["memory"]["resident_bytes"] for it in samples]
    tokens = samples[-1]["now"]["generated_tokens"]
    server.stop()
    first_tokens.sort()
    p95 = first_tokens[int(len(first_tokens) * 0.95)]
    print(f"\n{codes}, {tokens / SECONDS:.0f} tokens a second, first token p50 "
          f"{first_tokens[len(first_tokens) // 2]:.3f} s, p95 {p95:.3f} s, memory "
          f"{memory[0] >> 20} to {memory[-1] >> 20} MiB")
    assert not wrong, wrong[:5]
    assert set(codes) <= {200, 429} and codes[200] > 50
    # What a session keeps grows until all have been used; then it stays.
    assert memory[-1] < memory[len(memory) // 2] + (24 << 20), memory
