#!/usr/bin/env python3
"""What DeepSeek's own scripts make of conversations: `deepseek_chat.py encoding_dsv32.py OUT.json`.

The scripts are encoding/encoding_dsv32.py and encoding/encoding_dsv4.py of the repositories of DeepSeek-V3.2 and V4. The words
with which they explain how tools are called are left out.
"""
import copy
import importlib.util
import json
import re
import sys

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Tells the weather, é",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"]}}}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments):
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


def said(role, content, **fields):
    return {"role": role, "content": content, **fields}


MANY = [call("get_weather", {"city": "São <b>", "days": 3}), call("get_weather", {"city": "Ulm", "x": [1, {"a": None}], "y": True})]
LOOK = said("assistant", "", reasoning_content="Let me see", tool_calls=MANY[:1])
CASES = [
    ([said("user", "Hi")], False),
    ([said("system", "S"), said("user", "Hi"), said("assistant", "Yes?", reasoning_content="Hm"), said("user", "More")], False),
    ([said("system", "S"), said("user", "a"), said("user", "b")], False),
    ([said("user", "Hi")], True),
    ([said("system", "S"), said("user", "Weather?"), said("assistant", "I look.", reasoning_content="Let me see", tool_calls=MANY),
      said("tool", "18"), said("tool", '{"t": 9}')], True),
    ([said("user", "Weather?"), LOOK, said("tool", "18"), said("assistant", "It is 18."), said("user", "And now?")], False),
    ([said("user", "Weather?"), LOOK, said("tool", "18"), said("assistant", "", reasoning_content="two", tool_calls=[call("now", {})]),
      said("tool", "noon")], False),
]
# With turns that later models put together, and answers in another order than their calls.
PAIR = [dict(MANY[0], id="a"), dict(MANY[1], id="b")]
LATER = [
    ([said("user", "a"), said("system", "S"), said("user", "b"), said("user", "c"), said("assistant", "d", reasoning_content="Hm"), said("user", "e")], False),
    ([said("user", "Weather?"), said("assistant", "", reasoning_content="Let me see", tool_calls=PAIR), said("tool", "9", tool_call_id="b"),
      said("tool", "18", tool_call_id="a"), said("user", "And?"), said("assistant", "It is 18.", reasoning_content="Well")], False),
    ([said("user", "Weather?"), said("assistant", "", reasoning_content="Let me see", tool_calls=PAIR), said("tool", "9", tool_call_id="b"),
      said("user", "Wait"), said("tool", "18", tool_call_id="a"), said("tool", "0", tool_call_id="c"), said("assistant", "", tool_calls=[call("now", {})]),
      said("tool", "noon", tool_call_id="b"), said("tool", "one", tool_call_id="a")], True),
]


def main(script, out):
    spec = importlib.util.spec_from_file_location("encoding", script)
    encoding = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoding)
    cases, is_later = [], hasattr(encoding, "merge_tool_messages")
    for messages, has_tools in CASES + LATER * is_later:
        for thinking in (False, True):
            given = copy.deepcopy(messages)
            if has_tools and given[0]["role"] != "system":
                given.insert(0, said("system", ""))
            if has_tools:
                given[0]["tools"] = [WEATHER, NOW]
            text = encoding.encode_messages(given, thinking_mode="thinking" if thinking else "chat")
            text = re.sub(r"\n\n## Tools\n.*?(<functions>|### Available)", r"\n\n## Tools\n\1", text, flags=re.S)
            text = re.sub(r"\n\nYou MUST strictly .*", "", text)
            tools = [WEATHER, NOW] if has_tools else None
            cases.append({"thinking": thinking, "tools": tools, "messages": messages, "text": text})
    with open(out, "w") as f:
        json.dump(cases, f, ensure_ascii=False, indent=1)
        f.write("\n")


main(*sys.argv[1:])
