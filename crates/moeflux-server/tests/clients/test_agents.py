"""What coding agents send, and what they get."""

import json

import pytest

from conftest import MODEL, events


def tool(name):
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


LONG = "github:repos/" + "list.all:" * 12


@pytest.mark.parametrize("name", ["github:repos/list", "mcp.files.read", "a b", LONG])
def test_names_of_tools_are_ones_that_models_write_and_come_back(http, name):
    assert len(LONG) > 100
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    messages = [{"role": "user", "content": "Weather?"},
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "18"},
                {"role": "user", "content": "And now?"}]
    body = {"model": MODEL, "messages": messages, "tools": [tool("get_weather"), tool(name)],
            "tool_choice": {"type": "function", "function": {"name": name}}, "max_tokens": 60}
    prompt = http.post("/apply-template", json=body).json()["prompt"]
    assert name not in prompt and prompt.count(name.translate(str.maketrans(":/. ", "____"))) == 2
    answer = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert answer["message"]["tool_calls"][0]["function"]["name"] == name
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        chunks = [it for _, it in events(response) if it != "[DONE]"]
    deltas = [it["choices"][0]["delta"] for it in chunks if it["choices"]]
    calls = [it["tool_calls"][0]["function"] for it in deltas if "tool_calls" in it]
    assert calls[0]["name"] == name


def test_names_of_tools_come_back_in_each_dialect(http):
    name, schema = "files:read/one", {"type": "object", "properties": {"x": {"type": "string"}}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Read"}], "max_tokens": 40,
            "tools": [{"name": name, "input_schema": schema}],
            "tool_choice": {"type": "tool", "name": name}}
    answer = http.post("/v1/messages", json=body).json()
    assert answer["content"][0]["name"] == name, answer
    body = {"model": MODEL, "input": "Read", "max_output_tokens": 40,
            "tools": [{"type": "function", "name": name, "parameters": schema}],
            "tool_choice": {"type": "function", "name": name}}
    answer = http.post("/v1/responses", json=body).json()
    assert answer["output"][0]["name"] == name, answer
