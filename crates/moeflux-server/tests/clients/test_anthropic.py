"""What Anthropic's own client gets."""

import json
import re

import anthropic
import pytest

from conftest import MODEL, events

WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
SUM = [{"role": "user", "content": "What is 23 + 45?"}]
BEGUN = {"messages": [{"role": "user", "content": "What is 23 + 45?"},
                      {"role": "assistant", "content": "The sum"}]}
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def ask(client, messages=SUM, max_tokens=100, **fields):
    return client.messages.create(model=MODEL, messages=messages, max_tokens=max_tokens, **fields)


# The client has no name for this field, but sends it.
GREEDY = {"extra_body": {"temperature": 0}}


def test_an_answer(client):
    answer = ask(client)
    assert answer.type == "message" and answer.role == "assistant" and answer.model == MODEL
    assert answer.content[0].type == "text" and answer.content[0].text
    assert answer.stop_reason == "end_turn" and answer.stop_sequence is None
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 5
    assert answer.usage.output_tokens > 0


def test_sampling_fields(client):
    body = {"temperature": 0.9, "top_p": 0.9, "top_k": 30}
    assert ask(client, extra_body=body, metadata={"user_id": "x"}).content


def test_it_ends_where_told(client):
    messages = [{"role": "user", "content": "What does `Vec::push` do?"}]
    whole = ask(client, messages, **GREEDY).content[0].text
    word = whole.split()[2]
    answer = ask(client, messages, stop_sequences=[word], **GREEDY)
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == word
    assert answer.content[0].text == whole[: whole.index(word)]
    cut = ask(client, messages, max_tokens=2)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 2


def test_a_stream_says_what_one_answer_says(client):
    whole = ask(client, PARIS, **GREEDY)
    with client.messages.stream(model=MODEL, messages=PARIS, max_tokens=100, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_stream_is_strict(http):
    body = {"model": MODEL, "messages": SUM, "max_tokens": 50, "stream": True}
    with http.stream("POST", "/v1/messages", json=body) as response:
        got = events(response)
    assert all(name == it["type"] for name, it in got)
    names = [name for name, _ in got if name != "ping"]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    assert names[1] == "content_block_start" and names[-3] == "content_block_stop"


def test_a_tool_from_question_to_answer(client):
    answer = ask(client, PARIS, tools=[WEATHER], **GREEDY)
    assert answer.stop_reason == "tool_use"
    [call] = [it for it in answer.content if it.type == "tool_use"]
    assert call.name == "get_weather" and call.input == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees and sunny"}
    messages = [*PARIS, {"role": "assistant", "content": answer.content},
                {"role": "user", "content": [result]}]
    answer = ask(client, messages, tools=[WEATHER], **GREEDY)
    assert answer.stop_reason == "end_turn" and answer.content[0].text


def test_a_streamed_tool_call(client):
    with client.messages.stream(model=MODEL, messages=PARIS, max_tokens=100, tools=[WEATHER],
                                **GREEDY) as stream:
        kinds = [it.type for it in stream]
        final = stream.get_final_message()
    assert kinds.count("input_json") > 1
    assert final.content[-1].input == {"city": "Paris"} and final.stop_reason == "tool_use"


def test_tool_choice(client):
    answer = ask(client, SUM, tools=[WEATHER], tool_choice={"type": "any"})
    assert answer.content[0].type == "tool_use"
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    assert len(ask(client, SUM, tools=[WEATHER], tool_choice=choice).content) == 1
    none = ask(client, PARIS, tools=[WEATHER], tool_choice={"type": "none"})
    assert none.content[0].type == "text"


def test_a_schema(client):
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
              "additionalProperties": False}
    form = {"format": {"type": "json_schema", "schema": schema}}
    answer = ask(client, extra_body={"output_config": form})
    assert isinstance(json.loads(answer.content[0].text)["sum"], int)


def test_an_answer_that_has_begun_goes_on(client):
    question = [{"role": "user", "content": "What does `Vec::push` do?"}]
    whole = ask(client, question, **GREEDY).content[0].text
    ends = [i for i, c in enumerate(whole) if c == " "]
    for end in (ends[0], ends[len(ends) // 2], ends[-1]):
        block = {"type": "text", "text": whole[:end]}
        messages = [*question, {"role": "assistant", "content": [block]}]
        answer = ask(client, messages, **GREEDY)
        assert answer.stop_reason == "end_turn"
        assert whole[:end] + answer.content[0].text == whole
        with client.messages.stream(model=MODEL, messages=messages, max_tokens=100, **GREEDY) as it:
            assert "".join(it.text_stream) == answer.content[0].text
    # Nothing has begun where nothing is said.
    messages = [*question, {"role": "assistant", "content": ""}]
    assert ask(client, messages, **GREEDY).content[0].text == whole
    one = client.messages.count_tokens(model=MODEL, messages=question).input_tokens
    messages = [*question, {"role": "assistant", "content": whole[: ends[0]]}]
    assert client.messages.count_tokens(model=MODEL, messages=messages).input_tokens > one
    # Tools may follow text.
    tools = ask(client, messages, tools=[WEATHER], **GREEDY)
    assert tools.content


def test_systems_and_blocks(client):
    blocks = [{"type": "text", "text": "You are ", "cache_control": {"type": "ephemeral"}},
              {"type": "text", "text": "brief."}]
    content = [{"type": "text", "text": "What is 23 + 45?"}]
    one = ask(client, [{"role": "user", "content": content}], system=blocks, **GREEDY)
    other = ask(client, SUM, system="You are brief.", **GREEDY)
    assert one.content[0].text == other.content[0].text


def test_count_tokens(client):
    n = client.messages.count_tokens(model=MODEL, messages=SUM).input_tokens
    usage = ask(client).usage
    assert n == usage.input_tokens + usage.cache_read_input_tokens
    assert client.messages.count_tokens(model=MODEL, messages=SUM, tools=[WEATHER]).input_tokens > n


@pytest.mark.parametrize("fields, name", [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"thinking": {"type": "loud"}}, "thinking.type"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}],
      "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice"),
    ({"mcp_servers": [{"type": "url", "url": "x", "name": "x"}]}, "mcp_servers"),
    ({"container": "x"}, "container"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y "}]},
     "must not end with white space"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm", "signature": "x"}]}]}, "messages[1].content"),
    ({"messages": [{"role": "assistant", "content": ""}]}, "messages"),
    ({**BEGUN, "tools": [WEATHER], "tool_choice": {"type": "any"}}, "tool_choice"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
     "output_config.format"),
    ({**BEGUN, "output_config": {"format": {"type": "json_schema", "schema": {}}}},
     "output_config.format"),
])
def test_what_is_not_supported_is_refused_by_name(http, fields, name):
    body = {"model": MODEL, "messages": SUM, "max_tokens": 5, **fields}
    response = http.post("/v1/messages", json=body)
    assert response.status_code == 400, response.text
    error = response.json()
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert name in error["error"]["message"]


def test_another_model(client):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude", messages=SUM, max_tokens=5)


def test_too_long_a_prompt(client):
    """Claude Code reads both numbers out of these words, and shortens the conversation."""
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, messages=[{"role": "user", "content": "long " * 20000}])
    found = re.search(r"prompt is too long: (\d+) tokens > (\d+) maximum", str(refused.value))
    assert int(found[1]) > 20000 and found[2] == "4096"
