"""What Ollama's own clients get, from Python and JavaScript."""

import json
import os
import shutil
import subprocess

import httpx
import ollama
import pytest

from conftest import MODEL, Server, until

SUM = [{"role": "user", "content": "What is 23 + 45?"}]
GREEDY = {"temperature": 0}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}, "name": {"enum": ["a", "b"]}},
    "required": ["sum", "name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def port_server():
    server = Server("--ollama-port", "0", "--sessions", "2")
    until(lambda: any("Ollama" in line for line in server.lines))
    line = next(line for line in server.lines if "Ollama" in line)
    server.ollama = line.split("http://")[1].split()[0]
    yield server
    assert server.stop() == 0
    assert not any("panicked" in line for line in server.lines), server.lines


@pytest.fixture(scope="module")
def client(port_server):
    return ollama.Client(host=f"http://{port_server.ollama}")


def chat(client, messages=SUM, model=MODEL, **fields):
    return client.chat(model=model, messages=messages, **{"options": GREEDY, **fields})


def lines(response):
    """Objects of a stream by the letter: one JSON object a line."""
    assert response.headers["content-type"] == "application/x-ndjson"
    text = response.read().decode("utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def post(server, path, **body):
    with httpx.Client(base_url=f"http://{server.ollama}", timeout=60) as client:
        return client.post(path, json=body)


def test_an_answer_and_its_figures(client):
    answer = chat(client)
    assert "68" in answer.message.content and answer.message.role == "assistant"
    assert answer.done and answer.done_reason == "stop" and answer.model == MODEL
    assert answer.prompt_eval_count > 5 and answer.eval_count > 1
    # Nanoseconds.
    parts = answer.load_duration + answer.prompt_eval_duration + answer.eval_duration
    assert 100_000 < parts <= answer.total_duration * 1.01 < 60e9
    assert answer.prompt_eval_duration > 0 and answer.eval_duration > 0
    for name in [f"{MODEL}:latest", MODEL.upper()]:
        assert chat(client, model=name).message.content == answer.message.content


def test_a_stream_is_the_same_answer(client, port_server):
    whole = chat(client).message.content
    pieces = list(chat(client, stream=True))
    assert "".join(piece.message.content for piece in pieces) == whole
    assert len(pieces) > 1 and all(not piece.done for piece in pieces[:-1])
    assert pieces[-1].done and pieces[-1].eval_count > 1 and pieces[-1].message.content == ""
    # A stream is what is sent where the request does not say.
    raw = post(port_server, "/api/chat", model=MODEL, messages=SUM, options=GREEDY)
    objects = lines(raw)
    assert "".join(piece["message"]["content"] for piece in objects) == whole
    assert objects[-1]["done_reason"] == "stop" and "done_reason" not in objects[0]


def test_options(client):
    short = chat(client, options={**GREEDY, "num_predict": 2})
    assert short.done_reason == "length" and short.eval_count == 2
    for no_limit in [-1, -2, 0]:
        answer = chat(client, options={**GREEDY, "num_predict": no_limit})
        assert answer.done_reason == "stop"
    stopped = chat(client, options={**GREEDY, "stop": ["68"]})
    assert stopped.done_reason == "stop" and "68" not in stopped.message.content
    drawn = {"temperature": 1.5, "seed": 7, "top_k": 50, "top_p": 0.99, "min_p": 0.0,
             "repeat_penalty": 1.1, "repeat_last_n": 64, "presence_penalty": 0.1,
             "frequency_penalty": 0.1, "num_predict": 20}
    tell = [{"role": "user", "content": "Tell me about vectors"}]
    same = {chat(client, tell, options=drawn).message.content for _ in range(2)}
    other = chat(client, tell, options={**drawn, "seed": 8}).message.content
    assert len(same) == 1 and other not in same
    # What changes nothing here, and a context larger than the server's.
    taken = ollama.Options(num_ctx=100_000, num_gpu=99, num_thread=4, mirostat=2, **GREEDY)
    assert "68" in chat(client, options=taken).message.content
    for option, value in [("temperature", -1), ("top_p", "x"), ("stop", 7), ("num_predict", "a")]:
        with pytest.raises(ollama.ResponseError) as refused:
            chat(client, options={option: value})
        assert refused.value.status_code == 400 and f"options.{option}" in refused.value.error


def test_tools_are_called_and_their_results_read(client, port_server):
    ask = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = chat(client, ask, tools=[WEATHER])
    (call,) = answer.message.tool_calls
    assert call.function.name == "get_weather" and call.function.arguments == {"city": "Paris"}
    # A call is not streamed in pieces.
    streamed = [piece for piece in chat(client, ask, tools=[WEATHER], stream=True)]
    calls = [piece.message.tool_calls for piece in streamed if piece.message.tool_calls]
    assert calls == [answer.message.tool_calls] and streamed[-1].done_reason == "stop"
    objects = lines(post(port_server, "/api/chat", model=MODEL, messages=ask, tools=[WEATHER],
                         options=GREEDY))
    call = next(o["message"]["tool_calls"][0] for o in objects if "tool_calls" in o["message"])
    assert call["id"].startswith("call_") and call["function"]["index"] == 0
    # The model reads the same conversation as by OpenAI's API.
    said = "18 degrees and sunny"
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    openai = {
        "model": MODEL, "temperature": 0, "tools": [WEATHER], "max_tokens": 40,
        "messages": [
            *ask,
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c", "content": said},
        ],
    }
    want = httpx.post(f"{port_server.url}/v1/chat/completions", json=openai, timeout=60).json()
    by_name = {"role": "tool", "tool_name": "get_weather", "content": said}
    by_id = {"role": "tool", "tool_call_id": call["id"], "content": said}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    nameless = {**asked, "tool_calls": [{"function": {"name": "get_weather",
                                                      "arguments": {"city": "Paris"}}}]}
    # Python's client writes the fields of tools in an order of its own.
    for turns in [[nameless, by_name], [asked, by_id]]:
        told = post(port_server, "/api/chat", model=MODEL, messages=[*ask, *turns], stream=False,
                    tools=[WEATHER], options={**GREEDY, "num_predict": 40}).json()
        assert told["message"]["content"] == want["choices"][0]["message"]["content"]
        assert told["prompt_eval_count"] == want["usage"]["prompt_tokens"]
    assert chat(client, [*ask, answer.message, by_name], tools=[WEATHER]).done

    def get_weather(city: str) -> str:
        """Get the current weather

        Args:
          city: The city
        """
        return f"sunny in {city}"

    assert chat(client, ask, tools=[get_weather]).message.tool_calls


def test_formats_are_enforced(client, port_server):
    for stream in [False, True]:
        answer = chat(client, format=SCHEMA, stream=stream)
        text = "".join(piece.message.content for piece in answer) if stream else \
            answer.message.content
        value = json.loads(text)
        assert set(value) == {"sum", "name"} and isinstance(value["sum"], int)
    for raw in [False, True]:
        answer = client.generate(model=MODEL, prompt="What is 23 + 45?", format=SCHEMA, raw=raw,
                                 options=GREEDY)
        assert json.loads(answer.response)["name"] in "ab"
    answer = chat(client, format="json", options={**GREEDY, "num_predict": 60})
    assert answer.message.content.startswith("{")
    refused = post(port_server, "/api/chat", model=MODEL, messages=SUM, format="yaml")
    assert refused.status_code == 400 and refused.json()["error"].startswith("format: ")


def test_single_prompts(client):
    answer = client.generate(model=MODEL, prompt="What is 23 + 45?", options=GREEDY)
    assert "68" in answer.response and answer.done_reason == "stop"
    pieces = client.generate(model=MODEL, prompt="What is 23 + 45?", options=GREEDY, stream=True)
    assert "".join(piece.response for piece in pieces) == answer.response
    # The conversation goes on from the tokens of the first answer.
    more = client.generate(model=MODEL, prompt="What is 1 + 1?", context=answer.context,
                           options=GREEDY)
    assert more.prompt_eval_count > len(answer.context)
    assert more.context[:len(answer.context)] == answer.context
    told = client.generate(model=MODEL, prompt="What is 23 + 45?", system="Answer briefly.",
                           options=GREEDY)
    assert told.prompt_eval_count > answer.prompt_eval_count
    raw = client.generate(model=MODEL, prompt="fn main() {", raw=True,
                          options={**GREEDY, "num_predict": 4})
    assert raw.eval_count == 4 and raw.context is None
    for fields in [{"suffix": "}"}, {"template": "{{ .Prompt }}"}, {"raw": True, "system": "x"},
                   {"context": [10 ** 6]}]:
        with pytest.raises(ollama.ResponseError) as refused:
            client.generate(model=MODEL, prompt="x", **fields)
        assert refused.value.status_code == 400, fields
        assert refused.value.error.startswith(next(iter(fields))), refused.value.error


def test_loading_and_unloading(client):
    for reason, fields in [("load", {}), ("load", {"keep_alive": "5m"}),
                           ("load", {"keep_alive": -1}), ("unload", {"keep_alive": 0}),
                           ("unload", {"keep_alive": "0s"})]:
        answer = client.generate(model=MODEL, prompt="", **fields)
        assert answer.done and answer.done_reason == reason and answer.response == ""
        answer = client.chat(model=MODEL, messages=[], **fields)
        assert answer.done and answer.done_reason == reason and answer.message.content == ""
    # With a question it is a hint.
    assert "68" in chat(client, keep_alive=0).message.content


def test_images(client):
    """The model reads text: images of the history are left out, and one alone is refused."""
    image = "aGVsbG8="
    seen = [{"role": "user", "content": "", "images": [image]},
            {"role": "assistant", "content": "A cat."}, *SUM]
    assert chat(client, seen).message.content
    assert chat(client, [{**SUM[0], "images": [image]}]).message.content
    for ask in [lambda: chat(client, [{"role": "user", "content": "", "images": [image]}]),
                lambda: client.generate(model=MODEL, prompt="", images=[image])]:
        with pytest.raises(ollama.ResponseError) as refused:
            ask()
        assert refused.value.status_code == 400 and "text only" in refused.value.error


def test_probabilities(client):
    answer = chat(client, logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) >= answer.eval_count - 1
    first = answer.logprobs[0]
    assert first.logprob <= 0 and len(first.top_logprobs) == 2
    assert first.top_logprobs[0].token == first.token
    pieces = [piece.logprobs for piece in chat(client, logprobs=True, stream=True)]
    tokens = [entry.token for entries in pieces for entry in entries or []]
    assert tokens == [entry.token for entry in answer.logprobs]
    assert not chat(client).logprobs


def test_thinking_is_a_hint_for_a_model_that_does_not_think(client):
    for think in [True, False, "low", "high"]:
        answer = chat(client, think=think)
        assert "68" in answer.message.content and answer.message.thinking is None


def test_the_model_is_described(client, port_server):
    (listed,) = client.list().models
    assert listed.model == f"{MODEL}:latest" and listed.size > 10 ** 6 and listed.digest
    shown = client.show(MODEL)
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] == 4096
    assert "completion" in shown.capabilities and "tools" in shown.capabilities
    assert "tools" in shown.template and "num_ctx" in shown.parameters
    assert shown.details.family == family
    client.generate(MODEL, keep_alive=-1)
    (running,) = client.ps().models
    assert running.context_length == 4096 and running.expires_at.year > 2100
    with httpx.Client(base_url=f"http://{port_server.ollama}") as http:
        version = http.get("/api/version").json()["version"]
        assert tuple(map(int, version.split("."))) >= (0, 13, 4)
        assert http.post("/api/show", json={"name": MODEL}).status_code == 200
        assert http.head("/").status_code == 200
        assert http.get("/").text == "Ollama is running"
        # Other APIs are there as well, also by the name with a tag.
        (model,) = http.get("/v1/models").json()["data"]
        asked = {"model": f"{model['id']}:latest", "messages": SUM, "max_tokens": 5}
        assert http.post("/v1/chat/completions", json=asked).status_code == 200
        assert http.post("/v1/messages", json=asked).status_code == 200
        # As Ollama's documentation writes it for curl.
        bare = http.post("/api/show", content=json.dumps({"model": MODEL}))
        assert bare.status_code == 200
    assert "<html" in httpx.get(port_server.url).text


def test_what_is_not_here_is_refused_in_ollamas_form(client, port_server):
    with pytest.raises(ollama.ResponseError) as refused:
        chat(client, model="llama3.2")
    assert refused.value.status_code == 404 and "'llama3.2' not found" in refused.value.error
    with pytest.raises(ollama.ResponseError) as refused:
        client.show("llama3.2")
    assert refused.value.status_code == 404
    assert client.pull(MODEL).status == "success"
    assert [step.status for step in client.pull(MODEL, stream=True)][-1] == "success"
    for ask, words in [
        (lambda: client.pull("llama3.2"), "not found"),
        (lambda: client.embed(model=MODEL, input="x"), "embeddings"),
        (lambda: client.embeddings(model=MODEL, prompt="x"), "embeddings"),
        (lambda: client.create(model="new", from_=MODEL), "makes no models"),
        (lambda: client.push(MODEL), "makes no models"),
    ]:
        with pytest.raises(ollama.ResponseError) as refused:
            ask()
        assert words in refused.value.error and refused.value.status_code in (404, 501)
    deleted = httpx.request("DELETE", f"http://{port_server.ollama}/api/delete", json={"model": MODEL})
    assert deleted.status_code == 403 and "--hub" in deleted.json()["error"]
    for method, path in [("POST", "/api/copy"), ("POST", "/api/blobs/sha256:00"), ("GET", "/api/nothing"),
                         ("GET", "/api/chat")]:
        refused = httpx.request(method, f"http://{port_server.ollama}{path}")
        assert refused.status_code in (404, 405, 501)
        assert isinstance(refused.json()["error"], str), (method, path)
    assert httpx.head(f"http://{port_server.ollama}/api/blobs/sha256:00").status_code == 404
    long = [{"role": "user", "content": "long " * 20000}]
    with pytest.raises(ollama.ResponseError) as refused:
        chat(client, long)
    assert "exceeds the context length" in refused.value.error
    for body in [{}, {"model": ""}, {"model": MODEL, "messages": [{"content": "x"}]},
                 {"model": MODEL, "messages": [{"role": "judge", "content": "x"}]},
                 {"model": MODEL, "messages": SUM, "tools": [{"type": "function"}]}]:
        refused = post(port_server, "/api/chat", **body)
        assert refused.status_code in (400, 404) and isinstance(refused.json()["error"], str)


def test_pages_of_this_machine_may_use_the_port(port_server):
    """As with Ollama; pages of other machines may not."""
    url = f"http://{port_server.ollama}/api/tags"
    for origin in ["http://localhost:3000", "https://127.0.0.1", "app://obsidian.md",
                   "tauri://localhost", "vscode-webview://abc"]:
        reply = httpx.get(url, headers={"origin": origin})
        assert reply.status_code == 200, origin
        assert reply.headers["access-control-allow-origin"] == origin
        # The web UI's port does not take them.
        other = httpx.get(f"{port_server.url}/api/tags", headers={"origin": origin})
        assert other.status_code == 403, origin
    for origin in ["http://evil.example", "https://localhost.evil.example", "null"]:
        assert httpx.get(url, headers={"origin": origin}).status_code == 403, origin
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 403


def test_keys_protect_the_port_as_well():
    server = Server("--ollama-port", "0", env={"MOEFLUX_API_KEY": "a-key-of-ours"})
    until(lambda: any("Ollama" in line for line in server.lines))
    line = next(line for line in server.lines if "Ollama" in line)
    url = "http://" + line.split("http://")[1].split()[0]
    assert httpx.get(f"{url}/api/tags").status_code == 401
    assert isinstance(httpx.get(f"{url}/api/tags").json()["error"], str)
    assert httpx.get(url).status_code == 200
    keyed = ollama.Client(host=url, headers={"authorization": "Bearer a-key-of-ours"})
    assert keyed.list().models
    assert server.stop() == 0


def test_a_client_that_leaves_is_forgotten(client, port_server):
    """Also in the middle of a stream."""
    tell = [{"role": "user", "content": "Tell me about vectors"}]
    for piece in chat(client, tell, stream=True, options={"temperature": 1.5}):
        break
    del piece
    status = lambda: httpx.get(f"{port_server.url}/status").json()["now"]  # noqa: E731
    until(lambda: status()["running"] == 0 and status()["waiting"] == 0)


@pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed")
def test_the_javascript_client(port_server, tmp_path):
    npm = os.environ.get("MOEFLUX_OLLAMA_JS")
    if npm is None:
        npm = tmp_path
        subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit", "ollama@0.6.4"],
                       cwd=npm, check=True, timeout=120)
    script = tmp_path / "ask.mjs"
    entry = os.path.join(npm, "node_modules/ollama/dist/index.mjs")
    script.write_text(JAVASCRIPT.replace("ENTRY", json.dumps(entry)))
    done = subprocess.run(["node", str(script), f"http://{port_server.ollama}", MODEL],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "68" in found["whole"] and found["streamed"] == found["whole"]
    assert found["generated"] == found["whole"]
    assert found["call"] == {"city": "Paris"}
    assert set(json.loads(found["json"])) == {"sum", "name"}
    assert found["context"] == 4096 and found["listed"] == [f"{MODEL}:latest"]
    assert "not found" in found["error"] and "embeddings" in found["embed"]


JAVASCRIPT = """
import { Ollama } from ENTRY;
const [host, model] = process.argv.slice(2);
const client = new Ollama({ host });
const options = { temperature: 0 };
const messages = [{ role: "user", content: "What is 23 + 45?" }];
const message = async (call) => { try { await call(); return ""; } catch (e) { return e.message; } };
const whole = (await client.chat({ model, messages, options })).message.content;
let streamed = "";
for await (const part of await client.chat({ model, messages, options, stream: true })) {
    streamed += part.message.content;
}
const prompt = messages[0].content;
const generated = (await client.generate({ model, prompt, options })).response;
const weather = { type: "function", function: { name: "get_weather", description: "Get the current weather",
    parameters: { type: "object", required: ["city"], properties: { city: { type: "string" } } } } };
const asked = [{ role: "user", content: "What is the weather in Paris?" }];
const called = await client.chat({ model, messages: asked, tools: [weather], options });
const format = { type: "object", required: ["sum", "name"], additionalProperties: false,
    properties: { sum: { type: "integer" }, name: { enum: ["a", "b"] } } };
const json = (await client.chat({ model, messages, format, options })).message.content;
const shown = await client.show({ model });
const listed = (await client.list()).models.map((entry) => entry.name);
console.log(JSON.stringify({
    whole, streamed, generated, json, listed,
    call: called.message.tool_calls[0].function.arguments,
    context: shown.model_info[shown.model_info["general.architecture"] + ".context_length"],
    error: await message(() => client.chat({ model: "other", messages })),
    embed: await message(() => client.embed({ model, input: "x" })),
}));
"""
