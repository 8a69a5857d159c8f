"""Pictures from the clients that people use, and 200 odd ones, with a small model that sees."""

import base64
import random
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
import httpx
import ollama
import openai
import pytest

from conftest import Server

CRATES = Path(__file__).parents[3]
DATA = CRATES / "moeflux-image/tests/data"
MODEL = "qwen3_vl_moe"
ALPHA = (DATA / "alpha.png").read_bytes()
QUESTION = "What is it?"


@pytest.fixture(scope="module")
def seeing():
    server = Server("-m", str(CRATES / f"moeflux-engine/tests/towers/{MODEL}"), "--sessions", "4")
    yield server
    assert server.stop() == 0
    assert not any("panicked" in line for line in server.lines), server.lines


def encoded(picture):
    return base64.b64encode(picture).decode()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, *, depth=8, colour=2, rows=None, claimed=None):
    """A PNG of grey rows, whose header may claim another size."""
    per_row = (width * depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 1) + 7) // 8
    size = claimed or (width, height)
    data = zlib.compress(b"".join(b"\0" + b"\x80" * per_row for _ in range(height if rows is None else rows)))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0))
    palette = chunk(b"PLTE", b"\1\2\3" * 2) if colour == 3 else b""
    return b"\x89PNG\r\n\x1a\n" + header + palette + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def odd_pictures():
    """Names and files, most of which are no pictures."""
    yield from {
        "empty": b"", "one byte": b"\x89", "text": b"What is it?", "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "bmp": b"BM" + bytes(60), "tiff": b"II*\0" + bytes(60), "heic": b"\0\0\0\x18ftypheic" + bytes(60),
        "pdf": b"%PDF-1.7\n", "zip": b"PK\3\4" + bytes(60), "zeros": bytes(5000),
    }.items()
    sizes = [(1, 1), (1, 2), (2, 1), (3, 3), (1, 200), (200, 1), (20_000, 1), (1, 20_000), (199, 1), (201, 1), (4000, 20)]
    yield from ((f"{w} by {h}", png(w, h)) for w, h in sizes)
    claims = [(0, 0), (0, 9), (9, 0), (2**31 - 1, 1), (1, 2**31 - 1), (2**31, 1), (60_000, 60_000), (2**32 - 1, 2**32 - 1)]
    yield from ((f"claims {w} by {h}", png(8, 8, claimed=(w, h))) for w, h in claims)
    yield "rows missing", png(64, 64, rows=3)
    yield "rows too many", png(8, 8, rows=64)
    yield "a bomb", png(20_000, 20_000, colour=0, depth=1)
    for depth in (0, 1, 2, 3, 4, 8, 16, 255):
        for colour in (0, 1, 2, 3, 4, 5, 6, 7):
            yield f"depth {depth} of kind {colour}", png(30, 30, depth=depth, colour=colour)
    chance = random.Random(52)
    for path in sorted([*DATA.glob("*.*g"), *DATA.glob("*.webp"), *DATA.glob("formats/*.gif"), DATA / "formats/jpeg-cmyk.jpg"]):
        whole = path.read_bytes()
        yield path.name, whole
        yield f"{path.name} cut", whole[:chance.randrange(1, len(whole))]
        changed = bytearray(whole)
        for _ in range(3):
            changed[chance.randrange(len(whole))] = chance.randrange(256)
        yield f"{path.name} changed", bytes(changed)
        yield f"{path.name} twice", whole + whole


def chat_body(picture):
    url = f"data:image/png;base64,{encoded(picture)}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


def responses_body(picture):
    url = f"data:image/png;base64,{encoded(picture)}"
    content = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": QUESTION}]
    return "/v1/responses", {"input": [{"role": "user", "content": content}], "max_output_tokens": 1}


def messages_body(picture):
    source = {"type": "base64", "media_type": "image/png", "data": encoded(picture)}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    return "/v1/messages", {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


def ollama_body(picture):
    message = {"role": "user", "content": QUESTION, "images": [encoded(picture)]}
    return "/api/chat", {"messages": [message], "stream": False, "options": {"num_predict": 1}}


BODIES = [chat_body, responses_body, messages_body, ollama_body]


def message_of(response):
    error = response.json()["error"]
    return error if isinstance(error, str) else error["message"]


def test_odd_pictures_are_answered_or_refused_in_a_line_by_every_dialect(seeing):
    pictures = list(odd_pictures())
    assert len(pictures) > 200
    with httpx.Client(base_url=seeing.url, timeout=120) as client, ThreadPoolExecutor(4) as pool:
        def ask(body, picture):
            path, fields = body(picture)
            return client.post(path, json={"model": MODEL, "temperature": 0, **fields})

        def outcomes(named):
            name, picture = named
            found = [ask(body, picture) for body in BODIES]
            codes = {response.status_code for response in found}
            assert len(codes) == 1 and codes <= {200, 400}, (name, codes, [response.text[:200] for response in found])
            if codes == {400}:
                for response in found:
                    line = message_of(response)
                    assert "\n" not in line and 20 < len(line) < 400, (name, line)
            return codes.pop()

        codes = list(pool.map(outcomes, pictures))
        seen = {name for (name, _), code in zip(pictures, codes) if code == 200}
    assert {"1 by 1", "alpha.png", "exif6.jpg", "rgb16.png", "progressive.jpg", "gif.gif", "depth 16 of kind 2"} <= seen
    assert not {"empty", "text", "rows missing", "a bomb", "20000 by 1", "claims 60000 by 60000"} & seen


def test_openais_client_shows_pictures(seeing):
    client = openai.OpenAI(base_url=seeing.url + "/v1", api_key="none")
    url = f"data:image/png;base64,{encoded(ALPHA)}"
    picture = {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}
    text = {"type": "text", "text": QUESTION}

    def ask(*parts):
        messages = [{"role": "user", "content": [*parts]}]
        return client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, temperature=0)

    without, one, two = ask(text), ask(picture, text), ask(picture, picture, text)
    costs = [reply.usage.prompt_tokens for reply in (without, one, two)]
    assert costs[2] - costs[1] == costs[1] - costs[0] > 4
    parts = [{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": QUESTION}]
    reply = client.responses.create(
        model=MODEL, input=[{"role": "user", "content": parts}], max_output_tokens=4, temperature=0)
    assert reply.output_text == one.choices[0].message.content
    assert reply.usage.input_tokens == costs[1]


def test_anthropics_client_shows_and_counts_pictures(seeing):
    client = anthropic.Anthropic(base_url=seeing.url, api_key="none")
    source = {"type": "base64", "media_type": "image/png", "data": encoded(ALPHA)}
    picture = {"type": "image", "source": source}
    question = {"role": "user", "content": [picture, {"type": "text", "text": QUESTION}]}
    counted = client.messages.count_tokens(model=MODEL, messages=[question])
    reply = client.messages.create(model=MODEL, messages=[question], max_tokens=4)
    usage = reply.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


def test_ollamas_client_shows_pictures(seeing):
    client = ollama.Client(host=seeing.url)

    def ask(**fields):
        message = {"role": "user", "content": QUESTION, **fields}
        return client.chat(model=MODEL, messages=[message], options={"temperature": 0, "num_predict": 4})

    with_path = ask(images=[str(DATA / "alpha.png")])
    with_bytes = ask(images=[ALPHA])
    assert with_path.message.content == with_bytes.message.content
    assert with_path.prompt_eval_count == with_bytes.prompt_eval_count > ask().prompt_eval_count + 4
    assert "vision" in client.show(MODEL).capabilities
