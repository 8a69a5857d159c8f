"""Mistakes: each is one line that names the argument and what helps."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import moeflux
from conftest import DEMO, QUESTION


def refused(call: Callable[[], object]) -> moeflux.Error:
    with pytest.raises(moeflux.Error) as caught:
        call()
    error = caught.value
    assert "\n" not in str(error) and "--" not in str(error), str(error)
    return error


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"ctx": 0}, "ctx"),
        ({"ctx": -1}, "ctx"),
        ({"ctx": "many"}, "ctx"),
        ({"ctx": True}, "ctx"),
        ({"ctx": 1.5}, "ctx"),
        ({"threads": 100_000}, "threads"),
        ({"device": "abacus"}, "device"),
        ({"kv_type": "q7"}, "kv_type"),
        ({"expert_cache": "8 apples"}, "expert_cache"),
        ({"expert_cache": 1}, "expert_cache"),
        ({"expert_io": "telepathy"}, "expert_io"),
        ({"experts_per_token": 10_000}, "experts_per_token"),
        ({"isa": "z80"}, "isa"),
        ({"prefetch": 3}, "prefetch"),
        ({"speculation": 99}, "speculation"),
        ({"prompt_cache": ""}, "prompt_cache"),
    ],
)
def test_options_are_named(options: dict[str, Any], option: str) -> None:
    error = refused(lambda: moeflux.load(DEMO, **options))
    assert error.option == option and option in str(error), (str(error), error.option)
    assert error.kind == "option"


def test_unknown_options_get_the_nearest_name() -> None:
    with pytest.raises(TypeError, match="did you mean threads"):
        moeflux.load(DEMO, threds=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="there are"):
        moeflux.plan(DEMO, wheels=2)  # type: ignore[call-arg]


def test_unknown_parameters_get_the_nearest_name(model: moeflux.Model) -> None:
    with pytest.raises(TypeError, match="did you mean temperature"):
        model.generate("The", temprature=1)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "", "~/model", "org/name", "a/b/c/d"])
def test_models_that_are_not_here_are_named(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    # No connection is opened without `download`.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    error = refused(lambda: moeflux.load(name))
    assert error.option == "model" and error.kind == "option"


def test_a_download_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "offline" in str(refused(lambda: moeflux.load("org/name", download=True))).lower()


def test_files_that_are_no_model_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    error = refused(lambda: moeflux.load(tmp_path))
    assert error.kind == "model" and "config.json" in str(error)


@pytest.mark.parametrize(
    ("asking", "option"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0.5}, "top_k"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"seed": "x"}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"stop": 1}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"thinking": "yes"}, "thinking"),
        ({"expected": 5}, "expected"),
        ({"tool_choice": "f"}, "tool_choice"),
        ({"tools": [set()]}, "tools"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"response_format": int}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "kangaroo"}}, "response_format"),
    ],
)
def test_parameters_are_named(model: moeflux.Model, asking: dict[str, Any], option: str) -> None:
    keywords: dict[str, Any] = {"max_tokens": 4, **asking}
    error = refused(lambda: model.chat(QUESTION, **keywords))
    assert error.option == option and option in str(error), (str(error), error.option)
    assert error.kind in ("request", "unsupported")


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        "\ud800",
        [1 << 40],
        [-1],
        5,
        None,
        {"role": "user"},
        b"bytes",
        [{"content": "no role"}],
        [{"role": "user"}, 7],
    ],
)
def test_prompts_that_are_none_are_refused(model: moeflux.Model, prompt: Any) -> None:
    error = refused(lambda: model.generate(prompt, max_tokens=4))
    assert error.kind in ("request", "model")


def test_a_prompt_that_is_too_long_names_the_context(model: moeflux.Model) -> None:
    for prompt in ("word " * 3000, [5] * 3000):
        error = refused(lambda prompt=prompt: model.generate(prompt, max_tokens=4))  # type: ignore[misc]
        assert error.option == "ctx", str(error)


def test_messages_are_no_text(model: moeflux.Model) -> None:
    assert "generate takes a raw prompt" in str(refused(lambda: model.chat("Hi")))  # type: ignore[arg-type]


def test_a_closed_model_says_so() -> None:
    model = moeflux.load(DEMO, device="cpu", ctx=512)
    stream = model.stream("The", temperature=1, max_tokens=400)
    session = model.session()
    next(stream)
    model.close()
    model.close()
    assert model.is_closed and "closed" in repr(model)
    assert list(stream) == []
    for call in (lambda: model.generate("The"), model.session, model.stats, lambda: model.tokenizer.encode("The")):
        assert refused(call).kind == "stopped"
    assert refused(lambda: session.position).kind == "stopped"


def test_errors_can_be_sent_to_processes() -> None:
    error = refused(lambda: moeflux.load(DEMO, ctx=0))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.kind, again.option) == (str(error), "option", "ctx")
