"""Mistakes: each is one line that names the argument and what helps."""

from __future__ import annotations

import pickle
import threading
import time
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
        ({"prompt_cache": "\ud800"}, "prompt_cache"),
        ({"ctx": float("nan")}, "ctx"),
        ({"threads": {1}}, "threads"),
        ({"download": "yes"}, "download"),
        ({"progress": "yes"}, "progress"),
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


@pytest.mark.parametrize("path", ["\ud800", b"/tmp/\xff", 5, b"", "a\0b"])
def test_names_that_are_no_paths_are_refused(path: Any) -> None:
    for call in (moeflux.load, moeflux.plan):
        error = refused(lambda call=call: call(path))  # type: ignore[misc]
        assert error.kind in ("option", "model") and "model" in str(error), error


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
        ({"tools": 5}, "tools"),
        ({"tools": {"type": "function"}}, "tools"),
        ({"tools": ["weather"]}, "tools"),
        ({"tools": [{"type": "function", "function": {"parameters": {}}}]}, "tools"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": {"function": None}}, "tool_choice"),
        ({"logit_bias": {5: float("-inf")}}, "logit_bias"),
        ({"logit_bias": {-5: 1.0}}, "logit_bias"),
        ({"logit_bias": {5: 1e39}}, "logit_bias"),
        ({"stop": "\ud800"}, "stop"),
        ({"stop": 0}, "stop"),
        ({"expected": "\ud800"}, "expected"),
        ({"thinking": 1}, "thinking"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"max_tokens": 1 << 64}, "max_tokens"),
        ({"temperature": 10**400}, "temperature"),
        ({"params": {"max_tokens": 3}}, "params"),
        ({"response_format": {"const": "\ud800"}}, "response_format"),
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


@pytest.mark.parametrize("messages", [5, "Hi", [5], [1, 2], None, {"role": "user"}, b"Hi"])
def test_what_is_no_conversation_is_refused(model: moeflux.Model, messages: Any) -> None:
    for call in (model.chat, model.tokenizer.apply_chat_template):
        error = refused(lambda call=call: call(messages))  # type: ignore[misc]
        assert error.option == "messages" and "messages" in str(error), error


@pytest.mark.parametrize("prompts", ["Hello", 5, None, b"Hello", {"role": "user"}])
def test_a_batch_is_a_list(model: moeflux.Model, prompts: Any) -> None:
    assert refused(lambda: model.generate_batch(prompts)).option == "prompts"
    assert refused(lambda: model.score(prompts)).option == "prompts"


def test_tokens_outside_of_the_vocabulary_are_named(model: moeflux.Model) -> None:
    token = model.vocab
    for call in (
        lambda: model.generate([token], max_tokens=1),
        lambda: model.logits([token]),
        lambda: model.score([[token]]),
        lambda: model.generate("The", max_tokens=1, logit_bias={token: 1.0}),
    ):
        error = refused(call)
        assert str(token) in str(error) and error.kind == "request", error


@pytest.mark.parametrize("position", [-1, 1.5, None, "x", True, 1 << 80, 7])
def test_positions_that_are_none_are_refused(model: moeflux.Model, position: Any) -> None:
    with model.session() as session:
        for call in (session.truncate, session.restore):
            error = refused(lambda call=call: call(position))  # type: ignore[misc]
            assert error.kind == "request" and "position" in str(error), error


@pytest.mark.parametrize("path", ["", 5, None, "a\0b", "\ud800"])
def test_paths_of_sessions_are_named(model: moeflux.Model, path: Any) -> None:
    with model.session() as session:
        for call in (session.save, session.load):
            assert refused(lambda call=call: call(path)).option == "path"  # type: ignore[misc]


def test_rows_are_not_taken_for_more_tokens_than_fit(model: moeflux.Model) -> None:
    # All of their logits would take hundreds of GiB.
    assert refused(lambda: model.logits([5] * 10_000_000)).option == "ctx"


def test_numbers_of_numpy_are_numbers(model: moeflux.Model) -> None:
    numpy = pytest.importorskip("numpy")
    plain = model.generate("The", max_tokens=5, temperature=0.5, seed=3)
    same = model.generate("The", max_tokens=numpy.int64(5), temperature=numpy.float32(0.5), seed=numpy.uint8(3))
    assert same.text == plain.text
    with moeflux.load(DEMO, device="cpu", ctx=numpy.int32(256)) as small:
        assert small.context_length == 256


def test_an_answer_that_a_class_refuses_is_an_error(model: moeflux.Model) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Never(pydantic.BaseModel):  # type: ignore[misc, name-defined, unused-ignore]
        is_good: bool

        @pydantic.field_validator("is_good")  # type: ignore[untyped-decorator, unused-ignore]
        @classmethod
        def refuse(cls, _: bool) -> bool:
            raise ValueError("never\ngood")

    asking: dict[str, Any] = {"temperature": 0, "max_tokens": 100, "response_format": Never}
    assert refused(lambda: model.chat(QUESTION, **asking)).option == "response_format"
    assert refused(lambda: model.chat(QUESTION, response_format=pydantic.BaseModel)).option == "response_format"
    both = model.generate_batch([QUESTION, QUESTION], return_exceptions=True, **asking)
    assert all(isinstance(one, moeflux.Error) for one in both)


def test_an_answer_that_a_stop_text_cuts_is_not_parsed(model: moeflux.Model) -> None:
    answer = model.chat(QUESTION, temperature=0, max_tokens=40, stop='"', response_format={"type": "object"})
    assert answer.finish_reason == "stop" and answer.stop == '"' and answer.parsed is None


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


def test_closing_a_model_ends_what_other_threads_ask_for() -> None:
    model = moeflux.load(DEMO, device="cpu", ctx=2048)
    ended: list[str] = []

    def work(ask: Callable[[], object]) -> None:
        try:
            while True:
                ask()
        except moeflux.Error as error:
            ended.append(error.kind)

    asks: list[Callable[[], object]] = [
        lambda: model.score([[5] * 1500] * 200),
        lambda: model.generate("The", temperature=1, min_p=0.0),
        lambda: model.session().eval([5] * 500),
    ]
    threads = [threading.Thread(target=work, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    model.close()
    for thread in threads:
        thread.join(20)
    assert ended == ["stopped"] * len(threads)


def test_errors_can_be_sent_to_processes() -> None:
    error = refused(lambda: moeflux.load(DEMO, ctx=0))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.kind, again.option) == (str(error), "option", "ctx")
