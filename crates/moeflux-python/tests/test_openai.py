"""The client of the package openai, answered by a model of this process."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

import moeflux
from conftest import DEMO, QUESTION, assert_idle, endless
from moeflux.openai import AsyncOpenAI, OpenAI

GREEDY: Any = {"model": "any", "messages": QUESTION, "temperature": 0, "max_tokens": 20}


@pytest.fixture(scope="module")
def client(model: moeflux.Model) -> Iterator[OpenAI]:
    with OpenAI(model) as made:
        yield made
    assert not model.is_closed


@pytest.fixture(scope="module")
def expected(model: moeflux.Model) -> str:
    return model.chat(QUESTION, temperature=0, max_tokens=20).text


def long(model: moeflux.Model) -> Any:
    """A request whose answer does not end by itself."""
    bias = {str(token): value for token, value in endless(model).items()}
    return {"model": "any", "messages": QUESTION, "max_tokens": 1500, "logit_bias": bias}


def test_answers_are_those_of_the_model(client: OpenAI, expected: str, model: moeflux.Model) -> None:
    answer = client.chat.completions.create(**GREEDY, n=2, logprobs=True, top_logprobs=2)
    assert [choice.message.content for choice in answer.choices] == [expected] * 2
    assert answer.usage is not None
    [first, _] = answer.choices
    assert first.logprobs is not None and first.logprobs.content is not None
    assert "".join(token.token for token in first.logprobs.content) == expected
    assert len(first.logprobs.content[0].top_logprobs) == 2
    stopped = client.chat.completions.create(**GREEDY, stop=[expected.split()[2]])
    assert stopped.choices[0].finish_reason == "stop"
    text = client.completions.create(model="any", prompt="The ", temperature=0, max_tokens=8)
    assert text.choices[0].text == model.generate("The ", temperature=0, max_tokens=8).text


def test_names_are_those_that_are_given(client: OpenAI, model: moeflux.Model) -> None:
    [card] = client.models.list().data
    assert card.id == model.path.rsplit("/", 1)[-1] == client.models.retrieve(card.id).id
    with OpenAI(model, names=["one", "two"]) as named:
        assert named.chat.completions.create(**{**GREEDY, "model": "two"}).model == "one"
        with pytest.raises(openai.NotFoundError, match='the model "any" is not here'):
            named.chat.completions.create(**GREEDY)


def test_parts_make_up_the_whole(client: OpenAI, expected: str) -> None:
    parts = list(client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == expected
    assert parts[-1].usage is not None and parts[-1].usage.completion_tokens > 4
    with client.chat.completions.stream(**GREEDY) as events:
        assert {"content.delta", "chunk"} <= {event.type for event in events}
        assert events.get_final_completion().choices[0].message.content == expected
    raw = client.chat.completions.with_raw_response.create(**GREEDY, extra_body={"wheels": 1})
    assert raw.headers["x-moeflux-ignored-fields"] == "wheels"
    assert raw.parse().choices[0].message.content == expected
    with client.chat.completions.with_streaming_response.create(**GREEDY) as streamed:
        assert expected[:5] in "".join(streamed.iter_text())


class Verdict(BaseModel):
    is_good: bool


def test_forms_and_tools(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(**GREEDY | {"max_tokens": 100}, response_format=Verdict)
    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    tool: Any = openai.pydantic_function_tool(Verdict)
    asked = client.chat.completions.create(**GREEDY | {"max_tokens": 100}, tools=[tool], tool_choice="required")
    [call] = asked.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "Verdict"
    Verdict.model_validate_json(call.function.arguments)
    answer = client.responses.create(model="any", input="What is 23 + 45? é🌧", temperature=0, max_output_tokens=8)
    assert answer.usage is not None and answer.usage.output_tokens <= 8


@pytest.mark.parametrize(
    ("asking", "error", "what"),
    [
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"n": 50}, openai.BadRequestError, "n"),
        ({"extra_body": {"grammar": "root ::= x"}}, openai.BadRequestError, "grammar"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, openai.BadRequestError, "context"),
    ],
)
def test_mistakes_are_errors_of_the_client(client: OpenAI, asking: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        client.chat.completions.create(**{**GREEDY, **asking})
    with pytest.raises(error, match=what):
        list(client.chat.completions.create(**{**GREEDY, **asking}, stream=True))


def test_what_no_model_makes_is_not_found_or_refused(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError):
        client.embeddings.create(model="any", input="Hi")
    with pytest.raises(TypeError, match="a model is needed"):
        OpenAI()


def test_what_is_left_ends_its_answer(client: OpenAI, model: moeflux.Model) -> None:
    for _ in client.chat.completions.create(**long(model), stream=True):
        break
    # The client's stream refers to itself, and is dropped by the collector alone.
    gc.collect()
    assert_idle(model)
    with client.chat.completions.create(**long(model), stream=True) as parts:
        next(iter(parts))
    assert_idle(model)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).chat.completions.create(**long(model))
    assert_idle(model)


def test_tasks_share_steps_and_can_be_cancelled(model: moeflux.Model, expected: str) -> None:
    async def asked() -> None:
        async with AsyncOpenAI(model) as client:
            many = [client.chat.completions.create(**GREEDY) for _ in range(20)]
            found = [answer.choices[0].message.content for answer in await asyncio.gather(*many)]
            assert found == [expected] * 20
            parts = await client.chat.completions.create(**GREEDY, stream=True)
            assert "".join([part.choices[0].delta.content or "" async for part in parts]) == expected
            task = asyncio.create_task(client.chat.completions.create(**long(model)))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with await client.chat.completions.create(**long(model), stream=True) as parts:
                async for _ in parts:
                    break
            with pytest.raises(openai.APITimeoutError):
                await client.with_options(timeout=0.05).chat.completions.create(**long(model))

    asyncio.run(asked())
    assert_idle(model)


def test_threads_share_a_client(client: OpenAI, expected: str) -> None:
    found: list[str | None] = []

    def ask() -> None:
        found.append(client.chat.completions.create(**GREEDY).choices[0].message.content)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 12


def test_a_model_that_is_closed_ends_its_requests() -> None:
    with moeflux.load(DEMO, device="cpu", ctx=512) as model:
        client = OpenAI(model)
        parts = client.chat.completions.create(**{**long(model), "max_tokens": 400}, stream=True)
        next(iter(parts))
    with pytest.raises(openai.APIConnectionError):
        list(parts)
    with pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(**GREEDY)
    with pytest.raises(moeflux.Error, match="closed"):
        OpenAI(model)


def test_the_api_is_called_without_the_client(model: moeflux.Model, expected: str) -> None:
    with model.api("name") as api:
        reply = api.request("POST", "/v1/chat/completions", {**GREEDY, "model": "name"})
        assert reply.status == 200 and expected[:5].encode() in reply.read()
        assert api.request("GET", "/nowhere").status == 404
        counted = api.request("POST", "/v1/messages/count_tokens", {"model": "name", "messages": QUESTION})
        assert b"input_tokens" in counted.read()
        for method, path in (("GE T", "/"), ("GET", "no path")):
            with pytest.raises(moeflux.Error, match="the request is none"):
                api.request(method, path)
        with pytest.raises(TimeoutError):
            api.request("POST", "/v1/chat/completions", {**long(model), "model": "name"}, timeout=0.05)
    assert_idle(model)
    with pytest.raises(moeflux.Error, match="the API was closed"):
        api.request("GET", "/health")
