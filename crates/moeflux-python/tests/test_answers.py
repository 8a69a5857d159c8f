"""Answers: whole, in parts, many at a time, and their parameters."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
import time

import pytest

import moeflux
from conftest import QUESTION, assert_idle, endless

GREEDY = moeflux.SamplingParams(temperature=0, max_tokens=24)


def test_a_conversation_is_answered(model: moeflux.Model) -> None:
    answer = model.chat(QUESTION, GREEDY)
    assert answer.text and str(answer) == answer.text
    assert answer.message["role"] == "assistant" and answer.message["content"] == answer.text
    assert answer.usage.completion_tokens <= 24 and answer.usage.prompt_tokens > 5
    assert answer.finish_reason in ("stop", "length")
    assert answer.timing.first_token_s is not None and answer.timing.decode_tok_s > 0
    assert answer.logprobs is None and answer.parsed is None and answer.tool_calls == ()


def test_parts_make_up_the_whole(model: moeflux.Model) -> None:
    stream = model.stream(QUESTION, GREEDY)
    parts = [str(part) for part in stream]
    assert len(parts) > 1
    assert "".join(parts) == stream.completion.text == model.chat(QUESTION, GREEDY).text
    assert list(stream) == []


def test_a_stream_can_be_waited_for_in_the_middle(model: moeflux.Model) -> None:
    stream = model.stream(QUESTION, GREEDY)
    next(stream)
    with pytest.raises(moeflux.Error, match=r"has not ended: call result"):
        _ = stream.completion
    assert stream.result().text == model.chat(QUESTION, GREEDY).text
    assert stream.result() is stream.completion


def test_text_tokens_and_messages_are_prompts(model: moeflux.Model) -> None:
    text = model.tokenizer.apply_chat_template(QUESTION, tokenize=False)
    tokens = model.tokenizer.apply_chat_template(QUESTION)
    assert model.tokenizer.decode(tokens) == text
    assert model.tokenizer.encode(text, special=True) == tokens
    assert model.tokenizer.encode(text) != tokens
    answers = {model.generate(prompt, GREEDY).text for prompt in (QUESTION, text, tokens)}
    assert len(answers) == 1
    numpy = pytest.importorskip("numpy")
    assert model.generate(numpy.array(tokens), GREEDY).text in answers


def test_a_seed_determines_an_answer(model: moeflux.Model) -> None:
    def text(seed: int | None) -> str:
        return model.generate("The", temperature=1.5, top_p=1.0, min_p=0.0, top_k=0, max_tokens=16, seed=seed).text

    assert text(5) == text(5)
    assert len({text(None) for _ in range(4)}) > 1


def test_keywords_take_the_place_of_fields(model: moeflux.Model) -> None:
    answer = model.chat(QUESTION, GREEDY, max_tokens=3, logprobs=2)
    assert answer.usage.completion_tokens == 3 and answer.finish_reason == "length"
    assert answer.logprobs is not None and len(answer.logprobs) == 3
    for token in answer.logprobs:
        assert token.top[0] == (token.token, token.logprob) and len(token.top) == 2


def test_stop_texts_end_an_answer(model: moeflux.Model) -> None:
    whole = model.chat(QUESTION, GREEDY).text
    word = whole.split()[2]
    answer = model.chat(QUESTION, GREEDY, stop=word)
    assert answer.stop == word and answer.finish_reason == "stop" and word not in answer.text


def test_a_bias_rules_out_a_token(model: moeflux.Model) -> None:
    first = model.chat(QUESTION, GREEDY, logprobs=1).logprobs
    assert first is not None
    other = model.chat(QUESTION, GREEDY, logprobs=1, logit_bias={first[0].token: -100}).logprobs
    assert other is not None and other[0].token != first[0].token


def test_a_batch_has_the_answers_of_its_prompts(model: moeflux.Model) -> None:
    questions = [[{"role": "user", "content": f"What is {n} + 45?"}] for n in range(20, 31)]
    apart = [model.chat(question, GREEDY).text for question in questions]
    assert [answer.text for answer in model.generate_batch(questions, GREEDY)] == apart
    params = [moeflux.SamplingParams(temperature=0, max_tokens=n) for n in range(1, 12)]
    lengths = [answer.usage.completion_tokens for answer in model.generate_batch(questions, params)]
    assert all(length <= n for length, n in zip(lengths, range(1, 12), strict=True)) and lengths[0] == 1
    assert model.generate_batch([]) == []


def test_a_batch_ends_with_an_error_or_returns_it(model: moeflux.Model) -> None:
    prompts: list[moeflux.Prompt] = [QUESTION, [model.vocab + 5], QUESTION]
    with pytest.raises(moeflux.Error):
        model.generate_batch(prompts, GREEDY)
    answers = model.generate_batch(prompts, GREEDY, return_exceptions=True)
    assert isinstance(answers[1], moeflux.Error) and answers[0].text == answers[2].text


def test_threads_share_steps(model: moeflux.Model) -> None:
    expected = model.chat(QUESTION, GREEDY).text
    texts: list[str] = []

    def ask() -> None:
        texts.append(model.chat(QUESTION, GREEDY).text)

    before = model.stats()
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = model.stats()
    assert texts == [expected] * 8
    assert after.steps - before.steps < after.completion_tokens - before.completion_tokens
    assert after.answers - before.answers == 8


def test_tasks_share_steps(model: moeflux.Model) -> None:
    expected = model.chat(QUESTION, GREEDY).text

    async def parts() -> str:
        return "".join([str(part) async for part in model.astream(QUESTION, GREEDY)])

    async def all_of_them() -> list[str]:
        whole = [model.agenerate(QUESTION, GREEDY) for _ in range(20)]
        in_parts = [parts() for _ in range(20)]
        texts = [answer.text for answer in await asyncio.gather(*whole)]
        return texts + list(await asyncio.gather(*in_parts))

    for _ in range(2):
        # A second loop finds the thread that wakes tasks.
        assert asyncio.run(all_of_them()) == [expected] * 40


def test_a_loop_runs_while_tasks_wait(model: moeflux.Model) -> None:
    async def count() -> int:
        task = asyncio.create_task(model.agenerate("The", temperature=0, max_tokens=200))
        n = 0
        while not task.done():
            n += 1
            await asyncio.sleep(0.001)
        return n

    assert asyncio.run(count()) > 10


def test_tasks_share_the_parts_of_one_answer(model: moeflux.Model) -> None:
    async def share() -> tuple[int, int, int]:
        stream = model.stream("The", temperature=1, min_p=0.0, max_tokens=60)

        async def count() -> int:
            return len([part async for part in stream])

        return await asyncio.wait_for(asyncio.gather(count(), count(), count()), 30)

    assert sum(asyncio.run(share())) > 10


def test_a_cancelled_task_ends_its_answer(model: moeflux.Model) -> None:
    async def cancel() -> None:
        asked = model.agenerate("The", max_tokens=1500, logit_bias=endless(model))
        task = asyncio.create_task(asked)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert_idle(model)


def test_a_dropped_iterator_ends_its_answer(model: moeflux.Model) -> None:
    for part in model.stream("The", max_tokens=1500, logit_bias=endless(model)):
        assert str(part) or part
        break
    assert_idle(model)
    with model.stream("The", max_tokens=1500, logit_bias=endless(model)) as stream:
        next(stream)
    assert_idle(model)
    with pytest.raises(moeflux.Error, match="closed before its end"):
        _ = stream.completion
    assert list(stream) == []


def test_other_threads_run_while_one_waits(model: moeflux.Model) -> None:
    done = threading.Event()

    def ask() -> None:
        model.generate("The", temperature=0, max_tokens=200)
        done.set()

    thread = threading.Thread(target=ask)
    thread.start()
    n = 0
    while not done.is_set():
        n += 1
        time.sleep(0.001)
    thread.join()
    assert n > 10


def test_answers_follow_a_schema(model: moeflux.Model) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    answer = model.chat(QUESTION, temperature=0, max_tokens=200, response_format=schema)
    if answer.finish_reason == "stop":
        assert isinstance(answer.parsed, dict)
        assert answer.parsed == json.loads(answer.text) and "n" in answer.parsed
    wrapped = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    again = model.chat(QUESTION, temperature=0, max_tokens=200, response_format=wrapped)
    assert again.text == answer.text
    short = model.chat(QUESTION, temperature=0, max_tokens=1, response_format=schema)
    assert short.finish_reason == "length" and short.parsed is None


def test_answers_are_instances_of_a_class_of_pydantic(model: moeflux.Model) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Verdict(pydantic.BaseModel):  # type: ignore[misc, name-defined, unused-ignore]
        is_good: bool

    answer = model.chat(QUESTION, temperature=0, max_tokens=100, response_format=Verdict)
    assert isinstance(answer.parsed, Verdict)
    assert answer.parsed.is_good in (True, False)


def test_completions_and_parameters_can_be_sent_to_processes(model: moeflux.Model) -> None:
    answer = model.chat(QUESTION, GREEDY)
    assert pickle.loads(pickle.dumps(answer)) == answer
    assert pickle.loads(pickle.dumps(GREEDY)) == GREEDY


@pytest.mark.parametrize("name", ["model", "stream", "session"])
def test_what_is_alive_cannot_be_pickled(model: moeflux.Model, name: str) -> None:
    alive = {"model": lambda: model, "stream": lambda: model.stream("The", max_tokens=1), "session": model.session}
    value = alive[name]()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(value)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.copy(value)
