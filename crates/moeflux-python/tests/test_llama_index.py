"""LlamaIndex: whole answers, parts, tools, and what ends an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.base.llms.types import AudioBlock, ChatMessage, ImageBlock, MessageRole
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

import moeflux
from conftest import DEMO, assert_idle, endless
from moeflux.llama_index import MoefluxLLM

QUESTION = "What is 23 + 45?"


@pytest.fixture(scope="module")
def llm(model: moeflux.Model) -> MoefluxLLM:
    return MoefluxLLM(model=model, temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def short_llm(model: moeflux.Model) -> MoefluxLLM:
    """A model of this size goes on where texts of JSON should end."""
    bias = {model.tokenizer.encode('"')[0]: 4.0, model.tokenizer.encode("}")[0]: 9.0}
    return MoefluxLLM(model=model, temperature=0, max_tokens=200, additional_kwargs={"logit_bias": bias})


def test_all_ways_to_ask_give_the_same_answer(llm: MoefluxLLM, model: moeflux.Model) -> None:
    expected = model.chat([{"role": "user", "content": QUESTION}], temperature=0, max_tokens=24)
    messages = [ChatMessage(role=MessageRole.USER, content=QUESTION)]

    async def asked() -> list[str]:
        chat = [part.delta or "" async for part in await llm.astream_chat(messages)]
        text = [part.delta or "" async for part in await llm.astream_complete(QUESTION)]
        whole = [str((await llm.achat(messages)).message.content), (await llm.acomplete(QUESTION)).text]
        return [*whole, "".join(chat), "".join(text)]

    found = [str(llm.chat(messages).message.content), llm.complete(QUESTION).text]
    parts = list(llm.stream_chat(messages))
    assert len(parts) > 2 and parts[-1].message.content == expected.text
    found += ["".join(part.delta or "" for part in parts)]
    found += ["".join(part.delta or "" for part in llm.stream_complete(QUESTION))]
    found += asyncio.run(asked())
    assert found == [expected.text] * 8
    assert llm.chat(messages).additional_kwargs["completion_tokens"] == expected.usage.completion_tokens


def test_a_formatted_text_is_a_raw_prompt(llm: MoefluxLLM, model: moeflux.Model) -> None:
    assert llm.complete("The ", formatted=True).text == model.generate("The ", temperature=0, max_tokens=24).text
    [top] = llm.complete("The ", formatted=True, logprobs=2, max_tokens=1).logprobs or []
    assert len(top) == 2 and top[0].logprob >= top[1].logprob


def test_metadata_is_the_models(model: moeflux.Model) -> None:
    llm = MoefluxLLM(model=str(DEMO), load_options={"device": "cpu", "ctx": 512}, max_tokens=99)
    assert llm.metadata.context_window == 512 and llm.metadata.num_output == 99
    assert llm.metadata.is_function_calling_model
    assert llm.predict(PromptTemplate("What is {n} + 45?"), n=23)


def test_a_stream_that_is_left_ends_its_answer(model: moeflux.Model) -> None:
    llm = MoefluxLLM(model=model, temperature=1, max_tokens=1500, additional_kwargs={"logit_bias": endless(model)})
    for _ in llm.stream_complete("Count."):
        break
    assert_idle(model)

    async def leave() -> None:
        parts = await llm.astream_complete("Count.")
        async for _ in parts:
            break
        await parts.aclose()
        task = asyncio.create_task(llm.acomplete("Count."))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert_idle(model)


def weather(place: str) -> str:
    """The weather of a place."""
    return f"Rain in {place}."


def test_a_tool_is_called_and_its_result_read(short_llm: MoefluxLLM) -> None:
    tool = FunctionTool.from_defaults(weather)
    answer = short_llm.chat_with_tools([tool], "What is the weather in Köln? 🌧", tool_required=True)
    [call] = short_llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "weather" and set(call.tool_kwargs) == {"place"}
    *_, last = short_llm.stream_chat_with_tools([tool], "What is the weather in Köln? 🌧", tool_required=True)
    assert short_llm.get_tool_calls_from_response(last)[0].tool_kwargs == call.tool_kwargs
    result = ChatMessage(
        role=MessageRole.TOOL, content=weather(**call.tool_kwargs), additional_kwargs={"tool_call_id": call.tool_id}
    )
    question = ChatMessage(role=MessageRole.USER, content="What is the weather?")
    assert short_llm.chat([question, answer.message, result], max_tokens=8).additional_kwargs["completion_tokens"]
    plain = short_llm.chat([question], max_tokens=1)
    with pytest.raises(ValueError, match="at least one"):
        short_llm.get_tool_calls_from_response(plain)
    assert short_llm.get_tool_calls_from_response(plain, error_on_no_tool_call=False) == []


class Verdict(BaseModel):
    """Whether something is good."""

    is_good: bool


def test_answers_have_a_form(short_llm: MoefluxLLM) -> None:
    found = short_llm.structured_predict(Verdict, PromptTemplate("Is {what} good?"), what="tea")
    assert isinstance(found, Verdict)
    assert asyncio.run(short_llm.as_structured_llm(Verdict).acomplete("Is tea good?")).raw in (
        Verdict(is_good=True),
        Verdict(is_good=False),
    )


def test_mistakes_are_errors_of_the_package(llm: MoefluxLLM) -> None:
    with pytest.raises(moeflux.Error, match="temperature"):
        llm.complete("Hi", temperature=-1)
    picture: Any = ChatMessage(role=MessageRole.USER, blocks=[ImageBlock(image=b"x", image_mimetype="image/png")])
    with pytest.raises(moeflux.Error, match="does not take pictures"):
        llm.chat([picture])
    sound: Any = ChatMessage(role=MessageRole.USER, blocks=[AudioBlock(audio=b"x", format="wav")])
    with pytest.raises(moeflux.Error, match="'audio'"):
        llm.chat([sound])
