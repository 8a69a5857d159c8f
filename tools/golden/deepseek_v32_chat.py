#!/usr/bin/env python3
"""What DeepSeek-V3.2's own script makes of conversations: `deepseek_v32_chat.py encoding_dsv32.py OUT.json`.

The script is encoding/encoding_dsv32.py of that model's repository. The words with which it explains how tools are
called are left out.
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


def main(script, out):
    spec = importlib.util.spec_from_file_location("encoding", script)
    encoding = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoding)
    cases = []
    for messages, has_tools in CASES:
        for thinking in (False, True):
            given = copy.deepcopy(messages)
            if has_tools and given[0]["role"] != "system":
                given.insert(0, said("system", ""))
            if has_tools:
                given[0]["tools"] = [WEATHER, NOW]
            text = encoding.encode_messages(given, thinking_mode="thinking" if thinking else "chat")
            text = re.sub(r"\n\n## Tools\n.*?<functions>", "\n\n## Tools\n<functions>", text, flags=re.S)
            tools = [WEATHER, NOW] if has_tools else None
            cases.append({"thinking": thinking, "tools": tools, "messages": messages, "text": text})
    with open(out, "w") as f:
        json.dump(cases, f, ensure_ascii=False, indent=1)
        f.write("\n")


main(*sys.argv[1:])
