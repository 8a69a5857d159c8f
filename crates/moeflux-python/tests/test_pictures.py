"""Pictures, with a small model that sees."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, TextBlock
from PIL import Image

import moeflux
from conftest import DEMO
from moeflux.langchain import ChatMoeflux
from moeflux.llama_index import MoefluxLLM
from moeflux.openai import OpenAI

CRATES = Path(__file__).parents[2]
TOWER = CRATES / "moeflux-engine/tests/towers/qwen3_vl_moe"
PICTURES = CRATES / "moeflux-image/tests/data"
PICTURE = PICTURES / "odd.png"
ODD = PICTURE.read_bytes()
URL = "data:image/png;base64," + base64.b64encode(ODD).decode()
GREEDY: Any = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def seeing() -> Iterator[moeflux.Model]:
    with moeflux.load(TOWER, device="cpu", ctx=2048, sessions=2) as loaded:
        yield loaded


def asked(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]


def tokens(model: moeflux.Model, *parts: dict[str, Any]) -> list[int]:
    found = model.tokenizer.apply_chat_template(asked(*parts))
    assert isinstance(found, list)
    return found


def as_pil() -> Image.Image:
    return Image.open(io.BytesIO(ODD))


WAYS: list[dict[str, Any]] = [
    {"type": "image", "image": ODD},
    {"type": "image", "image": bytearray(ODD)},
    {"type": "image", "image": memoryview(ODD)},
    {"type": "image", "image": PICTURE},
    {"type": "image", "image": str(PICTURE)},
    {"type": "image", "image": URL},
    {"type": "image", "image": as_pil()},
    {"type": "image", "path": str(PICTURE)},
    {"type": "image", "url": URL},
    {"type": "image", "base64": base64.b64encode(ODD).decode(), "mime_type": "image/png"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(ODD).decode()}},
    {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}},
    {"type": "image_url", "image_url": URL},
    {"type": "input_image", "image_url": URL},
]


@pytest.mark.parametrize("nth", range(len(WAYS)))
def test_each_way_to_write_a_picture_is_the_same_prompt(seeing: moeflux.Model, nth: int) -> None:
    expected = tokens(seeing, WAYS[0])
    assert tokens(seeing, WAYS[nth]) == expected
    assert max(expected) >= 1 << 31 and len(set(expected)) < len(expected)


def test_pictures_change_answers_and_are_counted(seeing: moeflux.Model) -> None:
    words = seeing.chat(asked(), **GREEDY)
    one = seeing.chat(asked(WAYS[0]), **GREEDY, logprobs=3)
    again = seeing.chat(asked(WAYS[0]), **GREEDY, logprobs=3)
    assert again.logprobs == one.logprobs and again.usage.reused_tokens == one.usage.prompt_tokens - 1
    other = {"type": "image", "image": PICTURES / "wide.png"}
    two = seeing.chat(asked(WAYS[0], other), **GREEDY, logprobs=3)
    assert words.usage.prompt_tokens < one.usage.prompt_tokens < two.usage.prompt_tokens
    assert one.usage.prompt_tokens == len(tokens(seeing, WAYS[0]))
    assert one.logprobs != two.logprobs and one.logprobs != seeing.chat(asked(other), **GREEDY, logprobs=3).logprobs
    text = seeing.tokenizer.apply_chat_template(asked(WAYS[0]), tokenize=False)
    assert isinstance(text, str) and "<|image_pad|>" in text


def test_batches_streams_and_conversations_have_pictures(seeing: moeflux.Model) -> None:
    prompts = [asked({"type": "image", "image": PICTURES / name}) for name in ("odd.png", "wide.png", "gray.png")]
    alone = [seeing.chat(prompt, **GREEDY).text for prompt in prompts]
    assert [answer.text for answer in seeing.generate_batch(prompts, **GREEDY)] == alone
    assert ["".join(map(str, seeing.stream(prompt, **GREEDY))) for prompt in prompts] == alone
    begun = [*prompts[0], {"role": "assistant", "content": alone[0]}, *prompts[1]]
    assert seeing.chat(begun, **GREEDY).usage.reused_tokens > 0


def test_the_adapters_send_pictures(seeing: moeflux.Model) -> None:
    expected = seeing.chat(asked(WAYS[0]), **GREEDY)
    with OpenAI(seeing) as client:
        answer = client.chat.completions.create(model="any", messages=asked(WAYS[11]), **GREEDY)  # type: ignore[arg-type]
        assert answer.choices[0].message.content == expected.text
        assert answer.usage is not None and answer.usage.prompt_tokens == expected.usage.prompt_tokens
    chat = ChatMoeflux(model=seeing, **GREEDY)
    for part in (WAYS[9], WAYS[11]):
        found = chat.invoke([HumanMessage(content=[part, {"type": "text", "text": "What is it?"}])])
        assert found.content == expected.text
    llm = MoefluxLLM(model=seeing, **GREEDY)
    for block in (ImageBlock(path=PICTURE), ImageBlock(image=ODD), ImageBlock(image=io.BytesIO(ODD))):
        message = ChatMessage(role=MessageRole.USER, blocks=[block, TextBlock(text="What is it?")])
        assert llm.chat([message]).message.content == expected.text


def test_low_detail_costs_fewer_tokens(tmp_path: Path) -> None:
    sharp = tmp_path / "sharp"
    shutil.copytree(TOWER, sharp)
    processor = json.loads((sharp / "preprocessor_config.json").read_text())
    processor["size"]["longest_edge"] *= 40
    (sharp / "preprocessor_config.json").write_text(json.dumps(processor))
    file = io.BytesIO()
    Image.new("RGB", (1200, 800), "red").save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    with moeflux.load(sharp, device="cpu", ctx=2048) as model:
        n_words = len(tokens(model))
        costs = [
            len(tokens(model, part)) - n_words
            for part in (
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                {"type": "input_image", "image_url": url, "detail": "low"},
                {"type": "image", "image": url, "detail": "high"},
            )
        ]
    assert costs[0] == costs[3] > 900 and costs[1] == costs[2] < 260, costs


def test_options_of_pictures(seeing: moeflux.Model) -> None:
    large = {"type": "image", "image": Image.new("RGB", (1200, 800), "red")}
    n_tokens = len(tokens(seeing, large))
    with moeflux.load(TOWER, device="cpu", ctx=2048, image_tokens=4, tower_idle=0) as small:
        assert n_tokens - 30 < len(tokens(small, large)) < n_tokens - 8
    with (
        moeflux.load(TOWER, device="cpu", ctx=2048, mmproj=False) as blind,
        pytest.raises(moeflux.Error, match="pictures"),
    ):
        blind.chat(asked(large))
    assert "vision_tower" in moeflux.plan(TOWER).memory.rows
    assert "vision_tower" not in moeflux.plan(TOWER, mmproj=False).memory.rows
    wrong: list[dict[str, Any]] = [{"image_tokens": -1}, {"image_tokens": 1.5}, {"tower_idle": -1}, {"tower_idle": "x"}]
    for options in [*wrong, {"mmproj": ""}, {"mmproj": True}, {"tower_idle": float("inf")}, {"mmproj": "none.gguf"}]:
        with pytest.raises(moeflux.Error) as caught:
            moeflux.load(TOWER, device="cpu", **options)
        [name] = options
        assert (name in str(caught.value) or options[name] in str(caught.value)) and "\n" not in str(caught.value), str(
            caught.value
        )


def test_modes_of_pillow(seeing: moeflux.Model) -> None:
    image = Image.open(PICTURES / "portrait.jpg")
    image.load()
    for mode in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16"):
        shown = image.convert("L").convert(mode) if mode in ("LAB", "I;16") else image.convert(mode)
        assert max(tokens(seeing, {"type": "image", "image": shown})) >= 1 << 31, mode


class Broken:
    """As an image of Pillow whose file went away."""

    mode = "RGB"

    def save(self, *_: object) -> None:
        raise OSError("gone")


CYCLE: dict[str, Any] = {"type": "image_url"}
CYCLE["image_url"] = CYCLE


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"type": "image"}, "no picture"),
        ({"type": "image", "image": ""}, "path"),
        ({"type": "image", "image": b""}, "picture"),
        ({"type": "image", "image": b"GIF89a"}, "picture"),
        ({"type": "image", "image": ODD[:60]}, "picture"),
        ({"type": "image", "image": "no such file.png"}, "no such file.png"),
        ({"type": "image", "image": "\ud800.png"}, "image"),
        ({"type": "image", "image": "a\0b"}, "image"),
        ({"type": "image", "image": "/"}, "directory"),
        ({"type": "image", "image": 5}, "bytes"),
        ({"type": "image", "image": [1, 2]}, "bytes"),
        ({"type": "image", "image": Broken()}, "gone"),
        ({"type": "image", "image": Image.new("RGB", (0, 5))}, "PNG"),
        ({"type": "image", "image": Image.new("L", (1, 5000))}, "1 x 5000"),
        ({"type": "image", "image": bytes(21 << 20)}, "at most 20971520"),
        ({"type": "image", "image": "/dev/zero"}, "at most 20971520"),
        ({"type": "image", "data": "%%%"}, "base64"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, "addresses"),
        ({"type": "image_url", "image_url": {}}, "no picture"),
        ({"type": "image_url", "image_url": {"url": {"url": {"url": 4}}}}, "bytes"),
        (CYCLE, "bytes"),
        ({"type": "image", "picture": "0"}, "no picture"),
    ],
)
def test_what_is_no_picture_is_one_line(seeing: moeflux.Model, part: dict[str, Any], says: str) -> None:
    with pytest.raises(moeflux.Error) as caught:
        seeing.chat(asked(part), **GREEDY)
    text = str(caught.value)
    assert says in text and "\n" not in text and len(text) < 400, text
    assert seeing.chat(asked(WAYS[0]), **GREEDY).text


def test_a_model_that_sees_none_says_so(model: moeflux.Model) -> None:
    with pytest.raises(moeflux.Error, match=f"{DEMO.name}.*pictures"):
        model.chat(asked(WAYS[0]))


def test_an_interrupt_ends_a_long_look(seeing: moeflux.Model) -> None:
    noise = [{"type": "image", "image": Image.frombytes("L", (900, 900), os.urandom(810_000))} for _ in range(20)]

    def look() -> None:
        seeing.chat(asked(*noise), **GREEDY)
        # Where the machine is fast, the interrupt comes later.
        time.sleep(1)

    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        look()
    assert time.monotonic() - begin < 3
