"""Bodies of 16 MB: refused quickly, with numbers, in little memory that comes back."""

import concurrent.futures
import json
import re
import time

import httpx
import pytest

from conftest import MODEL, Server

N_BYTES = 15_900_000
CTX = 4096
MIB = 1 << 20


def memory(server, name):
    """A line of /proc/PID/status, in bytes."""
    with open(f"/proc/{server.process.pid}/status") as status:
        return int(re.search(rf"{name}:\s+(\d+) kB", status.read())[1]) << 10


def text(unit):
    return unit * (N_BYTES // len(json.dumps(unit, ensure_ascii=False).encode()[1:-1]))


def chat(messages, **fields):
    return {"model": MODEL, "max_tokens": 1, "messages": messages, **fields}


def user(content):
    return {"role": "user", "content": content}


def tool(**function):
    return {"type": "function", "function": {"name": "f", **function}}


def nested(depth, leaf):
    return leaf if depth == 0 else {"type": "object", "properties": {"a": nested(depth - 1, leaf)}}


def calling(arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [user("a"), {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "b"}]


WORDS = text("some words in a row ")
SMALL = {"description": "some words " * 20, "parameters": {"type": "object", "properties": {}}}
BODIES = {
    "words": chat([user(WORDS)]),
    "one letter": chat([user(text("a"))]),
    "Chinese": chat([user(text("世界和平，"))]),
    "emoji": chat([user(text("😀"))]),
    "base64": chat([user(text("Zm9vYmFy9x/"))]),
    "spaces": chat([user("a" + text(" ") + "b")]),
    "line ends": chat([user("a" + text("\n") + "b")]),
    "accents": chat([user(text("e\u0301a\u0300 "))]),
    "small messages": chat([user("a"), {"role": "assistant", "content": "b"}] * 200_000),
    "middling messages": chat([user("word " * 40), {"role": "assistant", "content": "b"}] * 60_000),
    "a large schema": chat([user("a")], tools=[tool(parameters=nested(20, {"description": WORDS}))]),
    "many tools": chat([user("a")], tools=[{**tool(**SMALL)}] * 45_000),
    "numbers": chat([user("a")], tools=[tool(parameters={"enum": [1] * 3_900_000})]),
    "deep": chat([user("a")], tools=[tool(parameters=nested(40, {}))] * 7000),
    "arguments": chat(calling(json.dumps({"a": WORDS}))),
}
REFUSED = {400, 413}


@pytest.fixture(scope="module")
def small():
    server = Server("--ctx", str(CTX))
    yield server
    assert server.stop() == 0
    assert not any("panicked" in line for line in server.lines), server.lines


def post(server, path, body):
    start = time.monotonic()
    reply = httpx.post(server.url + path, content=body, timeout=120,
                       headers={"content-type": "application/json"})
    return reply, time.monotonic() - start


def encoded(body):
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("kind", BODIES)
def test_large_bodies_are_refused_in_little_memory(small, kind):
    body = encoded(BODIES[kind])
    assert 4_000_000 < len(body) < 16 * MIB
    post(small, "/v1/chat/completions", encoded(chat([user("a")])))
    before = memory(small, "VmRSS")
    with open(f"/proc/{small.process.pid}/clear_refs", "w") as refs:
        refs.write("5")  # the peak begins anew
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda _: post(small, "/v1/chat/completions", body), range(3)))
    peak, after = memory(small, "VmHWM"), memory(small, "VmRSS")
    print(f"{kind}: {max(s for _, s in replies):.1f} s, before {before >> 20}, peak {peak >> 20}, "
          f"after {after >> 20} MiB")
    for reply, seconds in replies:
        assert reply.status_code in REFUSED, reply.text[:300]
        error = reply.json()["error"]
        if reply.status_code == 400:
            assert error["code"] == "context_length_exceeded", error
            least = int(re.search(r"prompt has (?:at least )?(\d+) tokens", error["message"])[1])
            assert least > CTX
        assert seconds < 20
    assert peak - before < 96 * MIB
    assert after - before < 32 * MIB


def test_other_routes_refuse_large_bodies(small):
    before = memory(small, "VmRSS")
    with open(f"/proc/{small.process.pid}/clear_refs", "w") as refs:
        refs.write("5")
    for path, body in [
        ("/v1/completions", {"model": MODEL, "prompt": WORDS}),
        ("/v1/messages", chat([user(WORDS)])),
        ("/v1/messages/count_tokens", {"model": MODEL, "messages": [user(WORDS)]}),
        ("/v1/responses", {"model": MODEL, "input": WORDS}),
        ("/apply-template", {"messages": [user(WORDS)]}),
        ("/tokenize", {"content": WORDS}),
    ]:
        reply, seconds = post(small, path, encoded(body))
        assert reply.status_code == 400, (path, reply.text[:300])
        assert re.search(r"at least \d+ tokens", reply.text), (path, reply.text[:300])
    assert memory(small, "VmHWM") - before < 96 * MIB


def test_a_prompt_that_is_a_little_too_long_is_counted(small):
    body = {"model": MODEL, "messages": [user("some words in a row " * 4000)]}
    counted = post(small, "/v1/messages/count_tokens", encoded(body))[0]
    assert counted.status_code == 200, counted.text
    n_tokens = counted.json()["input_tokens"]
    assert n_tokens > CTX
    refused = post(small, "/v1/messages", encoded({**body, "max_tokens": 1}))[0]
    assert f"prompt is too long: {n_tokens} tokens > {CTX} maximum" in refused.json()["error"]["message"]
