"""What a model thinks and what it says, told apart: the demo model with a template that opens thinking."""

import json
import pathlib
import shutil

import anthropic
import ollama
import openai
import pytest

from conftest import Server

DEMO = pathlib.Path(__file__).parents[3] / "moeflux-cli" / "demo"
ANSWER = "{{- '<|im_start|>assistant\\n' }}\n{%- endif %}"
THINKING = """{{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is not defined or enable_thinking %}
        {{- '<think>\\n' }}
    {%- else %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
QUESTION = [{"role": "user", "content": "What does Vec::push do?"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = tmp_path_factory.mktemp("models") / "thinker"
    shutil.copytree(DEMO, model)
    template = model / "chat_template.jinja"
    text = template.read_text()
    assert text.count(ANSWER) == 1
    template.write_text(text.replace(ANSWER, THINKING))
    manifest = json.loads((model / "moeflux.json").read_text())
    [entry] = [it for it in manifest["files"] if it["path"] == template.name]
    entry["bytes"] = template.stat().st_size
    (model / "moeflux.json").write_text(json.dumps(manifest))
    return model


@pytest.fixture(scope="module")
def server(model):
    server = Server("--model", str(model), "--no-expert-stats")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def fields(model, client):
    """What makes the model end its thoughts and go on: it was never taught to, so it is pushed."""
    tokens = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    [end] = [it["id"] for it in tokens if it["content"] == "</think>"]
    for step in range(60):
        bias = {str(end): 8 + step / 4}
        fields = {"model": "thinker", "messages": QUESTION, "temperature": 0, "max_tokens": 40, "logit_bias": bias}
        message = client.chat.completions.create(**fields).choices[0].message
        if message.reasoning_content and message.content:
            return fields
    pytest.fail("no answer thinks and speaks")


def test_chat_tells_thoughts_apart(client, fields):
    message = client.chat.completions.create(**fields).choices[0].message
    assert not message.content.startswith("\n") and "<think>" not in message.reasoning_content
    thought, said = "", ""
    for chunk in client.chat.completions.create(**fields, stream=True):
        delta = chunk.choices[0].delta
        piece = getattr(delta, "reasoning_content", None) or ""
        assert not (piece and said), "thoughts come first"
        thought += piece
        said += delta.content or ""
    assert (thought, said) == (message.reasoning_content, message.content)


def test_chat_without_thoughts(client, fields):
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    fields = {**fields, "logit_bias": {}}
    message = client.chat.completions.create(**fields, extra_body=extra).choices[0].message
    assert message.content and not getattr(message, "reasoning_content", None)


def test_responses_have_items_of_thoughts(client):
    asked = {"model": "thinker", "input": "What does Vec::push do?", "temperature": 0, "max_output_tokens": 40}
    answer = client.responses.create(**asked)
    assert answer.output[0].type == "reasoning"
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    kinds = [it.type for it in client.responses.create(**asked, stream=True)]
    assert any(it.startswith("response.reasoning") for it in kinds), kinds


def test_messages_have_blocks_of_thoughts(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    asked = {
        "model": "thinker", "messages": QUESTION, "max_tokens": 1200, "extra_body": {"temperature": 0},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    message = client.messages.create(**asked)
    block = message.content[0]
    assert block.type == "thinking" and block.thinking
    assert 0 < message.usage.output_tokens_details.thinking_tokens <= message.usage.output_tokens
    with client.messages.stream(**asked) as stream:
        pieces = [it.delta.thinking for it in stream
                  if it.type == "content_block_delta" and it.delta.type == "thinking_delta"]
        assert stream.get_final_message().content[0].thinking == block.thinking
    assert "".join(pieces) == block.thinking


def test_ollama_clients_get_thoughts_apart(server):
    """Its `think`, in a whole answer and in a stream."""
    client = ollama.Client(host=server.url)
    for think, thinks in [(None, True), (True, True), ("high", True), (False, False)]:
        for stream in [False, True]:
            answer = client.chat(model="thinker", messages=QUESTION, think=think, stream=stream,
                                 options={"temperature": 0, "num_predict": 30})
            pieces = [piece.message for piece in (answer if stream else [answer])]
            thought = "".join(piece.thinking or "" for piece in pieces)
            said = "".join(piece.content for piece in pieces)
            # The model may end its answer among its thoughts.
            assert bool(thought) == thinks and (thought or said), (think, stream)
    assert "thinking" in client.show("thinker").capabilities
    answer = client.generate(model="thinker", prompt="What does Vec::push do?",
                             options={"temperature": 0, "num_predict": 30})
    assert answer.thinking and answer.context is None


def test_thoughts_have_a_budget(server, client):
    """By the fields of OpenRouter, Anthropic, Qwen, llama.cpp and vLLM."""
    asked = {"model": "thinker", "messages": QUESTION, "temperature": 0, "max_tokens": 40}
    fields = [{"reasoning": {"max_tokens": 5}}, {"thinking": {"type": "enabled", "budget_tokens": 5}},
              {"thinking_budget": 5}, {"reasoning_budget": 5}, {"thinking_token_budget": 5}]
    answers = [client.chat.completions.create(**asked, extra_body=extra) for extra in fields]
    for answer in answers:
        message = answer.choices[0].message
        assert message.content and message.reasoning_content
        assert answer.usage.completion_tokens_details.reasoning_tokens == 5
    assert len({it.choices[0].message.content for it in answers}) == 1
    off = client.chat.completions.create(**asked, extra_body={"thinking_budget": 0})
    assert off.choices[0].message.content and off.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_summary_of_thoughts_is_their_text(client):
    asked = {"model": "thinker", "input": "What does Vec::push do?", "temperature": 0, "max_output_tokens": 40}
    plain = client.responses.create(**asked).output[0].content[0].text
    asked["reasoning"] = {"summary": "auto"}
    assert client.responses.create(**asked).output[0].summary[0].text == plain
    deltas = [it.delta for it in client.responses.create(**asked, stream=True)
              if it.type == "response.reasoning_summary_text.delta"]
    assert "".join(deltas) == plain
