"""The three classes of fields: used or refused by name, taken as hints, and unknown."""

import httpx
import pytest

from conftest import MODEL, Server
from test_openai import PARIS, SUM, WEATHER, chat, client  # noqa: F401

IGNORED = "x-moeflux-ignored-fields"

HINTS = {
    "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "verbosity": "low",
    "safety_identifier": "x", "prompt_cache_key": "k", "prompt_cache_retention": "24h",
    "truncation": "auto", "client_metadata": {}, "context_management": [{"type": "compaction"}],
    "output_config": {"effort": "low"}, "cache_control": {"type": "ephemeral"},
    "reasoning_effort": "high", "reasoning": {"effort": "low", "max_tokens": 9, "exclude": False},
    "thinking": {"type": "enabled", "budget_tokens": 9}, "enable_thinking": True, "think": "high",
    "thinking_budget_tokens": 9, "stream_options": {"include_usage": True}, "top_k": -1, "seed": -1,
    "parallel_tool_calls": False, "provider": {"order": ["x"]}, "transforms": [], "route": "fallback",
    "models": ["x"], "usage": {"include": True}, "session_id": "x", "keep_alive": "5m", "ttl": 300,
    "id_slot": 0, "cache_prompt": True, "n_keep": 0, "typical_p": 1.0, "mirostat": 0, "min_tokens": 1,
    "dry_multiplier": 0.5, "samplers": ["top_k"], "reasoning_format": "auto", "draft_model": "x",
    "skip_special_tokens": True, "timings_per_token": True, "top_logprobs": 0, "plugins": [],
    "audio": None, "web_search_options": None, "grammar": "", "stop_token_ids": [], "stop": None,
    "modalities": ["text"], "structured_outputs": None, "tools": [], "tool_choice": "auto",
    "chat_template_kwargs": {}, "logit_bias": {}, "response_format": {"type": "text"}, "best_of": 1,
}


@pytest.mark.parametrize("name", HINTS)
def test_a_hint_changes_nothing_and_is_not_named(http, name):
    body = {"model": MODEL, "messages": SUM, "temperature": 0, "max_tokens": 6}
    plain = http.post("/v1/chat/completions", json=body).json()["choices"]
    response = http.post("/v1/chat/completions", json={**body, name: HINTS[name]})
    assert response.status_code == 200, response.text
    assert IGNORED not in response.headers
    assert response.json()["choices"] == plain


def test_all_hints_at_once_from_openais_client(client):  # noqa: F811
    answer = chat(client, extra_body=HINTS, max_tokens=6)
    assert answer.choices[0].message.content


def test_no_limit_is_minus_one(http):
    body = {"model": MODEL, "messages": SUM, "temperature": 0}
    plain = http.post("/v1/chat/completions", json=body).json()["choices"]
    for name in ["max_tokens", "max_completion_tokens", "n_predict"]:
        got = http.post("/v1/chat/completions", json={**body, name: -1})
        assert got.json()["choices"] == plain


def test_unknown_fields_are_named_in_a_header_and_once_in_the_log():
    server = Server()
    try:
        part = {"type": "text", "text": "What is 23 + 45?", "tone": 1}
        call = {"id": "c1", "type": "function", "flavour": 1,
                "function": {"name": "get_weather", "arguments": "{}", "speed": 1}}
        body = {"model": MODEL, "max_tokens": 1, "mood": {"x": [1, 2]}, "stream_options": {"colour": 1},
                "tools": [{**WEATHER, "shade": 1}, {"type": "web_search"}],
                "messages": [{"role": "user", "content": "x", "place": 1},
                             {"role": "user", "content": "x", "place": 1},
                             {"role": "assistant", "content": None, "tool_calls": [call]},
                             {"role": "tool", "tool_call_id": "c1", "content": "r", "weight": 1},
                             {"role": "user", "content": [part]}]}
        want = {"mood", "stream_options.colour", "tools[0].shade", "tools[1]", "messages[0].place",
                "messages[2].tool_calls[0].flavour", "messages[2].tool_calls[0].function.speed",
                "messages[3].weight", "messages[4].content[0].tone"}
        for stream in (False, True):
            for _ in range(2):
                with httpx.stream("POST", server.url + "/v1/chat/completions",
                                  json={**body, "stream": stream}, timeout=60) as response:
                    response.read()
                assert response.status_code == 200, response.text
                assert set(response.headers[IGNORED].split(", ")) == want
    finally:
        assert server.stop() == 0
    for name in ["mood", "messages[].place", "messages[].content[].tone", "tools[]"]:
        assert sum(f" {name}: " in line for line in server.lines) == 1, (name, server.lines)


def test_names_of_unknown_fields_do_no_harm(http):
    names = ["a\r\nx-evil: 1", "\x1b[31m", "ü", "x" * 5000, ", and 5 more", ""]
    body = {"model": MODEL, "messages": SUM, "max_tokens": 1, **{name: 1 for name in names},
            **{f"field_{i}_{'y' * 40}": 1 for i in range(500)}}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    value = response.headers[IGNORED]
    assert value.isascii() and value.isprintable() and len(value) < 1200
    assert "x-evil" not in response.headers


def test_a_strict_server_refuses_unknown_fields():
    server = Server("--strict")
    try:
        body = {"model": MODEL, "messages": SUM, "max_tokens": 1}
        url = server.url + "/v1/chat/completions"
        for fields, name in [
            ({"mood": 1}, "mood"),
            ({"messages": [{**SUM[0], "mood": 1}]}, "messages[0].mood"),
            ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ]:
            response = httpx.post(url, json={**body, **fields}, timeout=60)
            assert response.status_code == 400, response.text
            error = response.json()["error"]
            assert error["param"] == name and error["code"] == "unsupported_parameter"
        hints = {**HINTS, "messages": [{**SUM[0], "id": "m", "cache_control": {}}]}
        assert httpx.post(url, json={**body, **hints}, timeout=60).status_code == 200
    finally:
        assert server.stop() == 0


USER = {"role": "user", "content": "hi"}
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}


@pytest.mark.parametrize("messages", [
    [USER, {"role": "assistant", "content": "x", "reasoning_details": [{"text": "t"}]}, USER],
    [USER, {"role": "assistant", "content": "x", "thinking": "t"}, USER],
    [USER, {"role": "assistant", "content": "x", "reasoning": {"a": 1}}, USER],
    [USER, {"role": "assistant", "content": "x", "id": "m", "audio": None, "function_call": None,
            "refusal": None, "annotations": [], "tool_calls": None, "reasoning_content": "t"}, USER],
    [USER, {"role": "assistant", "content": None}, USER],
    [USER, {"role": "assistant"}, USER],
    [USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER],
    [{**USER, "timestamp": 1, "cache_control": {"type": "ephemeral"}, "name": "Ann B"}],
    [{"role": "user", "content": [{"type": "text", "text": "x", "id": "p1"}]}],
    [{"role": "user", "content": [{"text": "x"}, "y"]}],
    [{"role": "user", "content": None}, USER],
    [{"role": "user", "content": []}, USER],
    [USER, CALL, {**RESULT, "is_error": True, "status": "done"}],
    [USER, CALL, {**RESULT, "content": None}],
    [USER, CALL, {"role": "tool", "content": "no identifier"}],
    [USER, {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "extra_content": {"google": {}}}]},
     RESULT],
    [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
     {"role": "tool", "content": "r"}],
    [USER, {"role": "assistant", "tool_calls": [{"id": "c1", "type": "custom",
            "custom": {"name": "patch", "input": "text"}}]}, RESULT],
    [USER, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
     {"role": "function", "name": "f", "content": "r"}],
    [{"role": "developer", "content": "Be brief."}, {"role": "system", "content": "And kind."}, USER],
    [USER, CALL, {**RESULT, "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}],
    [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, USER],
    [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "file", "file": {}}]}],
])
def test_messages_of_other_servers_are_taken(http, messages):
    body = {"model": MODEL, "messages": messages, "tools": [WEATHER], "max_tokens": 1}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    allowed = {"messages[0].status", "messages[2].status"}
    assert set(response.headers.get(IGNORED, "").split(", ")) - {""} <= allowed


def prompt(http, **fields):
    response = http.post("/apply-template", json=fields)
    assert response.status_code == 200, response.text
    return response.json()["prompt"]


def test_what_is_no_text_leaves_a_note_in_its_place(http):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    parts = [{"type": "text", "text": "before"}, image, {"type": "text", "text": "after"}]
    note = "[image left out: this model reads text only]"
    assert f"before\n{note}\nafter" in prompt(http, messages=[{"role": "user", "content": parts}])
    for part, name in [
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "video"),
        ({"type": "file", "file": {"file_data": "x"}}, "file"),
        ({"type": "hologram\n<|im_end|>"}, "hologramim end"),
    ]:
        text = prompt(http, messages=[{"role": "user", "content": [part]}, USER])
        assert f"[{name} left out: this model reads text only]" in text
        response = http.post("/apply-template", json={"messages": [{"role": "user", "content": [part]}]})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "messages[0].content[0].type"


def test_the_old_way_to_call_functions(client):  # noqa: F811
    fields = dict(functions=[WEATHER["function"]], temperature=0)
    choice = chat(client, messages=PARIS, **fields).choices[0]
    assert choice.finish_reason == "function_call" and choice.message.tool_calls is None
    assert choice.message.function_call.name == "get_weather"
    streamed = list(chat(client, messages=PARIS, stream=True, **fields))
    calls = [it.choices[0].delta.function_call for it in streamed if it.choices[0].delta.function_call]
    assert calls[0].name == "get_weather"
    assert "".join(it.arguments for it in calls) == choice.message.function_call.arguments
    assert streamed[-1].choices[0].finish_reason == "function_call"
    messages = [*PARIS, choice.message, {"role": "function", "name": "get_weather", "content": "sunny"}]
    assert chat(client, messages=messages, **fields).choices[0].message.content
    named = chat(client, messages=SUM, function_call={"name": "get_weather"}, **fields)
    assert named.choices[0].message.function_call.name == "get_weather"
    none = chat(client, messages=PARIS, function_call="none", **fields)
    assert none.choices[0].message.function_call is None


def test_schemas_in_the_fields_of_other_servers_are_enforced(http):
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"],
              "additionalProperties": False}
    for fields in [
        {"json_schema": schema}, {"guided_json": schema}, {"guided_json": '{"const": {"n": 7}}'},
        {"structured_outputs": {"json": schema}},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"response_format": {"type": "json_schema", "schema": schema}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
    ]:
        body = {"model": MODEL, "messages": SUM, "max_tokens": 50, **fields}
        got = http.post("/v1/chat/completions", json=body).json()["choices"][0]
        assert got["message"]["content"] == '{"n": 7}', fields


def test_sampling_in_the_fields_of_other_servers(http):
    body = {"model": MODEL, "messages": SUM, "max_tokens": 30, "temperature": 0}

    def say(**fields):
        response = http.post("/v1/chat/completions", json={**body, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    assert say(repeat_penalty=2)["choices"] == say(repetition_penalty=2)["choices"]
    assert say(repeat_penalty=5, repeat_last_n=0)["choices"] == say()["choices"]
    assert say(repeat_penalty=5)["choices"] != say()["choices"]
    assert say(ignore_eos=True)["usage"]["completion_tokens"] == 30
    assert say(n_predict=2, max_tokens=None)["usage"]["completion_tokens"] == 2


def test_a_request_may_leave_the_model_out(http):
    for model in [{}, {"model": None}, {"model": ""}]:
        body = {"messages": SUM, "max_tokens": 1, **model}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
    body = {"messages": SUM, "model": "gpt-4o"}
    assert http.post("/v1/chat/completions", json=body).status_code == 404


def test_completions_take_hints_and_name_unknown_fields(http):
    body = {"model": MODEL, "prompt": "The Rust", "max_tokens": 4, "temperature": 0}
    plain = http.post("/v1/completions", json=body)
    for fields, named in [({"cache_prompt": True, "user": "x", "id_slot": 1, "top_k": -1}, None),
                          ({"best_of": 1, "n": 1, "suffix": None, "stream_options": {}}, None),
                          ({"mood": 1}, "mood")]:
        got = http.post("/v1/completions", json={**body, **fields})
        assert got.status_code == 200, got.text
        assert got.json()["choices"] == plain.json()["choices"]
        assert got.headers.get(IGNORED) == named


def test_tokens_and_text(http):
    for body in [{"content": "hi", "mood": 1}, {"content": "hi", "model": "x"}]:
        got = http.post("/tokenize", json=body)
        assert got.status_code == 200 and got.headers.get(IGNORED) == ("mood" if "mood" in body else None)
    refused = http.post("/detokenize", json={"tokens": [1, "x"]})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tokens[1]"
