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


# As Claude Code sends it.
CLAUDE = {
    "model": MODEL, "max_tokens": 32000, "stream": True,
    "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": "x"},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.039;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "What is 7 + 12?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Available agents: none."}],
    "tools": [{"name": "Read", "description": "Reads.", "eager_input_streaming": True,
               "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}],
}
BETA = {"anthropic-beta": "claude-code-20250219,effort-2025-11-24", "anthropic-version": "2023-06-01"}


def message(http, **fields):
    body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], **fields}
    response = http.post("/v1/messages?beta=true", json=body, headers=BETA)
    assert response.status_code == 200, response.text
    return response


def n_tokens(http, **fields):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}
    response = http.post("/v1/messages/count_tokens?beta=true", json=body)
    assert response.status_code == 200, response.text
    return response.json()["input_tokens"]


def test_claude_code_gets_an_answer(http):
    with http.stream("POST", "/v1/messages?beta=true", json=CLAUDE, headers=BETA) as response:
        assert response.status_code == 200
        assert "x-moeflux-ignored-fields" not in response.headers
        names = [name for name, _ in events(response)]
    assert names[0] == "message_start" and names[-1] == "message_stop"
    counted = {k: v for k, v in CLAUDE.items() if k not in ("max_tokens", "stream")}
    assert n_tokens(http, **counted) > 20


@pytest.mark.parametrize("fields", [
    {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking": {"type": "disabled"}},
    {"thinking": {"type": "enabled"}}, {"output_config": {"effort": "ultra"}},
    {"betas": ["x"]}, {"service_tier": "auto"}, {"cache_control": {"type": "ephemeral"}},
    {"context_management": None}, {"mcp_servers": []}, {"container": None}, {"tool_choice": {"type": "auto"}},
])
def test_hints_of_anthropics_clients_are_taken(http, fields):
    message(http, **fields)


def test_what_is_left_out_is_named(http):
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    replied = message(http, tools=[search], mood="x")
    assert replied.headers["x-moeflux-ignored-fields"].split(", ") == ["mood", "tools[0]"]


def test_tools_whose_schema_clients_do_not_send(http):
    for kind, name in [("bash_20250124", "bash"), ("text_editor_20250728", "str_replace_based_edit_tool"),
                       ("memory_20250818", "memory")]:
        tools = [{"type": kind, "name": name}]
        answer = message(http, tools=tools, tool_choice={"type": "any"}, max_tokens=30).json()
        assert answer["content"][0]["type"] == "tool_use" and answer["content"][0]["name"] == name


def test_the_billing_header_keeps_no_prefix_from_being_shared(http):
    long = "Rules: " + " ".join(f"rule {i} holds." for i in range(60))

    def ask(header):
        system = [{"type": "text", "text": header}, {"type": "text", "text": long}]
        return message(http, system=system).json()["usage"]["cache_read_input_tokens"]

    ask("x-anthropic-billing-header: cc_version=2.1.197.e6c; cc_entrypoint=cli;")
    assert ask("x-anthropic-billing-header: cc_version=2.1.197.d6d; cch=7;") > 100
    header = "x-anthropic-billing-header: a;\n"
    assert n_tokens(http, system=header + "Be brief.") == n_tokens(http, system="Be brief.")
    assert n_tokens(http, system=header) == n_tokens(http)
    # Elsewhere it is text like any other.
    assert n_tokens(http, system="Be brief. " + header) > n_tokens(http, system="Be brief.")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
BLOCKS = [
    IMAGE, PDF,
    {"type": "document", "title": "Notes", "source": {"type": "text", "media_type": "text/plain", "data": "Note 1"}},
    {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
    {"type": "search_result", "source": "https://a", "title": "T", "content": [{"type": "text", "text": "x"}]},
    {"type": "tool_reference", "tool_name": "Read"},
    {"type": "container_upload", "file_id": "file_1"},
    {"type": "something_new", "payload": {"a": 1}},
]
SERVER_BLOCKS = [
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [
        {"type": "web_search_result", "url": "https://a", "title": "T", "encrypted_content": "zz"}]},
    {"type": "mcp_tool_use", "id": "m1", "name": "f", "server_name": "s", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": False, "content": [{"type": "text", "text": "x"}]},
    {"type": "server_tool_use", "id": "s2", "name": "bash_code_execution", "input": {"command": "ls"}},
    {"type": "bash_code_execution_tool_result", "tool_use_id": "s2", "content": {
        "type": "bash_code_execution_result", "stdout": "a.txt", "stderr": "", "return_code": 0, "content": []}},
    {"type": "web_fetch_tool_result", "tool_use_id": "gone", "content": {
        "type": "web_fetch_tool_result_error", "error_code": "unavailable"}},
    {"type": "redacted_thinking", "data": "zz"}, {"type": "thinking", "thinking": "Hm.", "signature": "s"},
    {"type": "text", "text": "Done.", "citations": None},
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda it: it["type"])
def test_blocks_that_are_no_text_become_one(http, block):
    use = {"type": "tool_use", "id": "t1", "name": "Read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block]}
    history = [{"role": "user", "content": "Read"}, {"role": "assistant", "content": [use]},
               {"role": "user", "content": [result]}]
    message(http, messages=history)
    with_text = [block, {"type": "text", "text": "What is it?"}]
    n = n_tokens(http, messages=[{"role": "user", "content": with_text}])
    assert n > n_tokens(http, messages=[{"role": "user", "content": "What is it?"}])
    message(http, messages=[{"role": "user", "content": [block]}, {"role": "assistant", "content": "I see."},
                            {"role": "user", "content": "And?"}])
    message(http, messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": [
        block, {"type": "text", "text": "I see."}]}, {"role": "user", "content": "And?"}])


def test_a_question_that_is_only_an_image_is_refused(http):
    for block in (IMAGE, PDF):
        body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": [block]}]}
        response = http.post("/v1/messages", json=body)
        assert response.status_code == 400
        assert "messages[0].content[0].type: this model reads text only" in response.text


def test_tools_that_ran_on_servers_are_calls_and_results(http):
    messages = [{"role": "user", "content": "Search"}, {"role": "assistant", "content": SERVER_BLOCKS},
                {"role": "user", "content": "Thanks"}]
    message(http, messages=messages)
    # A result without its call, and a call without its result.
    for blocks in (SERVER_BLOCKS[1:2], SERVER_BLOCKS[:1]):
        message(http, messages=[messages[0], {"role": "assistant", "content": blocks}, messages[2]])
    # The last turn may be one that a server's tool has cut.
    cut = [it for it in SERVER_BLOCKS if it["type"] != "thinking"]
    message(http, messages=[messages[0], {"role": "assistant", "content": cut}])
    message(http, messages=[messages[0], {"role": "assistant", "content": cut[:6]}])


# As Codex sends it.
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CODEX = {
    "model": MODEL, "store": False, "include": ["reasoning.encrypted_content"], "truncation": "auto",
    "client_metadata": {"session_id": "x"}, "prompt_cache_key": "k", "reasoning": {"summary": "auto"},
    "text": {"verbosity": "low"}, "parallel_tool_calls": True, "tool_choice": "auto",
    "tools": [
        {"type": "function", "name": "get_weather", "strict": False, "parameters": CITY},
        {"type": "namespace", "name": "agents_v1", "description": "Agents.", "tools": [
            {"type": "function", "name": "close", "strict": False, "parameters": CITY}]},
        {"type": "custom", "name": "apply_patch", "description": "A FREEFORM tool.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "tool_search", "execution": "client", "description": "Finds tools.",
         "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
        {"type": "web_search", "external_web_access": False}],
    "input": [
        {"type": "message", "id": "m1", "role": "developer", "content": [
            {"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "id": "m2", "role": "developer", "content": [
            {"type": "input_text", "text": "Be kind."}]},
        {"type": "message", "id": "m3", "role": "user", "content": [
            {"type": "input_text", "text": "What is 7 + 12?"}]}],
}


def respond(http, **fields):
    response = http.post("/v1/responses", json={**CODEX, "max_output_tokens": 40, **fields})
    assert response.status_code == 200, response.text
    return response


def stream_of(http, **fields):
    body = {**CODEX, "max_output_tokens": 60, "stream": True, **fields}
    with http.stream("POST", "/v1/responses", json=body) as response:
        return [it for _, it in events(response)]


def test_codex_gets_an_answer(http):
    replied = respond(http)
    assert replied.headers["x-moeflux-ignored-fields"] == "tools[4]"
    got = stream_of(http)
    assert got[-1]["type"] in ("response.completed", "response.incomplete")


@pytest.mark.parametrize("fields", [
    {"store": True}, {"truncation": "auto"}, {"service_tier": "flex"}, {"reasoning": {"effort": "high"}},
    {"reasoning": {"effort": "ultra"}}, {"include": ["file_search_call.results"]}, {"max_tool_calls": 3},
    {"max_output_tokens": -1, "input": "What is 1 + 1?"}, {"stream_options": {"include_obfuscation": True}},
    {"background": False}, {"tools": []}, {"instructions": ""}, {"metadata": {"a": "b"}},
])
def test_hints_of_openais_clients_are_taken(http, fields):
    respond(http, **fields)


@pytest.mark.parametrize("choice, item", [
    ({"type": "function", "name": "close", "namespace": "agents_v1"},
     {"type": "function_call", "name": "close", "namespace": "agents_v1"}),
    ({"type": "custom", "name": "apply_patch"}, {"type": "custom_tool_call", "name": "apply_patch"}),
    ({"type": "tool_search"}, {"type": "tool_search_call", "execution": "client"}),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]},
     {"type": "function_call", "name": "get_weather"}),
])
def test_calls_are_items_as_the_client_knows_its_tools(http, choice, item):
    answer = respond(http, tool_choice=choice, max_output_tokens=60).json()
    for call in answer["output"]:
        assert {k: call[k] for k in item} == item
    got = stream_of(http, tool_choice=choice)
    added = [it["item"] for it in got if it["type"] == "response.output_item.added"]
    done = [it["item"] for it in got if it["type"] == "response.output_item.done"]
    assert len(added) == len(done) == len(got[-1]["response"]["output"])
    for a, b in zip(added, done):
        assert a["id"] == b["id"] and a["call_id"] == b["call_id"]
        assert {k: b[k] for k in item} == item == {k: a[k] for k in item}
    if item["type"] == "custom_tool_call":
        deltas = [it["delta"] for it in got if it["type"] == "response.custom_tool_call_input.delta"
                  and it["item_id"] == done[0]["id"]]
        assert "".join(deltas) == done[0]["input"]
    # What was called goes back as it came, with its result.
    kind = "tool_search" if "search" in item["type"] else item["type"].removesuffix("_call")
    result = {"type": kind + "_call_output", "call_id": done[0]["call_id"], "output": "ok"}
    if kind == "tool_search":
        result = {"type": "tool_search_output", "call_id": done[0]["call_id"], "execution": "client",
                  "tools": [{"type": "namespace", "name": "found", "tools": [
                      {"type": "function", "name": "one", "parameters": CITY}]}]}
        choice = {"type": "function", "namespace": "found", "name": "one"}
    history = [*CODEX["input"], done[0], result]
    again = respond(http, input=history, tool_choice="auto").json()
    assert again["usage"]["input_tokens"] > answer["usage"]["input_tokens"]
    if kind == "tool_search":
        [call, *_] = respond(http, input=history, tool_choice=choice).json()["output"]
        assert call["namespace"] == "found" and call["name"] == "one"


ITEMS = [
    {"type": "local_shell_call", "id": "l", "call_id": "c1", "status": "completed", "action": {
        "type": "exec", "command": ["ls"], "env": {}, "user": None}},
    {"type": "local_shell_call_output", "id": "c1", "call_id": "c1", "output": "a.txt"},
    {"type": "shell_call", "call_id": "c2", "action": {"commands": ["ls"], "timeout_ms": None}},
    {"type": "shell_call_output", "call_id": "c2", "max_output_length": 100, "output": [
        {"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    {"type": "apply_patch_call", "call_id": "c3", "status": "completed",
     "operation": {"type": "delete_file", "path": "a.txt"}},
    {"type": "apply_patch_call_output", "call_id": "c3", "status": "completed", "output": "done"},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "f", "arguments": "{}", "output": "x"},
    {"type": "function_call", "call_id": "c4", "name": "view_image", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c4", "output": [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0K", "detail": "high"}]},
    {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}},
    {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []},
    {"type": "code_interpreter_call", "id": "x", "code": "1", "outputs": [], "container_id": "c"},
    {"type": "image_generation_call", "id": "x", "result": "iVBORw0K", "status": "completed"},
    {"type": "mcp_list_tools", "id": "x", "server_label": "s", "tools": []},
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}],
     "encrypted_content": "zz"},
    {"type": "reasoning", "id": "r", "summary": [], "content": None, "encrypted_content": "zz"},
    {"type": "message", "role": "assistant", "phase": "final_answer", "content": [
        {"type": "output_text", "text": "Done.", "annotations": []}]},
    {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]},
]


def test_items_of_every_kind_may_be_in_the_history(http):
    history = [*CODEX["input"], *ITEMS, {"type": "message", "role": "user", "content": "And now?"}]
    replied = respond(http, input=history)
    n = len(CODEX["input"])
    [search] = [i for i, item in enumerate(ITEMS) if item["type"] == "web_search_call"]
    named = [f"input[{n + search}]", f"input[{n + len(ITEMS) - 3}].encrypted_content"]
    assert replied.headers["x-moeflux-ignored-fields"].split(", ") == ["tools[4]", *named]
    new = respond(http, input=[*history[:3], {"type": "something_new", "id": "x", "mood": 1}, *history[-1:]])
    assert new.headers["x-moeflux-ignored-fields"].split(", ") == ["input[3].mood", "tools[4]", "input[3]"]
    for item in ITEMS:
        if not item["type"].endswith("_output"):
            respond(http, input=[*CODEX["input"], item, history[-1]])


def test_a_question_of_responses_that_is_only_an_image_is_refused(http):
    response = http.post("/v1/responses", json={**CODEX, "input": [ITEMS[-1]]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input[0].content[0].type"
